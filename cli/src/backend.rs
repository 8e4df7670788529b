//! From a backend's name to its type: the one place of the command line that knows which are compiled in.

use crate::{error::CliError, memory};

/// Evaluates `$call` with `$backend` as the type of the backend that `$kind` names, in a function
/// that returns `Result<_, CliError>`.
macro_rules! with_backend {
    ($kind:expr, $backend:ident => $call:expr) => {{
        let kind: crossccl::BackendKind = $kind;
        kind.check()?;
        match kind {
            #[cfg(feature = "cpu")]
            crossccl::BackendKind::Cpu => {
                type $backend = crossccl::Cpu;
                $call
            }
            #[cfg(feature = "cuda")]
            crossccl::BackendKind::Cuda => {
                type $backend = crossccl::Cuda;
                $call
            }
            #[cfg(feature = "rocm")]
            crossccl::BackendKind::Rocm => {
                type $backend = crossccl::Hip;
                $call
            }
            _ => Err(crate::error::CliError::Usage(format!("the command line does not offer the backend {kind}"))),
        }
    }};
}
pub(crate) use with_backend;

/// A builder for ranks on the first devices, or on as many as there are in turn. An error where the host has no memory
/// for so many.
pub(crate) fn builder<B: crossccl::Backend>(ranks: usize, shared: bool) -> Result<crossccl::Builder<B>, CliError> {
    memory::check(&format!("{ranks} ranks"), memory_of_ranks::<B>(ranks), "--ranks")?;
    Ok(if shared {
        crossccl::Communicator::builder_for_ranks(ranks)
    } else {
        crossccl::Communicator::builder(0..ranks)
    })
}

/// Whether buffers are the host's memory.
pub(crate) fn is_host<B: crossccl::Backend>() -> bool {
    B::NAME == crossccl::BackendKind::Cpu.name()
}

/// Bytes of the host that the signal buffers of so many ranks take.
pub(crate) fn memory_of_ranks<B: crossccl::Backend>(ranks: usize) -> u64 {
    // What builders stage unless they are told otherwise.
    const PAYLOAD: usize = 2 << 20;
    match is_host::<B>() {
        true => (ranks * crossccl::signal_buffer_bytes(ranks, crossccl::MAX_BLOCKS, PAYLOAD)) as u64,
        false => 0,
    }
}
