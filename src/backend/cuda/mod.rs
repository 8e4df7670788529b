//! NVIDIA devices, through the CUDA driver API, loaded at run time: no toolkit is needed where this runs, and
//! a machine without a driver gets an error that says what was looked for.
//!
//! Launches can overlap ([`Overlap`](crate::Overlap)) from compute capability 9.0 on, where the code that the driver took
//! was made for it.
//!
//! With `CUDA_LAUNCH_BLOCKING` set, several ranks are refused: one thread could not launch what its first launch waits for.

mod device;
mod driver;
mod graph;
mod images;
mod link;
mod memory;
mod profiler;
mod stream;

use std::time::{Duration, Instant};

pub use device::{CudaDevice, CudaFunction};
pub use graph::CudaGraph;
pub use stream::{CudaEvent, CudaStream};

use super::{Backend, Fault, Link, MemoryKind, Profiler, Properties, Unfit, switched_on};
use crate::{abi::Arguments, plan::Kernel};

/// The CUDA backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuda;

// SAFETY: the driver's promises; memory is zeroed before it is handed out; kernels are found by name in images
// that were built with this crate.
unsafe impl Backend for Cuda {
    const NAME: &'static str = "cuda";
    type Device = CudaDevice;
    type Stream = CudaStream;
    type Event = CudaEvent;
    type Function = CudaFunction;
    type Entered = driver::Current;
    type Graph = CudaGraph;
    const GRAPHS: bool = true;
    const TIMED: bool = true;

    fn device_count() -> Result<usize, Fault> {
        CudaDevice::count()
    }

    fn open(ordinal: usize) -> Result<CudaDevice, Fault> {
        CudaDevice::open(ordinal)
    }

    fn ordinal(device: &CudaDevice) -> usize {
        device.ordinal()
    }

    fn properties(device: &CudaDevice, _ranks: usize, sharing: usize) -> Result<Properties, Fault> {
        device.properties(sharing)
    }

    fn can_access_peer(from: &CudaDevice, to: &CudaDevice) -> Result<bool, Fault> {
        from.can_access(to)
    }

    fn link(from: &CudaDevice, to: &CudaDevice) -> Result<Link, Fault> {
        link::between(from, to)
    }

    fn enable_peer_access(from: &CudaDevice, to: &CudaDevice) -> Result<(), Fault> {
        from.enable_access(to)
    }

    fn check_memory(device: &CudaDevice, peers: &[&CudaDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
        memory::check(device, peers, address, bytes)
    }

    fn allocate(device: &CudaDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        match kind {
            MemoryKind::Device | MemoryKind::Signal => memory::allocate(device, bytes),
            MemoryKind::Host => memory::allocate_host(device, bytes),
        }
    }

    unsafe fn free(device: &CudaDevice, kind: MemoryKind, address: u64, bytes: usize) {
        match kind {
            // SAFETY: the caller's promise.
            MemoryKind::Device | MemoryKind::Signal => unsafe { memory::free(device, address) },
            MemoryKind::Host => memory::free_host(address, bytes),
        }
    }

    fn load(device: &CudaDevice) -> Result<Vec<CudaFunction>, Fault> {
        device.load()
    }

    fn resident_blocks(device: &CudaDevice, function: CudaFunction) -> Result<u32, Fault> {
        device.resident_blocks(function)
    }

    fn enter(device: &CudaDevice) -> Result<driver::Current, Fault> {
        device.enter()
    }

    fn create_stream(device: &CudaDevice) -> Result<CudaStream, Fault> {
        CudaStream::new(device)
    }

    fn serialized(one: &CudaStream, other: &CudaStream) -> Result<bool, Fault> {
        Ok(one == other || one.is_legacy_beside(other)? || other.is_legacy_beside(one)?)
    }

    fn blocking_launches() -> Option<String> {
        switched_on(&["CUDA_LAUNCH_BLOCKING"])
    }

    fn device_of(stream: &CudaStream) -> CudaDevice {
        stream.device().clone()
    }

    fn ordinal_of(stream: &CudaStream) -> Result<usize, Fault> {
        stream.ordinal()
    }

    unsafe fn launch(
        stream: &CudaStream,
        _kernel: Kernel,
        function: CudaFunction,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault> {
        stream.launch(function, blocks, arguments)
    }

    unsafe fn copy(stream: &CudaStream, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { stream.copy(to, from, bytes) }
    }

    unsafe fn fill(stream: &CudaStream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { stream.fill(to, byte, bytes) }
    }

    fn record(stream: &CudaStream) -> Result<CudaEvent, Fault> {
        stream.record()
    }

    fn record_timed(stream: &CudaStream) -> Result<CudaEvent, Fault> {
        stream.record_timed()
    }

    fn elapsed(from: &CudaEvent, to: &CudaEvent) -> Result<Duration, Fault> {
        from.elapsed(to)
    }

    fn wait_event(stream: &CudaStream, event: &CudaEvent) -> Result<(), Fault> {
        stream.wait_event(event)
    }

    fn is_capturing(stream: &CudaStream) -> Result<bool, Fault> {
        stream.is_capturing()
    }

    fn begin_capture(stream: &CudaStream) -> Result<(), Fault> {
        graph::begin(stream)
    }

    fn end_capture(stream: &CudaStream) -> Result<CudaGraph, Fault> {
        graph::end(stream)
    }

    unsafe fn launch_graph(stream: &CudaStream, graph: &CudaGraph) -> Result<(), Fault> {
        graph.launch(stream)
    }

    fn profiler() -> Option<&'static dyn Profiler> {
        profiler::profiler()
    }

    fn wait(event: &CudaEvent, deadline: Option<Instant>) -> Result<bool, Fault> {
        event.wait(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with a driver this opens it; on one without, the answer says what was looked for, and
    /// nothing panics.
    #[test]
    fn a_missing_driver_is_an_answer() {
        match Cuda::device_count() {
            Ok(count) => assert!(count > 0, "a driver without a device answers an error"),
            Err(fault) => assert!(!fault.name.is_empty() && fault.call.len() > 2, "{fault:?}"),
        }
    }
}
