//! Decisions of the build, as pure functions from the environment.

/// What to do about kernels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// Compile them with the backend's compiler.
    Compile,
    /// Build without kernels: documentation, or a check on a machine without compilers. Opening a
    /// communicator then answers an error that says so.
    Off,
}

/// Reads `CROSSCCL_KERNELS` (`off`, or unset) and `DOCS_RS` (set: documentation needs no compiler).
pub(crate) fn kernels(env: impl Fn(&str) -> Option<String>) -> Result<Kernels, String> {
    if env("DOCS_RS").is_some() {
        return Ok(Kernels::Off);
    }
    match env("CROSSCCL_KERNELS").as_deref() {
        None | Some("") => Ok(Kernels::Compile),
        Some("off") => Ok(Kernels::Off),
        Some(other) => Err(format!(
            "CROSSCCL_KERNELS={other}: expected `off` (build without kernels) or nothing; \
             a folder of prebuilt images is for the GPU backends, which this version does not have"
        )),
    }
}
