//! Files that are there whole or not at all, also when the program is interrupted.
//!
//! The content goes to a temporary file in the folder of the name that it will get, and is renamed when
//! it is complete. A temporary file that is given up is deleted when it is dropped. A signal ends a
//! program without drops: so from the first file on, SIGHUP, SIGINT and SIGTERM are caught, all
//! temporary files deleted, and then the signal does what it would have done.
//!
//! What cannot be caught, such as SIGKILL, leaves `.crossccl-*.tmp` behind. A file without a name
//! (`O_TMPFILE`) would not; but not every file system has such files, and they need a temporary name
//! anyway before they can replace an existing file.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempPath;

/// A file that is being written.
pub(crate) struct WholeFile {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
}

impl WholeFile {
    /// Starts a file that [`finish`](Self::finish) will give the name `path`. Errors are those of the
    /// folder, which takes no new file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // Through a symbolic link: what it points to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let mut builder = tempfile::Builder::new();
        builder.prefix(".crossccl-").suffix(".tmp");
        // As for any new file, rather than for the owner alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut all = Temporaries::lock();
        all.delete_on_signals()?;
        // Apart, since errors of the whole name the temporary file, which nobody asked for.
        let (file, temporary) = builder.tempfile_in(folder(&path))?.into_parts();
        let name = temporary.to_path_buf();
        all.files.push(temporary);
        Ok(WholeFile { file: BufWriter::with_capacity(1 << 20, file), temporary: name, path })
    }

    /// Makes it last, then gives it its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        // Until the end of the block: a signal that comes now finds the old file or the new one.
        {
            let mut all = Temporaries::lock();
            let temporary = all.take(&self.temporary).ok_or(io::ErrorKind::NotFound)?;
            temporary.persist(&self.path).map_err(|error| error.error)?;
        }
        // The name is in place; that it outlives a power cut is not promised by every file system.
        #[cfg(unix)]
        if let Ok(folder) = File::open(folder(&self.path)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // Dropped, and by that deleted, if it is still there.
        let _ = Temporaries::lock().take(&self.temporary);
    }
}

/// Of `name` alone, the parent is the empty path.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether two files would have one name, whether they exist or not.
pub(crate) fn same_name(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        path.canonicalize().ok().or_else(|| Some(folder(path).canonicalize().ok()?.join(path.file_name()?)))
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
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(names(), 1);
        drop(file);
        assert_eq!(names(), 0);
        // What cannot be renamed: a folder with the name came meanwhile.
        let file = WholeFile::create(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.finish().is_err());
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
        fs::write(path("a"), "").unwrap();
        assert!(same_name(&path("a"), &path("sub/../a")));
    }

    #[test]
    fn several_at_once_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let mut a = WholeFile::create(&path("a")).unwrap();
        let b = WholeFile::create(&path("b")).unwrap();
        let mut c = WholeFile::create(&path("c")).unwrap();
        a.write_all(b"of a").unwrap();
        c.write_all(b"of c").unwrap();
        a.finish().unwrap();
        drop(b);
        c.finish().unwrap();
        assert_eq!((fs::read(path("a")).unwrap(), fs::read(path("c")).unwrap()), (b"of a".into(), b"of c".into()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
