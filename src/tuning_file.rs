//! Where tuning comes from: what is built in, and files.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use crate::{
    error::{Error, Result},
    plan::Tuning,
};

/// The file that is read where a program names none.
const VARIABLE: &str = "CROSSCCL_TUNING";
const MEASURED: &str = include_str!("../tuning/measured.toml");
/// Far more than rows take.
const LARGEST: u64 = 4 << 20;

impl Tuning {
    /// What was measured before and is built in.
    ///
    /// # Errors
    /// None, as long as the file that is built in is one; its test holds that.
    pub fn built_in() -> Result<Self> {
        Tuning::parse(MEASURED, "tuning/measured.toml (built in)")
    }

    /// Reads a file of rows, such as `crossccl tune` writes.
    ///
    /// # Errors
    /// [`Error::Tuning`] where it cannot be read, or says something that cannot be done.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let error = |reason: String| Error::Tuning { source_name: name.clone(), line: None, reason };
        let mut text = String::new();
        let cannot_open = |e: io::Error| error(format!("cannot open it: {e}"));
        // Before it is opened: of a pipe that nobody writes to, the opening waited for ever. And a pipe's rows would be
        // there for the first communicator alone.
        let facts = path.metadata().map_err(cannot_open)?;
        if !facts.is_file() {
            let what = if facts.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
            return Err(error(format!("expected a regular file, got {what}")));
        }
        if facts.len() > LARGEST {
            return Err(error(format!("expected at most {LARGEST} bytes, got {}", facts.len())));
        }
        let file = File::open(path).map_err(cannot_open)?;
        file.take(LARGEST + 1).read_to_string(&mut text).map_err(|e| error(format!("cannot read it: {e}")))?;
        if text.len() as u64 > LARGEST {
            return Err(error(format!("expected at most {LARGEST} bytes, got more")));
        }
        Tuning::parse(&text, name)
    }

    /// The file that the environment names (`CROSSCCL_TUNING`), over what is built in.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn of_environment() -> Result<Self> {
        let built_in = Tuning::built_in()?;
        match std::env::var_os(VARIABLE) {
            Some(path) if !path.is_empty() => Ok(Tuning::read(Path::new(&path))?.over(built_in)),
            _ => Ok(built_in),
        }
    }
}
