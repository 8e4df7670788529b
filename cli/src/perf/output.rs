//! A file that `perf` was asked for by an option. Opened before anything is measured: what cannot be
//! written is told before the work.

use std::{
    fmt,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    error::CliError,
    whole_file::{WholeFile, folder},
};

pub(crate) struct Output {
    option: &'static str,
    path: PathBuf,
    file: WholeFile,
}

impl Output {
    /// Of `option`, like `--json`.
    pub(crate) fn create(option: &'static str, path: &Path) -> Result<Self, CliError> {
        let what = match path.metadata() {
            Ok(facts) if facts.is_dir() => Some("a folder"),
            // It would be replaced by the file.
            Ok(facts) if !facts.is_file() => Some("not a regular file"),
            _ => None,
        };
        if let Some(what) = what {
            let path = path.display();
            return Err(CliError::Usage(format!("perf: {option} {path} is {what}; give the name of a file")));
        }
        if !folder(path).is_dir() {
            let folder = folder(path).display();
            return Err(cannot(option, path, format_args!("its folder {folder} does not exist; create it first")));
        }
        let file = WholeFile::create(path).map_err(|error| cannot(option, path, error))?;
        Ok(Output { option, path: path.into(), file })
    }

    /// Writes all of it and gives it its name.
    pub(crate) fn write(mut self, content: &[u8]) -> Result<(), CliError> {
        let written = self.file.write_all(content).and_then(|()| self.file.finish());
        written.map_err(|error| cannot(self.option, &self.path, error))
    }
}

fn cannot(option: &str, path: &Path, why: impl fmt::Display) -> CliError {
    CliError::Failure(format!("perf: cannot write {option} {}: {why}", path.display()))
}
