//! Captured work.

use std::fmt;

use super::{
    super::Fault,
    device::CudaDevice,
    driver::{Relaxed, call, sys},
    stream::CudaStream,
};

/// Work of one stream that was captured, and can be enqueued again and again.
pub struct CudaGraph {
    device: CudaDevice,
    executable: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for CudaGraph {}

pub(super) fn begin(stream: &CudaStream) -> Result<(), Fault> {
    let handle = stream.here()?;
    let _current = stream.device().enter()?;
    // Other threads may allocate meanwhile.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    unsafe { call!(cuStreamBeginCapture_v2(handle, mode)) }
}

pub(super) fn end(stream: &CudaStream) -> Result<CudaGraph, Fault> {
    let handle = stream.here()?;
    let current = stream.device().enter();
    let mut graph = std::ptr::null_mut();
    let mut executable = std::ptr::null_mut();
    // SAFETY: locals; the graph is given back once, whatever happens.
    unsafe {
        // First, and whatever is the matter: the stream must not stay as it is.
        call!(cuStreamEndCapture(handle, &raw mut graph))?;
        // This thread may be capturing other ranks' streams, during which the driver forbids to make a graph.
        let made = match (&current, Relaxed::enter()) {
            (Ok(_), Ok(_relaxed)) => call!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)),
            (Err(fault), _) => Err(fault.clone()),
            (_, Err(fault)) => Err(fault),
        };
        let destroyed = call!(cuGraphDestroy(graph));
        made?;
        let made = CudaGraph { device: stream.device().clone(), executable };
        destroyed.map(|()| made)
    }
}

impl CudaGraph {
    pub(super) fn launch(&self, stream: &CudaStream) -> Result<(), Fault> {
        let handle = stream.here()?;
        let _current = self.device.enter()?;
        // SAFETY: both are alive.
        unsafe { call!(cuGraphLaunch(self.executable, handle)) }
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaGraph(on device {})", self.device.ordinal())
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: it is given back once; launches in flight go on.
            let _ = unsafe { call!(cuGraphExecDestroy(self.executable)) };
        }
    }
}
