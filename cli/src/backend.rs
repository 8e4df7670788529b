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
            _ => Err(crate::error::CliError::Usage(format!("the command line does not offer the backend {kind}"))),
        }
    }};
}
pub(crate) use with_backend;
