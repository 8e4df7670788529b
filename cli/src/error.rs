//! What ends the program: one sentence, and an exit status.

use std::{fmt, process::ExitCode};

/// A failure, by whose fault it is.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line asks for something that cannot be: exit status 2.
    Usage(String),
    /// Everything else: exit status 1.
    Failure(String),
}

impl CliError {
    /// A thread that cannot be had, and what for: a limit of the machine's, not a fault of the program's.
    pub(crate) fn no_thread(what: &str, error: &std::io::Error) -> Self {
        CliError::Failure(format!(
            "{what} cannot be started: {error}; end other processes, raise the limit of processes and threads \
             (`ulimit -u`, or pids.max of a container), or lower --ranks"
        ))
    }

    /// The same failure, with `more` behind it.
    pub(crate) fn and(self, more: &str) -> Self {
        match self {
            CliError::Usage(text) => CliError::Usage(text + more),
            CliError::Failure(text) => CliError::Failure(text + more),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            CliError::Usage(_) => ExitCode::from(2),
            CliError::Failure(_) => ExitCode::from(1),
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CliError::Usage(text) | CliError::Failure(text)) = self;
        f.write_str(text)
    }
}

impl From<crossccl::Error> for CliError {
    fn from(error: crossccl::Error) -> Self {
        match error {
            crossccl::Error::InvalidArgument { .. }
            | crossccl::Error::Unsupported { .. }
            | crossccl::Error::NotCompiled { .. }
            | crossccl::Error::Tuning { .. } => CliError::Usage(error.to_string()),
            _ => CliError::Failure(error.to_string()),
        }
    }
}
