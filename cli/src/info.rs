//! `crossccl info`.

use clap::Args;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct InfoArguments {}

pub(crate) fn run(_arguments: &InfoArguments) -> Result<(), CliError> {
    Err(CliError::Failure("info: not built yet".into()))
}
