//! Files that are there whole or not at all, also when the program is interrupted: every output that a user names.
//!
//! The content goes to a temporary file in the folder of the name that it will get, and is renamed when
//! it is complete. A temporary file that is given up is deleted when it is dropped. A signal ends a
//! program without drops: so from the first file on, SIGHUP, SIGINT and SIGTERM are caught, all
//! temporary files deleted, and then the signal does what it would have done.
//!
//! What a name leads to is looked at first. Symbolic links are followed to their end, whether a file is there or
//! not. Only a regular file that may be written is replaced, and the new one keeps its permissions, and its owner if
//! the system allows it. (Outputs once replaced links to missing files, and turned private files into public ones.)
//! Other hard links to a replaced file keep the old content: a rename cannot change them.
//!
//! What cannot be caught, such as SIGKILL, leaves `.crossccl-*.tmp` behind. A file without a name
//! (`O_TMPFILE`) would not; but not every file system has such files, and they need a temporary name
//! anyway before they can replace an existing file.

use std::{
    fs::{File, Metadata},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempPath;

use crate::error::CliError;

/// A file that is being written.
pub(crate) struct WholeFile {
    file: BufWriter<File>,
    written: Written,
}

/// A file with all of its content, which waits for its name.
pub(crate) struct Written {
    told: String,
    temporary: PathBuf,
    path: PathBuf,
}

impl WholeFile {
    /// Starts a file that will get the name `path`, which the user gave by `option`.
    ///
    /// # Errors
    /// `Usage` for a name that no file can have or that something else has, `Failure` for what the system refuses.
    pub(crate) fn create(option: &str, path: &Path) -> Result<Self, CliError> {
        let told = format!("{option} {}", path.display());
        let failed = |what: String| CliError::Failure(format!("{told}: {what}"));
        let path = target(path).map_err(|error| error.of(&told))?;
        let replaced = replaced(&path).map_err(|error| error.of(&told))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".crossccl-").suffix(".tmp");
        // As for any new file; before it is like the one that it replaces, nobody but its owner may look.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(match replaced {
            Some(_) => 0o600,
            None => 0o666,
        }));
        let mut all = Temporaries::lock();
        // (This was once told as a folder that takes no new file.)
        all.delete_on_signals().map_err(|error| {
            CliError::no_thread(&format!("{told}: the thread that cleans up after a signal"), &error)
        })?;
        // Apart, since errors of the whole name the temporary file, which nobody asked for.
        let parts = builder.tempfile_in(folder(&path)).map(tempfile::NamedTempFile::into_parts);
        let (file, temporary) = parts.map_err(|error| {
            let (folder, error) = (folder(&path).display(), error.to_string());
            // The same name stands at the end.
            let error = error.split(" at path ").next().unwrap_or_default();
            failed(format!("its folder {folder} takes no new file: {error}; give a name in another one"))
        })?;
        let name = temporary.to_path_buf();
        all.files.push(temporary);
        // Dropping what follows takes the lock.
        drop(all);
        let written = Written { told, temporary: name, path };
        if let Some(replaced) = replaced {
            keep_nature(&file, &replaced).map_err(|error| written.failed(&error))?;
        }
        Ok(WholeFile { file: BufWriter::with_capacity(1 << 20, file), written })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| self.written.failed(&error))
    }

    /// Brings the content to the disk; the name comes with [`finish_all`].
    pub(crate) fn close(self) -> Result<Written, CliError> {
        let WholeFile { mut file, written } = self;
        match file.flush().and_then(|()| file.get_ref().sync_all()) {
            Ok(()) => Ok(written),
            Err(error) => Err(written.failed(&error)),
        }
    }

    /// Brings the content to the disk, then gives it its name.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        finish_all(&[self.close()?])
    }
}

/// Gives files their names, in their order. A signal that comes meanwhile finds all of the old ones, or all new ones.
pub(crate) fn finish_all(files: &[Written]) -> Result<(), CliError> {
    let mut all = Temporaries::lock();
    for file in files {
        let temporary = all.take(&file.temporary).ok_or_else(|| file.failed(&io::ErrorKind::NotFound.into()))?;
        temporary.persist(&file.path).map_err(|error| file.failed(&error.error))?;
    }
    drop(all);
    // The names are in place; that they outlive a power cut is not promised by every file system.
    #[cfg(unix)]
    for file in files {
        if let Ok(folder) = File::open(folder(&file.path)) {
            let _ = folder.sync_all();
        }
    }
    Ok(())
}

impl Written {
    fn failed(&self, error: &io::Error) -> CliError {
        CliError::Failure(format!("{}: cannot be written: {error}", self.told))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // Dropped, and by that deleted, if it is still there.
        let _ = Temporaries::lock().take(&self.temporary);
    }
}

/// Refuses what [`WholeFile::create`] refuses for the name alone.
pub(crate) fn check(option: &str, path: &Path) -> Result<(), CliError> {
    let checked = target(path).and_then(|path| replaced(&path));
    checked.map(drop).map_err(|error| error.of(&format!("{option} {}", path.display())))
}

/// Why a name is not one for an output.
enum Refusal {
    Usage(&'static str),
    Failure(String),
}

impl Refusal {
    fn of(self, told: &str) -> CliError {
        match self {
            Refusal::Usage(what) => CliError::Usage(format!("{told}: {what}; give the name of a file")),
            Refusal::Failure(what) => CliError::Failure(format!("{told}: {what}")),
        }
    }
}

/// More links than any system follows.
const MOST_LINKS: usize = 40;

/// The file that `path` leads to, or would lead to.
fn target(path: &Path) -> Result<PathBuf, Refusal> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let name = path.as_os_str().as_encoded_bytes();
        // (`none/` was once written in full and refused by the rename at the end.)
        if [&b"/"[..], b"/.", b"/.."].iter().any(|end| name.ends_with(end)) || path.file_name().is_none() {
            return Err(Refusal::Usage("is the name of a folder"));
        }
        let folder = folder(&path);
        match folder.metadata() {
            Ok(facts) if facts.is_dir() => {}
            Ok(_) => return Err(Refusal::Failure(format!("{} is no folder", folder.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = folder.display();
                return Err(Refusal::Failure(format!("its folder {folder} does not exist; create it first")));
            }
            Err(error) => return Err(Refusal::Failure(format!("its folder {}: {error}", folder.display()))),
        }
        // What stands there are open files of processes: the rename would not reach who has them.
        if folder.canonicalize().is_ok_and(|real| real.starts_with("/proc")) {
            return Err(Refusal::Usage("leads to /proc, where nothing can be replaced"));
        }
        match path.symlink_metadata() {
            Ok(facts) if facts.is_symlink() => {
                let next =
                    path.read_link().map_err(|e| Refusal::Failure(format!("is a link that cannot be read: {e}")))?;
                path = if folder == Path::new(".") { next } else { folder.join(next) };
            }
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(Refusal::Failure(format!("cannot be written: {error}"))),
        }
    }
    Err(Refusal::Usage("is a symbolic link that leads in a circle"))
}

/// What is at `path`, if that may be replaced by a file; `None` where nothing is.
fn replaced(path: &Path) -> Result<Option<Metadata>, Refusal> {
    let facts = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        facts => facts.map_err(|e| Refusal::Failure(format!("cannot be written: {e}")))?,
    };
    if facts.is_dir() {
        return Err(Refusal::Usage("is the name of a folder"));
    }
    if !facts.is_file() {
        return Err(Refusal::Usage(kind(&facts)));
    }
    // The rename at the end would not ask whether the file may be written.
    match File::options().write(true).open(path) {
        Ok(_) => Ok(Some(facts)),
        Err(e) => Err(Refusal::Failure(format!("is there and may not be written: {e}; give another name"))),
    }
}

/// What else than a regular file or a folder.
pub(crate) fn kind(facts: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = facts.file_type();
        if kind.is_fifo() {
            return "is a pipe";
        } else if kind.is_socket() {
            return "is a socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "is a device";
        }
    }
    if facts.is_dir() { "is a folder" } else { "is not a regular file" }
}

/// Gives the new file the owner and the permissions of the one that it will replace, never more.
#[cfg(unix)]
fn keep_nature(file: &File, replaced: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let own = file.metadata()?;
    let owner = (own.uid() != replaced.uid()).then(|| replaced.uid());
    let group = (own.gid() != replaced.gid()).then(|| replaced.gid());
    // Without the bits that run a program as its owner: writing to a file takes them away, too.
    let mut mode = replaced.mode() & 0o777;
    let changed = (owner.is_none() && group.is_none()) || fchown(file, owner, group).is_ok();
    // Who may not give a file away may still choose among the groups it is in.
    if !changed && group.is_some() && fchown(file, None, group).is_err() {
        // Another group than before: it may do what all others may, at most.
        mode &= !0o070 | (mode & 0o007) << 3;
    }
    file.set_permissions(PermissionsExt::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_nature(_file: &File, _replaced: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Of `name` alone, the parent is the empty path.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether two names lead to one file, whether it exists or not.
pub(crate) fn same_name(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let path = target(path).ok()?;
        Some(folder(&path).canonicalize().ok()?.join(path.file_name()?))
    };
    real(a).is_some_and(|a| real(b) == Some(a))
}

/// Every temporary file there is. The lock is held while one is made or renamed, so that whoever deletes
/// them all has all.
struct Temporaries {
    files: Vec<TempPath>,
    signals_are_caught: bool,
}

static TEMPORARIES: Mutex<Temporaries> = Mutex::new(Temporaries { files: Vec::new(), signals_are_caught: false });

impl Temporaries {
    fn lock() -> MutexGuard<'static, Self> {
        // Nothing panics under the lock; if it did, the list would still be one.
        TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&mut self, name: &Path) -> Option<TempPath> {
        let at = self.files.iter().position(|file| **file == *name)?;
        Some(self.files.swap_remove(at))
    }

    fn delete_on_signals(&mut self) -> io::Result<()> {
        if !self.signals_are_caught {
            #[cfg(unix)]
            signals::catch()?;
            self.signals_are_caught = true;
        }
        Ok(())
    }
}

#[cfg(unix)]
mod signals {
    use std::{fs, io, thread};

    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        iterator::Signals,
        low_level::emulate_default_handler,
    };

    /// On a thread of its own: in a handler, next to nothing is allowed.
    pub(super) fn catch() -> io::Result<()> {
        let ignored = ignored();
        let ends = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals = Signals::new(ends)?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // To the end: nothing is made or renamed any more.
                let mut all = super::Temporaries::lock();
                all.files.clear();
                let _ = emulate_default_handler(signal);
            }
        })?;
        Ok(())
    }

    /// Bit n - 1 of signal n that this program was started to outlive: `nohup` does that, and shells for
    /// what runs in the background. To catch such a signal would be to die of it. Where the system does
    /// not tell, none.
    fn ignored() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let path = folder.path().join("out");
        let mut file = WholeFile::create("--out", &path).unwrap();
        file.write(b"half").unwrap();
        assert_eq!(names(), 1);
        drop(file);
        assert_eq!(names(), 0);
        // What cannot be renamed: a folder with the name came meanwhile.
        let file = WholeFile::create("--out", &path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = file.finish().unwrap_err().to_string();
        assert!(error.starts_with(&format!("--out {}: cannot be written: ", path.display())), "{error}");
        assert_eq!(names(), 1);
    }

    #[test]
    fn one_name_however_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        assert!(same_name(&path("a"), &path("sub/../a")));
        assert!(!same_name(&path("a"), &path("b")));
        assert!(!same_name(&path("none/a"), &path("none/a")), "no folder, no file");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../a", path("sub/link")).unwrap();
            assert!(same_name(&path("a"), &path("sub/link")), "before the file is there");
        }
        fs::write(path("a"), "").unwrap();
        assert!(same_name(&path("a"), &path("sub/../a")));
    }

    #[test]
    fn several_at_once_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let create = |name| WholeFile::create("--out", &path(name)).unwrap();
        let (mut a, b, mut c) = (create("a"), create("b"), create("c"));
        a.write(b"of a").unwrap();
        c.write(b"of c").unwrap();
        a.finish().unwrap();
        drop(b);
        c.finish().unwrap();
        assert_eq!((fs::read(path("a")).unwrap(), fs::read(path("c")).unwrap()), (b"of a".into(), b"of c".into()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// Files of one result get their names together, when the last of them is complete.
    #[test]
    fn several_in_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let written = ["a", "b"].map(|name| WholeFile::create("--out", &path(name)).unwrap().close().unwrap());
        assert!(!path("a").exists() && !path("b").exists());
        finish_all(&written).unwrap();
        drop(written);
        assert!(path("a").exists() && path("b").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// A file for its owner alone is so all the time; of a file for all, the temporary one is no wider than it.
    #[cfg(unix)]
    #[test]
    fn permissions_are_kept_from_the_first_byte_on() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        for (before, after) in [(0o600, 0o600), (0o644, 0o644), (0o666, 0o666), (0o640, 0o640), (0o4755, 0o755)] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(before)).unwrap();
            let mut file = WholeFile::create("--out", &path).unwrap();
            assert_eq!(mode(&file.written.temporary), after);
            file.write(b"new").unwrap();
            file.finish().unwrap();
            assert_eq!((mode(&path), fs::read(&path).unwrap()), (after, b"new".into()));
        }
    }
}
