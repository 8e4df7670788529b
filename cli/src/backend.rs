//! From a backend's name to its type: the one place of the command line that knows which are compiled in.

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

/// A builder for ranks on the first devices, or on as many as there are in turn.
pub(crate) fn builder<B: crossccl::Backend>(ranks: usize, shared: bool) -> crossccl::Builder<B> {
    if shared { crossccl::Communicator::builder_for_ranks(ranks) } else { crossccl::Communicator::builder(0..ranks) }
}
