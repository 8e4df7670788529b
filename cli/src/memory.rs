//! How much memory this process may still take, so that what cannot fit is refused by name. (Beyond a container's
//! limit no allocation fails: the kernel kills the process without a word.)
//!
//! Asked are the control groups of the process and all above them (versions 1 and 2), the limits of the process itself,
//! and what the machine has free. Where one of them does not tell, it sets no limit here.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use crate::error::CliError;

/// What somebody leaves to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    bytes: u64,
    who: String,
}

/// Refuses `what` if it takes more memory than there is. `lower` names what to ask for less of.
pub(crate) fn check(what: &str, bytes: u64, lower: &str) -> Result<(), CliError> {
    match least(Path::new("/")) {
        Some(room) if bytes > room.bytes => Err(refusal(what, bytes, &room, lower)),
        _ => Ok(()),
    }
}

/// Makes `bytes` so long, or says that the host has no memory for it: an allocation that fails is no reason to abort.
pub(crate) fn resize(bytes: &mut Vec<u8>, len: usize, lower: &str) -> Result<(), CliError> {
    bytes.try_reserve_exact(len.saturating_sub(bytes.len())).map_err(|_| {
        CliError::Failure(format!("the host has no {} of memory left; lower {lower}", told(len as u64)))
    })?;
    bytes.resize(len, 0);
    Ok(())
}

fn refusal(what: &str, bytes: u64, room: &Room, lower: &str) -> CliError {
    let (needed, left, who) = (told(bytes), told(room.bytes), &room.who);
    CliError::Failure(format!("{what}: this takes about {needed} of memory, and {who} leaves {left}; lower {lower}"))
}

/// For people: three digits are enough.
fn told(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// The smallest room of all; `root` is where `/proc` is.
fn least(root: &Path) -> Option<Room> {
    let proc = root.join("proc");
    let machine = table(&proc.join("meminfo"));
    let kib = |table: &HashMap<String, u64>, name: &str| table.get(name).map(|n| n.saturating_mul(1024));
    let swap = kib(&machine, "SwapFree").unwrap_or(0);
    let mut rooms = Vec::new();
    if let Some(free) = kib(&machine, "MemAvailable") {
        rooms
            .push(Room { bytes: free.saturating_add(swap), who: "the machine (MemAvailable of /proc/meminfo)".into() });
    }
    let limits = fs::read_to_string(proc.join("self/limits")).unwrap_or_default();
    let used = table(&proc.join("self/status"));
    for (limit, name, shown) in [
        ("Max address space", "VmSize", "the limit of its address space (ulimit -v)"),
        ("Max data size", "VmData", "the limit of its data (ulimit -d)"),
    ] {
        let most = limits.lines().find_map(|line| line.strip_prefix(limit)?.split_whitespace().next()?.parse().ok());
        if let (Some(most), Some(used)) = (most, kib(&used, name)) {
            rooms.push(Room { bytes: u64::saturating_sub(most, used), who: shown.into() });
        }
    }
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
    for mount in mounts.lines().filter_map(|line| Mount::parse(root, line)) {
        rooms.extend(mount.groups(&groups).iter().filter_map(|folder| mount.room(folder, swap)));
    }
    rooms.into_iter().min_by_key(|room| room.bytes)
}

/// The numbers of a file of names and numbers, such as `/proc/meminfo`.
fn table(path: &Path) -> HashMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.trim_end_matches(':').to_owned(), words.next()?.parse().ok()?))
    });
    lines.collect()
}

fn number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Where control groups that know memory are mounted.
struct Mount {
    /// The group that is at `at`: a container sees its own as the root.
    root: PathBuf,
    at: PathBuf,
    unified: bool,
}

impl Mount {
    /// From a line of `/proc/self/mountinfo`.
    fn parse(root: &Path, line: &str) -> Option<Self> {
        let (front, behind) = line.split_once(" - ")?;
        let (front, behind): (Vec<_>, Vec<_>) = (front.split(' ').collect(), behind.split(' ').collect());
        let unified = match *behind.first()? {
            "cgroup2" => true,
            "cgroup" if behind.get(2)?.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        let at = front.get(4)?.trim_start_matches('/');
        Some(Mount { root: front.get(3)?.into(), at: root.join(at), unified })
    }

    /// The folders of the process's group and of all above it, the innermost first.
    fn groups(&self, groups: &str) -> Vec<PathBuf> {
        let own = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let this =
                if self.unified { controllers.is_empty() } else { controllers.split(',').any(|c| c == "memory") };
            this.then(|| Path::new(path))
        });
        let Some(own) = own else { return Vec::new() };
        // A path outside of what is mounted belongs to who made the container: the mount is the group then.
        let inside = own.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let folder = |group: &Path| if group == Path::new("") { self.at.clone() } else { self.at.join(group) };
        inside.ancestors().map(folder).collect()
    }

    /// What one group leaves, where it has a limit.
    fn room(&self, folder: &Path, swap_free: u64) -> Option<Room> {
        let stat = table(&folder.join("memory.stat"));
        let file = |name: &str| number(folder.join(name));
        let (limit, used, cache, swap) = if self.unified {
            let swap = file("memory.swap.max").map(|max| max.saturating_sub(file("memory.swap.current").unwrap_or(0)));
            ("memory.max", file("memory.current")?, stat.get("inactive_file"), swap)
        } else {
            // Of memory and swap together; a group of version 1 that has no such file counts no swap.
            let both = file("memory.memsw.limit_in_bytes");
            let swap = both.map(|max| max.saturating_sub(file("memory.limit_in_bytes").unwrap_or(max)));
            ("memory.limit_in_bytes", file("memory.usage_in_bytes")?, stat.get("total_inactive_file"), swap)
        };
        // `max` of version 2 is no number; version 1 has a number that nothing reaches.
        let most = file(limit).filter(|most| *most < 1 << 60)?;
        // Of what was read from files, the kernel lets go first.
        let left = most.saturating_sub(used.saturating_sub(cache.copied().unwrap_or(0)));
        let bytes = left.saturating_add(swap.unwrap_or(swap_free).min(swap_free));
        Some(Room { bytes, who: format!("the control group's {limit} ({})", folder.display()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn room(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let root = machine(files);
        let told = |who: String| who.replace(&format!("{}/", root.path().display()), "/");
        least(root.path()).map(|room| (room.bytes, told(room.who)))
    }

    const FREE: (&str, &str) =
        ("proc/meminfo", "MemTotal:       99 kB\nMemAvailable:    8388608 kB\nSwapFree:    1048576 kB\n");
    const NO_SWAP: (&str, &str) = ("proc/meminfo", "MemAvailable:    8388608 kB\nSwapFree:    0 kB\n");

    #[test]
    fn what_tells_nothing_sets_no_limit() {
        assert_eq!(room(&[]), None);
        assert_eq!(room(&[("proc/meminfo", "nonsense"), ("proc/self/cgroup", "::::")]), None);
        let (bytes, who) = room(&[FREE]).unwrap();
        assert_eq!((bytes, &*who), (9 * GIB, "the machine (MemAvailable of /proc/meminfo)"));
    }

    #[test]
    fn limits_of_the_process() {
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax data size   unlimited   unlimited   bytes\n\
                      Max address space   1073741824   unlimited   bytes\n";
        let files = [FREE, ("proc/self/limits", limits), ("proc/self/status", "VmSize:\t 524288 kB\nVmData:\t 1 kB\n")];
        assert_eq!(room(&files), Some((GIB / 2, "the limit of its address space (ulimit -v)".into())));
    }

    #[test]
    fn groups_of_version_2_and_those_above() {
        let mount = ("proc/self/mountinfo", "31 23 0:28 / /cg rw,relatime - cgroup2 cgroup2 rw\n");
        let own = ("proc/self/cgroup", "0::/outer/inner\n");
        let inner = [
            ("cg/outer/inner/memory.max", "max\n"),
            ("cg/outer/inner/memory.current", "1000\n"),
            ("cg/outer/memory.max", "4294967296\n"),
            ("cg/outer/memory.current", "3221225472\n"),
        ];
        let files = [&[NO_SWAP, mount, own][..], &inner].concat();
        let who = "the control group's memory.max (/cg/outer)";
        assert_eq!(room(&files), Some((GIB, who.into())));
        // Caches of files go first, and swap may be used, up to the group's own limit.
        let files = [&files[..], &[("cg/outer/memory.stat", "anon 5\ninactive_file 1073741824\n")]].concat();
        assert_eq!(room(&files), Some((2 * GIB, who.into())));
        let files = [&files[..], &[FREE, ("cg/outer/memory.swap.max", "max\n")]].concat();
        assert_eq!(room(&files), Some((3 * GIB, who.into())));
        let files = [&files[..], &[("cg/outer/memory.swap.max", "0\n")]].concat();
        assert_eq!(room(&files), Some((2 * GIB, who.into())));
    }

    #[test]
    fn groups_of_version_1_in_a_container() {
        // The container's own group is what is mounted; the path is that of the machine outside.
        let mounts =
            "35 31 0:32 /docker/7 /cg/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /x rw - cgroup c rw,cpu\n";
        let files = [
            NO_SWAP,
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/docker/7\n0::/\n"),
            ("cg/memory/memory.limit_in_bytes", "1073741824\n"),
            ("cg/memory/memory.usage_in_bytes", "536870912\n"),
            ("cg/memory/memory.stat", "total_inactive_file 1024\n"),
        ];
        let who = "the control group's memory.limit_in_bytes (/cg/memory)";
        assert_eq!(room(&files), Some((GIB / 2 + 1024, who.into())));
        let outside = [&files[..], &[("proc/self/cgroup", "4:memory:/elsewhere\n")]].concat();
        assert_eq!(room(&outside), Some((GIB / 2 + 1024, who.into())));
        let unlimited = [&files[..], &[("cg/memory/memory.limit_in_bytes", "9223372036854771712\n")]].concat();
        assert_eq!(room(&unlimited).map(|(bytes, _)| bytes), Some(8 * GIB));
    }

    #[test]
    fn a_refusal_says_how_much_of_what_and_what_to_do() {
        let room = Room { bytes: 300 << 20, who: "the control group's memory.max (/cg)".into() };
        assert_eq!(
            refusal("1073741824 bytes", 5 << 30, &room, "--max-bytes or --ranks").to_string(),
            "1073741824 bytes: this takes about 5.0 GiB of memory, and the control group's memory.max (/cg) leaves \
             300.0 MiB; lower --max-bytes or --ranks"
        );
        assert_eq!((told(1 << 20), told(1536)), ("1.0 MiB".into(), "1.5 KiB".into()));
    }

    /// On this machine, whatever it is: the check itself works, and nothing that small is refused.
    #[test]
    fn here() {
        check("nothing", 0, "nothing").unwrap();
        assert!(check("all", u64::MAX, "--ranks").is_err() || !cfg!(target_os = "linux"));
    }
}
