//! The C interface. `include/crossccl.h` is made of this file by cbindgen, its comments as well; `scripts/check-capi` compares.
//!
//! NCCL's words, argument order and numbers, so that porting is renaming. A handle stands for one rank, and is a number in a
//! table, never an address: one that was destroyed, or never was, is found missing there. What a call gets is checked before
//! anything happens, and no panic leaves: each entry goes through `outcome::entry`.
//!
//! # Safety
//! Of every function: what a pointer names is valid for what the function reads or writes there, which its comment and the
//! signature say; null and misaligned pointers are answered with an error. Of collectives besides: as for
//! [`RankComm::broadcast_raw`](crate::RankComm::broadcast_raw).

#![allow(unsafe_code)]
// The names are C's.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
// Safety is said once, above, for readers of Rust: the comments of the functions are read in C, where a name says the rest.
#![allow(clippy::missing_safety_doc, missing_docs)]

mod backends;
mod config;
mod group;
mod handle;
mod numbers;
mod outcome;

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    mem::MaybeUninit,
    ptr,
    time::{Duration, Instant},
};

use handle::Handle;
use outcome::{enter, entry, place};

use crate::raw::RawRank;

/// The version of this header. Programs and library must have the first two in common before 1.0, then the first.
pub const CROSSCCL_MAJOR: c_int = 0;
pub const CROSSCCL_MINOR: c_int = 1;
pub const CROSSCCL_PATCH: c_int = 0;
/// What crosscclGetVersion answers: 10000 * major + 100 * minor + patch.
pub const CROSSCCL_VERSION_CODE: c_int = 100;
/// That a configuration was initialized, by CROSSCCL_CONFIG_INITIALIZER.
pub const CROSSCCL_CONFIG_MAGIC: c_uint = 0x0cc1_c0de;

/// What a call answers. Numbers below 16 are NCCL's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum crosscclResult_t {
    /// Done, or enqueued.
    crosscclSuccess = 0,
    /// A driver or the operating system refused something.
    crosscclUnhandledDriverError = 1,
    /// The machine is not fit: devices do not reach each other, or have no memory for signals.
    crosscclSystemError = 2,
    /// A bug of crossccl.
    crosscclInternalError = 3,
    /// An argument is wrong. Nothing was launched (but see crosscclGroupEnd).
    crosscclInvalidArgument = 4,
    /// The call is wrong at this place: a handle in two threads, a group that was not begun. Nothing was launched (but see
    /// crosscclGroupEnd).
    crosscclInvalidUsage = 5,
    /// A rank did not come in time.
    crosscclTimeout = 16,
    /// The ranks called different things.
    crosscclMismatch = 17,
    /// crosscclCommAbort was called.
    crosscclAborted = 18,
    /// An earlier collective failed, and nobody has called crosscclCommReset since. Nothing was launched (but see
    /// crosscclGroupEnd).
    crosscclPoisoned = 19,
    /// Valid, but not offered. Nothing was launched.
    crosscclUnsupported = 20,
    /// The library was built without that backend, or without its kernels.
    crosscclNotCompiled = 21,
    /// No device, or no driver.
    crosscclNoDevice = 22,
    /// A rank that the call needs was destroyed before it made the same call.
    crosscclRankGone = 23,
}

/// Element types, with NCCL's numbers. NCCL's float8 types (10, 11) are answered with crosscclUnsupported.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum crosscclDataType_t {
    crosscclInt8 = 0,
    crosscclUint8 = 1,
    crosscclInt32 = 2,
    crosscclUint32 = 3,
    crosscclInt64 = 4,
    crosscclUint64 = 5,
    crosscclFloat16 = 6,
    crosscclFloat32 = 7,
    crosscclFloat64 = 8,
    crosscclBfloat16 = 9,
}

/// What a reduce-scatter does, with NCCL's numbers; always in the order of the ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum crosscclRedOp_t {
    crosscclSum = 0,
    crosscclProd = 1,
    crosscclMax = 2,
    crosscclMin = 3,
    /// The sum divided by the number of ranks, before the one rounding.
    crosscclAvg = 4,
}

/// Which kind of device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum crosscclBackend_t {
    /// Of the GPU backends that the library was built with, the first that has a device; the CPU where it was built with none.
    /// Never the CPU instead of a GPU.
    crosscclBackendAuto = 0,
    crosscclBackendCpu = 1,
    crosscclBackendCuda = 2,
    crosscclBackendRocm = 3,
}

/// Which peers must have come with the same call before a rank touches anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum crosscclAgreement_t {
    /// Those that it depends on: a broadcast's receiver waits for the root.
    crosscclAgreementDependent = 0,
    /// All: where the ranks disagree, every one fails.
    crosscclAgreementStrict = 1,
}

/// A rank of a communicator. Not an address: what was destroyed, or never was, is answered with an error.
pub struct crosscclComm {
    _private: [u8; 0],
}
pub type crosscclComm_t = *mut crosscclComm;

/// A stream of the rank's device: a cudaStream_t, CUstream or hipStream_t. NULL is the device's default stream, and on the
/// CPU, which has none, the rank's own; there no other exists. It must live until the rank was given another one, or is
/// destroyed. Ranks that share a device need streams that do not wait for each other, so the default stream for one of them at
/// most; a call behind one of a peer that waits for it is refused. A call on a stream that is being captured becomes part of that graph: its replays keep one order with other
/// calls on all ranks, are over before the communicator is reset or destroyed, and crosscclCommGetAsyncError, not
/// crosscclCommSynchronize, tells whether one failed.
pub type crosscclStream_t = *mut c_void;

/// Options of a communicator. Begin with CROSSCCL_CONFIG_INITIALIZER; a field that is left 0 has its default. Fields that
/// later versions append are 0 where they change nothing: a library that does not know one which is set answers an error.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct crosscclConfig_t {
    /// Bytes of this struct, the magic number, and CROSSCCL_VERSION_CODE: by the initializer.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// A crosscclBackend_t.
    pub backend: c_int,
    /// A crosscclAgreement_t.
    pub agreement: c_int,
    /// How long a rank waits for another, in milliseconds; 0 for 30 s, -1 for ever.
    pub timeout_ms: i64,
    /// The most blocks of a launch, up to 128; 0 for that.
    pub max_blocks: c_int,
    /// 1 where ranks may share a device.
    pub virtual_ranks: c_int,
    /// Bytes of each rank's signal buffer for the staged two-stage broadcast; 0 for 2 MiB, -1 for none, without that
    /// algorithm.
    pub payload_bytes: i64,
}

/// The version of the library: see CROSSCCL_VERSION_CODE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclGetVersion(version: *mut c_int) -> crosscclResult_t {
    entry(|| {
        let version = place("crosscclGetVersion", "version", version)?;
        // SAFETY: the caller's promise (see the module).
        unsafe { version.write(CROSSCCL_VERSION_CODE) };
        Ok(())
    })
}

/// What a result means, in general; never NULL. crosscclGetLastError says what happened.
#[unsafe(no_mangle)]
pub extern "C" fn crosscclGetErrorString(result: MaybeUninit<crosscclResult_t>) -> *const c_char {
    numbers::meaning(numbers::number(result)).as_ptr()
}

/// What the last call of this thread that failed had to say: which rank, which argument, what to do; or what
/// crosscclCommGetAsyncError found. Never NULL; valid until the next of either in this thread, or its end. The communicator is
/// ignored, and may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn crosscclGetLastError(comm: crosscclComm_t) -> *const c_char {
    // NCCL's argument.
    let _ = comm;
    outcome::last()
}

/// Makes a communicator of ndev ranks, rank r on the r-th device of devlist (NULL for 0 to ndev - 1), and writes a handle for
/// each rank to comms: NULL where it fails, but for a wrong ndev, with which nothing is written. As crosscclCommInitAllConfig
/// without a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommInitAll(
    comms: *mut crosscclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { init("crosscclCommInitAll", comms, ndev, devlist, ptr::null()) })
}

/// The same with options; NULL for the defaults. Opens the devices, tests that all reach each other, allocates signal buffers,
/// loads every kernel: later calls do none of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommInitAllConfig(
    comms: *mut crosscclComm_t,
    ndev: c_int,
    devlist: *const c_int,
    config: *const crosscclConfig_t,
) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { init("crosscclCommInitAllConfig", comms, ndev, devlist, config) })
}

/// Waits for what this rank enqueued, and ends the handle; with the last rank's, the communicator ends. What does not end by
/// its time limit and 30 s more is aborted, on all ranks; of a rank without a limit, after 30 s. The handle is gone also where
/// the answer is a failure that nobody had asked for, but for crosscclInvalidUsage: another thread is in a call with it, or a
/// group of this thread has a call of its communicator. A rank's buffers are free once every rank of the communicator was
/// destroyed (peers read them). Where a stream does not come to rest, the answer is crosscclAborted with a text that says so,
/// and what that rank's calls touch stays in use until the work in front of them is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommDestroy(comm: crosscclComm_t) -> crosscclResult_t {
    const CALL: &str = "crosscclCommDestroy";
    entry(|| handle::destroy(CALL, comm))
}

/// Ends every wait in flight, of all ranks, with crosscclAborted, within about a millisecond. From any thread. Unlike NCCL's it
/// frees nothing: crosscclCommReset makes the communicator usable again, crosscclCommDestroy ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommAbort(comm: crosscclComm_t) -> crosscclResult_t {
    entry(|| {
        handle::find("crosscclCommAbort", comm)?.abort(crate::Error::Aborted);
        Ok(())
    })
}

/// Writes why the communicator refuses work, crosscclSuccess where it does not, without waiting. From any thread; after a
/// failure its text is this thread's crosscclGetLastError.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommGetAsyncError(
    comm: crosscclComm_t,
    asyncError: *mut crosscclResult_t,
) -> crosscclResult_t {
    const CALL: &str = "crosscclCommGetAsyncError";
    entry(|| {
        let handle = handle::find(CALL, comm)?;
        let place = place(CALL, "asyncError", asyncError)?;
        let result = handle.failure().map_or(crosscclResult_t::crosscclSuccess, |error| outcome::tell(error.into()));
        // SAFETY: the caller's promise (see the module).
        unsafe { place.write(result) };
        Ok(())
    })
}

/// Waits until everything that this rank enqueued is complete, and tells the outcome: an event of the stream passes after a
/// failure as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommSynchronize(comm: crosscclComm_t) -> crosscclResult_t {
    const CALL: &str = "crosscclCommSynchronize";
    entry(|| {
        group::refuse(CALL)?;
        handle::find(CALL, comm)?.with(CALL, |seat| seat.wait())
    })
}

/// Waits for what this rank enqueued, timeout_ms at most (0 only asks), and writes to done: 1 once all of it is
/// complete, else 0. It does not tell the outcome: crosscclCommSynchronize does, at once then. For programs that must
/// look for something else while they wait, for signals say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommWait(comm: crosscclComm_t, timeout_ms: i64, done: *mut c_int) -> crosscclResult_t {
    const CALL: &str = "crosscclCommWait";
    entry(|| {
        let handle = handle::find(CALL, comm)?;
        // Not inside any group: what collects garbage may close another communicator there.
        group::refuse_end_of(CALL, &handle)?;
        let done = place(CALL, "done", done)?;
        let deadline = deadline(CALL, timeout_ms)?;
        let over = handle.with(CALL, |seat| seat.wait_until(deadline))?;
        // SAFETY: the caller's promise (see the module).
        unsafe { done.write(c_int::from(over)) };
        Ok(())
    })
}

/// Makes the communicator usable again after a failure. Every rank's handle must call it, each in a thread of its own; it
/// returns when all have, or after timeout_ms (above 0). Until then buffers of the failed call may still be touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommReset(comm: crosscclComm_t, timeout_ms: i64) -> crosscclResult_t {
    const CALL: &str = "crosscclCommReset";
    entry(|| {
        group::refuse(CALL)?;
        let handle = handle::find(CALL, comm)?;
        let limit = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        let limit =
            limit.ok_or_else(|| crate::collective::invalid(CALL, None, "timeout_ms", "more than 0", timeout_ms))?;
        handle.with(CALL, |seat| seat.reset(limit))
    })
}

/// As crosscclCommReset, but waits timeout_ms at most (0 only asks) and writes to done: 1 once the reset is over, with
/// its outcome as the answer; else 0. Until then the rank counts as there: call this again. crosscclCommReset waits for
/// the last time: where not all ranks come in its time, it answers crosscclTimeout, and the rank is not there any more.
/// In between, the handle takes no collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommResetWait(
    comm: crosscclComm_t,
    timeout_ms: i64,
    done: *mut c_int,
) -> crosscclResult_t {
    const CALL: &str = "crosscclCommResetWait";
    entry(|| {
        group::refuse(CALL)?;
        let handle = handle::find(CALL, comm)?;
        let done = place(CALL, "done", done)?;
        let deadline = deadline(CALL, timeout_ms)?;
        let outcome = handle.with(CALL, |seat| Ok(seat.reset_until(deadline)))?;
        // SAFETY: the caller's promise (see the module).
        unsafe { done.write(c_int::from(!matches!(outcome, Ok(false)))) };
        outcome.map(drop)
    })
}

/// The same as crosscclCommReset in one thread: comms are the ncomm handles of a communicator's ranks, all of them, in
/// any order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommResetAll(comms: *const crosscclComm_t, ncomm: c_int) -> crosscclResult_t {
    const CALL: &str = "crosscclCommResetAll";
    entry(|| {
        group::refuse(CALL)?;
        let comms = place(CALL, "comms", comms.cast_mut())?;
        let ncomm = numbers::ranks(CALL, "ncomm", ncomm)?;
        // SAFETY: the caller's promise (see the module).
        let comms = unsafe { std::slice::from_raw_parts(comms, ncomm) };
        handle::reset_all(CALL, comms)
    })
}

/// Writes the number of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommCount(comm: crosscclComm_t, count: *mut c_int) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { answer("crosscclCommCount", comm, "count", count, |handle| handle.ranks as c_int) })
}

/// Writes the handle's rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommUserRank(comm: crosscclComm_t, rank: *mut c_int) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { answer("crosscclCommUserRank", comm, "rank", rank, |handle| handle.rank as c_int) })
}

/// Writes the number of the rank's device (NCCL: ncclCommCuDevice).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommDevice(comm: crosscclComm_t, device: *mut c_int) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { answer("crosscclCommDevice", comm, "device", device, |handle| handle.device as c_int) })
}

/// Writes on which kind of device it is, for who left the choice to the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommBackend(
    comm: crosscclComm_t,
    backend: *mut crosscclBackend_t,
) -> crosscclResult_t {
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { answer("crosscclCommBackend", comm, "backend", backend, |handle| handle.backend) })
}

/// Writes the rank's own stream, which was made with the communicator and goes with the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclCommStream(comm: crosscclComm_t, stream: *mut crosscclStream_t) -> crosscclResult_t {
    let own = |handle: &Handle| ptr::without_provenance_mut(handle.stream);
    // SAFETY: the caller's promise (see the module).
    entry(|| unsafe { answer("crosscclCommStream", comm, "stream", stream, own) })
}

/// Copies count elements from the root's sendbuff to every rank's recvbuff. Other ranks' sendbuff is ignored; in place where
/// the root's are the same. Only enqueues: crosscclCommSynchronize tells the outcome. Until it is complete, and after a failure
/// until a reset, nobody else uses recvbuff or writes sendbuff; both are memory of the rank's device. Before anything
/// is launched, memory of a pool and memory that a framework maps (cuMemMap, hipMemMap; PyTorch's expandable_segments)
/// is granted to the other ranks' devices. Memory that they cannot reach, managed memory and host memory are
/// crosscclInvalidArgument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: MaybeUninit<crosscclDataType_t>,
    root: c_int,
    comm: crosscclComm_t,
    stream: crosscclStream_t,
) -> crosscclResult_t {
    const CALL: &str = "crosscclBroadcast";
    entry(|| {
        let handle = handle::find(CALL, comm)?;
        let dtype = numbers::dtype(CALL, &handle, numbers::number(datatype))?;
        let root = numbers::root(CALL, &handle, root)?;
        let addresses = RawRank::new(sendbuff.addr() as u64, recvbuff.addr() as u64);
        let stream = stream.addr();
        let prepared = handle.with(CALL, |seat| seat.broadcast(addresses, count as u64, dtype, root, stream))?;
        // SAFETY: the caller's promise (see the module).
        unsafe { group::submit(CALL, handle, prepared, stream) }
    })
}

/// Reduces the ranks' sendbuff, recvcount elements for each rank, and writes part r to recvbuff of rank r: recvcount elements.
/// In place where recvbuff is the rank's part of its sendbuff. Otherwise as crosscclBroadcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosscclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: MaybeUninit<crosscclDataType_t>,
    op: MaybeUninit<crosscclRedOp_t>,
    comm: crosscclComm_t,
    stream: crosscclStream_t,
) -> crosscclResult_t {
    const CALL: &str = "crosscclReduceScatter";
    entry(|| {
        let handle = handle::find(CALL, comm)?;
        let dtype = numbers::dtype(CALL, &handle, numbers::number(datatype))?;
        let op = numbers::op(CALL, &handle, numbers::number(op))?;
        let count = numbers::input_count(CALL, &handle, recvcount, dtype)?;
        let addresses = RawRank::new(sendbuff.addr() as u64, recvbuff.addr() as u64);
        let stream = stream.addr();
        let prepared = handle.with(CALL, |seat| seat.reduce_scatter(addresses, count, dtype, op, stream))?;
        // SAFETY: the caller's promise (see the module).
        unsafe { group::submit(CALL, handle, prepared, stream) }
    })
}

/// Begins a group of this thread's collectives: they are checked at once, and launched together by crosscclGroupEnd. One thread
/// can drive all ranks without one, since collectives only enqueue; with one, nothing is launched where one of them is
/// refused. Groups nest.
#[unsafe(no_mangle)]
pub extern "C" fn crosscclGroupStart() -> crosscclResult_t {
    enter(|| group::start("crosscclGroupStart"))
}

/// Launches the group, in the order of its calls, or answers the first failure of a call since crosscclGroupStart, and then
/// nothing was launched. Otherwise, whatever the answer, some may have been: where one cannot be launched (an earlier collective has
/// failed meanwhile, a handle is in use or gone, the driver refuses), those of its communicator that were launched already
/// are stopped, and buffers stay in use until a reset.
#[unsafe(no_mangle)]
pub extern "C" fn crosscclGroupEnd() -> crosscclResult_t {
    // SAFETY: those who submitted the calls promised it.
    enter(|| unsafe { group::end("crosscclGroupEnd") })
}

/// # Safety
/// See the module.
unsafe fn init(
    call: &'static str,
    comms: *mut crosscclComm_t,
    ndev: c_int,
    devlist: *const c_int,
    config: *const crosscclConfig_t,
) -> outcome::Result<()> {
    let comms = place(call, "comms", comms)?;
    let ranks = numbers::ranks(call, "ndev", ndev)?;
    for rank in 0..ranks {
        // SAFETY: the caller's promise.
        unsafe { comms.add(rank).write(ptr::null_mut()) };
    }
    // SAFETY: as above.
    let devices = unsafe { config::devices(call, devlist, ranks)? };
    // SAFETY: as above.
    let options = unsafe { config::read(call, config)? };
    for (rank, handle) in backends::build(&devices, &options)?.into_iter().enumerate() {
        // SAFETY: as above; there are as many handles as ranks.
        unsafe { comms.add(rank).write(handle::register(handle)) };
    }
    Ok(())
}

/// The end of a wait that a caller limits; `None` for one beyond all times.
fn deadline(call: &'static str, timeout_ms: i64) -> outcome::Result<Option<Instant>> {
    let wrong = |_| crate::collective::invalid(call, None, "timeout_ms", "0 or more", timeout_ms);
    let limit = u64::try_from(timeout_ms).map(Duration::from_millis).map_err(wrong)?;
    Ok(Instant::now().checked_add(limit))
}

/// # Safety
/// See the module.
unsafe fn answer<T>(
    call: &'static str,
    comm: crosscclComm_t,
    argument: &'static str,
    at: *mut T,
    of: impl FnOnce(&Handle) -> T,
) -> outcome::Result<()> {
    let handle = handle::find(call, comm)?;
    let at = place(call, argument, at)?;
    // SAFETY: the caller's promise.
    unsafe { at.write(of(&handle)) };
    Ok(())
}
