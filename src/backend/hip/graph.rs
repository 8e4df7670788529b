//! Captured work.

use std::fmt;

use super::{
    super::Fault,
    device::HipDevice,
    driver::{Relaxed, call},
    stream::HipStream,
    sys,
};

/// Work of one stream that was captured, and can be enqueued again and again.
pub struct HipGraph {
    device: HipDevice,
    executable: sys::GraphExec,
}

// SAFETY: a handle of the runtime, used by one thread at a time.
unsafe impl Send for HipGraph {}

pub(super) fn begin(stream: &HipStream) -> Result<(), Fault> {
    let handle = stream.here()?;
    let _current = stream.device().enter()?;
    // Other threads may allocate meanwhile.
    let mode = sys::CAPTURE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    unsafe { call!(hipStreamBeginCapture(handle, mode)) }
}

pub(super) fn end(stream: &HipStream) -> Result<HipGraph, Fault> {
    let handle = stream.here()?;
    let current = stream.device().enter();
    let mut graph = std::ptr::null_mut();
    let mut executable = std::ptr::null_mut();
    // SAFETY: locals; the graph is given back once, whatever happens.
    unsafe {
        // First, and whatever is the matter: the stream must not stay as it is.
        call!(hipStreamEndCapture(handle, &raw mut graph))?;
        // This thread may be capturing other ranks' streams, during which the runtime forbids to make a graph.
        let made = match (&current, Relaxed::enter()) {
            (Ok(_), Ok(_relaxed)) => {
                let nothing = (std::ptr::null_mut(), std::ptr::null_mut());
                call!(hipGraphInstantiate(&raw mut executable, graph, nothing.0, nothing.1, 0))
            }
            (Err(fault), _) => Err(fault.clone()),
            (_, Err(fault)) => Err(fault),
        };
        let destroyed = call!(hipGraphDestroy(graph));
        made?;
        let made = HipGraph { device: stream.device().clone(), executable };
        destroyed.map(|()| made)
    }
}

impl HipGraph {
    pub(super) fn launch(&self, stream: &HipStream) -> Result<(), Fault> {
        let handle = stream.here()?;
        let _current = self.device.enter()?;
        // SAFETY: both are alive.
        unsafe { call!(hipGraphLaunch(self.executable, handle)) }
    }
}

impl fmt::Debug for HipGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HipGraph(on device {})", self.device.ordinal())
    }
}

impl Drop for HipGraph {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: it is given back once; launches in flight go on.
            let _ = unsafe { call!(hipGraphExecDestroy(self.executable)) };
        }
    }
}
