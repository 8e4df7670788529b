//! The backends by name, for who chooses one at run time.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// A backend, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// Feature `cpu`.
    Cpu,
    /// Feature `cuda`.
    Cuda,
    /// Feature `rocm`.
    Rocm,
}

impl BackendKind {
    /// Every backend.
    pub const ALL: [BackendKind; 3] = [BackendKind::Cpu, BackendKind::Cuda, BackendKind::Rocm];

    /// The cargo feature that brings it, and its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Cpu => "cpu",
            BackendKind::Cuda => "cuda",
            BackendKind::Rocm => "rocm",
        }
    }

    /// Whether its feature is on.
    pub const fn is_compiled(self) -> bool {
        match self {
            BackendKind::Cpu => cfg!(feature = "cpu"),
            BackendKind::Cuda => cfg!(feature = "cuda"),
            BackendKind::Rocm => cfg!(feature = "rocm"),
        }
    }

    /// Says whether it can be used at all.
    ///
    /// # Errors
    /// [`Error::NotCompiled`] without its feature; [`Error::NoDevice`] where its driver or a device is
    /// missing.
    pub fn check(self) -> Result<()> {
        match self {
            #[cfg(feature = "cpu")]
            BackendKind::Cpu => Ok(()),
            #[cfg(feature = "cuda")]
            BackendKind::Cuda => devices::<crate::Cuda>(),
            #[cfg(feature = "rocm")]
            BackendKind::Rocm => devices::<crate::Hip>(),
            #[cfg(not(all(feature = "cpu", feature = "cuda", feature = "rocm")))]
            _ => Err(Error::NotCompiled { feature: self.name(), kernels: false }),
        }
    }
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn devices<B: crate::Backend>() -> Result<()> {
    let no_device = |reason: String| Error::NoDevice { backend: B::NAME, reason };
    match B::device_count() {
        Ok(0) => Err(no_device("the driver knows no device".into())),
        Ok(_) => Ok(()),
        Err(fault) => Err(no_device(format!("{}: {}", fault.call, fault.name))),
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        BackendKind::ALL.into_iter().find(|b| b.name() == s).ok_or_else(|| {
            let names: Vec<_> = BackendKind::ALL.iter().map(|b| b.name()).collect();
            format!("unknown backend `{s}`; the backends are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_says_whether_it_can_be_used() {
        for kind in BackendKind::ALL {
            let outcome = kind.check();
            match (kind, kind.is_compiled()) {
                (BackendKind::Cpu, true) => assert_eq!(outcome, Ok(())),
                (_, false) => assert_eq!(outcome, Err(Error::NotCompiled { feature: kind.name(), kernels: false })),
                (_, true) => assert!(matches!(outcome, Ok(()) | Err(Error::NoDevice { .. })), "{outcome:?}"),
            }
        }
    }
}
