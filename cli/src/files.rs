//! `crossccl broadcast` and `crossccl reduce-scatter`: the collectives on files.

use clap::Args;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct BroadcastArguments {}

#[derive(Debug, Args)]
pub(crate) struct ReduceScatterArguments {}

pub(crate) fn broadcast(_arguments: &BroadcastArguments) -> Result<(), CliError> {
    Err(CliError::Failure("broadcast: not built yet".into()))
}

pub(crate) fn reduce_scatter(_arguments: &ReduceScatterArguments) -> Result<(), CliError> {
    Err(CliError::Failure("reduce-scatter: not built yet".into()))
}
