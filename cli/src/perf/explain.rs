//! `--explain`: what would be done and why, in place of measuring it.

use crossccl::{Backend, Communicator};

use super::{PerfCommand, cases::Case};
use crate::error::CliError;

/// An explanation a size, of each dtype, operation and root that was asked for.
pub(super) fn explain<B: Backend>(
    comm: &Communicator<B>,
    command: &PerfCommand,
    cases: &[Case],
) -> Result<String, CliError> {
    let mut text = String::new();
    for case in cases {
        let why = match command {
            PerfCommand::Broadcast(a) => comm.explain_broadcast(case.count, case.dtype, a.what(case)),
            PerfCommand::ReduceScatter(a) => comm.explain_reduce_scatter(0, case.count, case.dtype, a.what(case)),
        }?;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &why.to_string();
    }
    Ok(text)
}
