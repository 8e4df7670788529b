//! `crossccl perf`.

use clap::{Args, Subcommand};

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Measure broadcast
    Broadcast(PerfArguments),
    /// Measure reduce-scatter
    ReduceScatter(PerfArguments),
}

#[derive(Debug, Args)]
pub(crate) struct PerfArguments {}

pub(crate) fn run(_command: &PerfCommand) -> Result<(), CliError> {
    Err(CliError::Failure("perf: not built yet".into()))
}
