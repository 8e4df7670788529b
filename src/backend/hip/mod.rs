//! AMD devices, through the HIP runtime, loaded at run time: no compiler is needed where this runs, and a machine
//! without ROCm gets an error that says what was looked for.
//!
//! HIP has a current device a thread, where CUDA has contexts: it is set around each entry, and set back.
//!
//! With `HIP_LAUNCH_BLOCKING` or `AMD_SERIALIZE_KERNEL` set, several ranks are refused: one thread could not launch what its
//! first launch waits for.

// First, for its list of functions.
#[macro_use]
mod sys;

mod device;
mod driver;
mod graph;
mod images;
#[cfg(not(feature = "hip-sys"))]
mod library;
mod memory;
mod profiler;
mod stream;

use std::time::{Duration, Instant};

pub use device::{HipDevice, HipFunction};
pub use graph::HipGraph;
pub use stream::{HipEvent, HipStream};

use super::{Backend, Fault, Link, MemoryKind, Profiler, Properties, Unfit, switched_on};
use crate::{abi::Arguments, plan::Kernel};

/// The HIP backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hip;

// SAFETY: the runtime's promises; memory is zeroed before it is handed out; kernels are found by name in images
// that were built with this crate.
unsafe impl Backend for Hip {
    const NAME: &'static str = "hip";
    type Device = HipDevice;
    type Stream = HipStream;
    type Event = HipEvent;
    type Function = HipFunction;
    type Entered = driver::Current;
    type Graph = HipGraph;
    const GRAPHS: bool = true;
    const TIMED: bool = true;

    fn device_count() -> Result<usize, Fault> {
        HipDevice::count()
    }

    fn open(ordinal: usize) -> Result<HipDevice, Fault> {
        HipDevice::open(ordinal)
    }

    fn ordinal(device: &HipDevice) -> usize {
        device.ordinal()
    }

    fn properties(device: &HipDevice, _ranks: usize, sharing: usize) -> Result<Properties, Fault> {
        device.properties(sharing)
    }

    fn can_access_peer(from: &HipDevice, to: &HipDevice) -> Result<bool, Fault> {
        from.can_access(to)
    }

    fn link(from: &HipDevice, to: &HipDevice) -> Result<Link, Fault> {
        from.link(to)
    }

    fn enable_peer_access(from: &HipDevice, to: &HipDevice) -> Result<(), Fault> {
        from.enable_access(to)
    }

    fn check_memory(device: &HipDevice, peers: &[&HipDevice], address: u64, bytes: usize) -> Result<(), Unfit> {
        memory::check(device, peers, address, bytes)
    }

    fn allocate(device: &HipDevice, kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        match kind {
            MemoryKind::Device | MemoryKind::Signal => memory::allocate(device, kind, bytes),
            MemoryKind::Host => memory::allocate_host(device, bytes),
        }
    }

    unsafe fn free(device: &HipDevice, kind: MemoryKind, address: u64, bytes: usize) {
        match kind {
            MemoryKind::Device | MemoryKind::Signal => memory::free(device, kind, address),
            MemoryKind::Host => memory::free_host(address, bytes),
        }
    }

    fn load(device: &HipDevice) -> Result<Vec<HipFunction>, Fault> {
        device.load()
    }

    fn resident_blocks(device: &HipDevice, function: HipFunction) -> Result<u32, Fault> {
        device.resident_blocks(function)
    }

    fn enter(device: &HipDevice) -> Result<driver::Current, Fault> {
        device.enter()
    }

    fn create_stream(device: &HipDevice) -> Result<HipStream, Fault> {
        HipStream::new(device)
    }

    fn serialized(one: &HipStream, other: &HipStream) -> Result<bool, Fault> {
        Ok(one == other || one.is_legacy_beside(other)? || other.is_legacy_beside(one)?)
    }

    fn blocking_launches() -> Option<String> {
        switched_on(&["HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"])
    }

    fn device_of(stream: &HipStream) -> HipDevice {
        stream.device().clone()
    }

    fn ordinal_of(stream: &HipStream) -> Result<usize, Fault> {
        stream.ordinal()
    }

    unsafe fn launch(
        stream: &HipStream,
        _kernel: Kernel,
        function: HipFunction,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault> {
        stream.launch(function, blocks, arguments)
    }

    unsafe fn copy(stream: &HipStream, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { stream.copy(to, from, bytes) }
    }

    unsafe fn fill(stream: &HipStream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { stream.fill(to, byte, bytes) }
    }

    fn record(stream: &HipStream) -> Result<HipEvent, Fault> {
        stream.record()
    }

    fn record_timed(stream: &HipStream) -> Result<HipEvent, Fault> {
        stream.record_timed()
    }

    fn elapsed(from: &HipEvent, to: &HipEvent) -> Result<Duration, Fault> {
        from.elapsed(to)
    }

    fn wait_event(stream: &HipStream, event: &HipEvent) -> Result<(), Fault> {
        stream.wait_event(event)
    }

    fn is_capturing(stream: &HipStream) -> Result<bool, Fault> {
        stream.is_capturing()
    }

    fn begin_capture(stream: &HipStream) -> Result<(), Fault> {
        graph::begin(stream)
    }

    fn end_capture(stream: &HipStream) -> Result<HipGraph, Fault> {
        graph::end(stream)
    }

    unsafe fn launch_graph(stream: &HipStream, graph: &HipGraph) -> Result<(), Fault> {
        graph.launch(stream)
    }

    fn profiler() -> Option<&'static dyn Profiler> {
        profiler::profiler()
    }

    fn wait(event: &HipEvent, deadline: Option<Instant>) -> Result<bool, Fault> {
        event.wait(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with a runtime this opens it; on one without, the answer says what was looked for, and
    /// nothing panics.
    #[test]
    fn a_missing_driver_is_an_answer() {
        match Hip::device_count() {
            Ok(count) => assert!(count > 0, "a runtime without a device answers an error"),
            Err(fault) => assert!(!fault.name.is_empty() && fault.call.len() > 2, "{fault:?}"),
        }
    }
}
