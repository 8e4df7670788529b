//! What the examples share: which backend they run on, and how they end.

use std::{error::Error, process::ExitCode};

/// The outcome of an example: an error, its own failed check included, ends it with status 1.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// An example is a function that is generic over the backend. This gives it a `main` which takes the
/// backend's name as the first argument (`cpu` without one) and hands on the arguments behind it.
macro_rules! example {
    ($run:ident) => {
        fn main() -> std::process::ExitCode {
            let mut arguments = std::env::args().skip(1);
            let name = arguments.next().unwrap_or_else(|| "cpu".into());
            let outcome = name.parse().map_err(Into::into).and_then(|kind: crossccl::BackendKind| {
                kind.check()?;
                match kind {
                    #[cfg(feature = "cpu")]
                    crossccl::BackendKind::Cpu => $run::<crossccl::Cpu>(&arguments.collect::<Vec<String>>()),
                    #[cfg(feature = "cuda")]
                    crossccl::BackendKind::Cuda => $run::<crossccl::Cuda>(&arguments.collect::<Vec<String>>()),
                    #[cfg(feature = "rocm")]
                    crossccl::BackendKind::Rocm => $run::<crossccl::Hip>(&arguments.collect::<Vec<String>>()),
                    _ => Err(format!("the examples do not know the backend {kind}").into()),
                }
            });
            support::exit(outcome)
        }
    };
}
pub(crate) use example;

pub(crate) fn exit(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `Err` with `what` unless `holds`: an example that is wrong says so in its exit status.
pub(crate) fn check(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what().into()) }
}
