//! The kernels that the build embedded.

/// Threads of a block; `kThreads` of kernels-cuda/target_cuda.h.
pub(super) const THREADS: u32 = 512;
/// Bytes that a block takes at a time; `kTile` there.
pub(super) const TILE: u64 = 16 << 10;
/// What they are built for.
pub(super) const ARCHITECTURES: &str = "nothing";

pub(super) fn images() -> &'static [&'static [u8]] {
    &[]
}
