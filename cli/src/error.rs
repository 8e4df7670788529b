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
