//! The C interface, through its functions. What only a C program can do is in `capi/misuse.c`; `scripts/check-capi` runs both.
#![cfg(all(feature = "capi", feature = "cpu", not(crossccl_no_kernels)))]
#![allow(missing_docs)]
// That is what stamping is.
#![allow(clippy::duplicate_mod)]

#[cfg(any(feature = "cuda", feature = "rocm"))]
#[path = "support/mapped_memory.rs"]
mod mapped_memory;
#[cfg(any(feature = "cuda", feature = "rocm"))]
mod support;

use std::{
    ffi::{CStr, c_int, c_void},
    mem::MaybeUninit,
    ptr,
    time::{Duration, Instant},
};

use crossccl::{
    DType, ReduceOp,
    capi::{
        crosscclAgreement_t::*,
        crosscclBackend_t::*,
        crosscclDataType_t::*,
        crosscclRedOp_t::*,
        crosscclResult_t::{self, *},
        *,
    },
};

/// For tests of ranks that stay away.
const LIMIT_MS: i64 = 100;

fn last() -> String {
    // SAFETY: it is this thread's, and copied before the next call.
    unsafe { CStr::from_ptr(crosscclGetLastError(ptr::null_mut())) }.to_str().expect("UTF-8").to_owned()
}

#[track_caller]
fn ok(result: crosscclResult_t) {
    assert_eq!(result, crosscclSuccess, "{}", last());
}

/// It failed so, with exactly this text.
#[track_caller]
fn fails(result: crosscclResult_t, with: crosscclResult_t, text: &str) {
    assert_eq!((result, last().as_str()), (with, text));
}

fn config() -> crosscclConfig_t {
    crosscclConfig_t {
        size: size_of::<crosscclConfig_t>(),
        magic: CROSSCCL_CONFIG_MAGIC,
        version: CROSSCCL_VERSION_CODE as _,
        backend: crosscclBackendCpu as c_int,
        agreement: 0,
        timeout_ms: 20_000,
        max_blocks: 0,
        virtual_ranks: 0,
        payload_bytes: 0,
    }
}

/// The handles of a communicator, as addresses, so that threads can have them.
struct Comms(Vec<usize>);

impl Comms {
    fn new(ranks: usize, config: &crosscclConfig_t) -> Self {
        let mut comms = vec![ptr::null_mut(); ranks];
        // SAFETY: as many as said.
        ok(unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), ranks as c_int, ptr::null(), config) });
        Comms(comms.into_iter().map(|comm: crosscclComm_t| comm.addr()).collect())
    }

    fn with_limit(ranks: usize) -> Self {
        Comms::new(ranks, &crosscclConfig_t { timeout_ms: LIMIT_MS, ..config() })
    }

    fn rank(&self, rank: usize) -> crosscclComm_t {
        ptr::without_provenance_mut(self.0[rank])
    }

    fn abort(&self) {
        // SAFETY: any handle is fine.
        ok(unsafe { crosscclCommAbort(self.rank(0)) });
    }

    fn reset(&self) -> crosscclResult_t {
        let comms: Vec<crosscclComm_t> = (0..self.0.len()).map(|rank| self.rank(rank)).collect();
        // SAFETY: as many as said.
        unsafe { crosscclCommResetAll(comms.as_ptr(), comms.len() as c_int) }
    }
}

impl Drop for Comms {
    fn drop(&mut self) {
        for rank in 0..self.0.len() {
            // SAFETY: any handle is fine.
            unsafe { crosscclCommDestroy(self.rank(rank)) };
        }
    }
}

/// A value of an enum that C may pass, valid or not.
fn number<T>(number: c_int) -> MaybeUninit<T> {
    assert_eq!(size_of::<T>(), size_of::<c_int>());
    // SAFETY: of the same size; nobody takes it for a `T`.
    unsafe { std::mem::transmute_copy(&number) }
}

/// Elements of what the tests broadcast.
const SLICE: usize = 1000;

/// Of bytes, from rank 1.
fn broadcast(send: &[u8; SLICE], recv: &mut [u8; SLICE], comm: crosscclComm_t) -> crosscclResult_t {
    let (send, recv) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
    // SAFETY: as long as said; callers wait before they go on.
    unsafe { raw_broadcast(send, recv, SLICE, crosscclUint8 as c_int, 1, comm) }
}

unsafe fn raw_broadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: crosscclComm_t,
) -> crosscclResult_t {
    // SAFETY: the caller's promise.
    unsafe { crosscclBroadcast(send, recv, count, number(dtype), root, comm, ptr::null_mut()) }
}

unsafe fn raw_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recvcount: usize,
    dtype: c_int,
    op: c_int,
    comm: crosscclComm_t,
) -> crosscclResult_t {
    // SAFETY: the caller's promise.
    unsafe { crosscclReduceScatter(send, recv, recvcount, number(dtype), number(op), comm, ptr::null_mut()) }
}

fn synchronize(comm: crosscclComm_t) -> crosscclResult_t {
    // SAFETY: any handle is fine.
    unsafe { crosscclCommSynchronize(comm) }
}

fn async_error(comm: crosscclComm_t) -> crosscclResult_t {
    let mut result = crosscclInternalError;
    // SAFETY: a local.
    ok(unsafe { crosscclCommGetAsyncError(comm, &raw mut result) });
    result
}

/// One broadcast of all ranks from this thread, from rank 1.
#[track_caller]
fn goes_on(comms: &Comms) {
    let mut data: Vec<Vec<u32>> = (0..comms.0.len()).map(|rank| vec![rank as u32; SLICE]).collect();
    for (rank, data) in data.iter_mut().enumerate() {
        let at = data.as_mut_ptr();
        // SAFETY: in place; waited for below.
        ok(unsafe { raw_broadcast(at.cast(), at.cast(), SLICE, crosscclUint32 as c_int, 1, comms.rank(rank)) });
    }
    (0..data.len()).for_each(|rank| ok(synchronize(comms.rank(rank))));
    assert!(data.iter().all(|data| *data == [1; SLICE]));
}

/// The numbers of `nccl.h` 2.29: what porting by renaming relies on. The table that they are compared with is `DType`'s and
/// `ReduceOp`'s own.
#[test]
fn numbers_are_nccls() {
    let dtypes = [
        (0, "i8"),
        (1, "u8"),
        (2, "i32"),
        (3, "u32"),
        (4, "i64"),
        (5, "u64"),
        (6, "f16"),
        (7, "f32"),
        (8, "f64"),
        (9, "bf16"),
    ];
    let mut ours: Vec<_> = DType::ALL.map(|dtype| (dtype as u8, dtype.name())).into();
    ours.sort();
    assert_eq!(ours, dtypes);
    let ops = [(0, "sum"), (1, "product"), (2, "max"), (3, "min"), (4, "average")];
    let mut ours: Vec<_> = ReduceOp::ALL.map(|op| (op as u8, op.name())).into();
    ours.sort();
    assert_eq!(ours, ops);
    let results = [
        crosscclSuccess,
        crosscclUnhandledDriverError,
        crosscclSystemError,
        crosscclInternalError,
        crosscclInvalidArgument,
        crosscclInvalidUsage,
    ];
    assert_eq!(results.map(|result| result as c_int), [0, 1, 2, 3, 4, 5]);
}

/// Every dtype arrives as itself: a broadcast has its size, a sum its arithmetic.
#[test]
fn every_dtype_and_operation() {
    let comms = Comms::new(2, &config());
    for dtype in DType::ALL {
        // 1 and 2 on the ranks, 3 as their sum, in the bytes of the dtype.
        let of = |value: u8| -> Vec<u8> {
            match dtype {
                DType::F16 => crossccl::half::f16::from_f32(value.into()).to_ne_bytes().into(),
                DType::BF16 => crossccl::half::bf16::from_f32(value.into()).to_ne_bytes().into(),
                DType::F32 => f32::from(value).to_ne_bytes().into(),
                DType::F64 => f64::from(value).to_ne_bytes().into(),
                _ => u64::from(value).to_ne_bytes()[..dtype.size()].into(),
            }
        };
        let expected = [(ReduceOp::Sum, 5), (ReduceOp::Product, 6), (ReduceOp::Max, 3), (ReduceOp::Min, 2)];
        for (op, value) in expected {
            // Aligned for any of them.
            let mut data = [[0u64; 200]; 4];
            let bytes = |words: &mut [u64; 200]| words.as_mut_ptr().cast::<u8>();
            for (rank, value) in [(0, 2), (1, 3)] {
                let input = of(value).repeat(200);
                // SAFETY: 200 elements of at most 8 bytes.
                unsafe { bytes(&mut data[rank]).copy_from(input.as_ptr(), input.len()) };
            }
            for rank in 0..2 {
                let (send, recv) = (bytes(&mut data[rank]), bytes(&mut data[2 + rank]));
                let (dtype, op) = (dtype as c_int, op as c_int);
                // SAFETY: 2 times 100 elements in, 100 out.
                ok(unsafe { raw_reduce_scatter(send.cast(), recv.cast(), 100, dtype, op, comms.rank(rank)) });
            }
            (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
            for out in &mut data[2..] {
                // SAFETY: within the array.
                let got = unsafe { std::slice::from_raw_parts(bytes(out), 100 * dtype.size()) };
                assert_eq!(got, of(value).repeat(100), "{dtype} {op}");
                assert!(
                    out[100 * dtype.size() / 8..].iter().skip(1).all(|word| *word == 0),
                    "{dtype}: beyond its part"
                );
            }
        }
    }
}

#[test]
fn a_thread_a_rank_and_in_place() {
    let comms = Comms::new(3, &config());
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let comms = &comms;
            scope.spawn(move || {
                let comm = comms.rank(rank);
                for call in 0..50 {
                    let mut data: Vec<i32> = (0..3 * 100).map(|i| i + rank as i32 + call).collect();
                    let at = data.as_mut_ptr();
                    // SAFETY: recvbuff is the rank's part of sendbuff; waited for below.
                    ok(unsafe {
                        raw_reduce_scatter(
                            at.cast(),
                            at.add(100 * rank).cast(),
                            100,
                            crosscclInt32 as c_int,
                            crosscclSum as c_int,
                            comm,
                        )
                    });
                    ok(synchronize(comm));
                    let sums: Vec<i32> = (0..300).map(|i| 3 * (i + call) + 3).collect();
                    assert_eq!(data[100 * rank..][..100], sums[100 * rank..][..100]);
                }
            });
        }
    });
}

#[test]
fn what_a_handle_knows() {
    let mut comms = [ptr::null_mut(); 3];
    let devices = [5, 0, 7];
    // SAFETY: as many as said.
    ok(unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), 3, devices.as_ptr(), &config()) });
    let comms = Comms(comms.iter().map(|comm: &crosscclComm_t| comm.addr()).collect());
    for (rank, expected) in devices.into_iter().enumerate() {
        let (mut count, mut own, mut device) = (-1, -1, -1);
        // SAFETY: locals.
        unsafe {
            ok(crosscclCommCount(comms.rank(rank), &raw mut count));
            ok(crosscclCommUserRank(comms.rank(rank), &raw mut own));
            ok(crosscclCommDevice(comms.rank(rank), &raw mut device));
        }
        assert_eq!((count, own, device), (3, rank as c_int, expected));
        let mut backend = crosscclBackendAuto;
        // SAFETY: a local.
        ok(unsafe { crosscclCommBackend(comms.rank(rank), &raw mut backend) });
        assert_eq!(backend, crosscclBackendCpu);
    }
    let mut version = 0;
    // SAFETY: a local.
    ok(unsafe { crosscclGetVersion(&raw mut version) });
    let parts: Vec<c_int> = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().expect("a number")).collect();
    assert_eq!(version, parts[0] * 10_000 + parts[1] * 100 + parts[2]);
}

/// A rank that stays away is named, to whoever waits and to whoever only looks.
#[test]
fn a_missing_rank() {
    let comms = Comms::with_limit(3);
    assert_eq!(async_error(comms.rank(2)), crosscclSuccess);
    let mut data = [[7u8; SLICE], [0; SLICE]];
    let [input, output] = &mut data;
    ok(broadcast(input, output, comms.rank(0)));
    assert_eq!(synchronize(comms.rank(0)), crosscclTimeout);
    let text = last();
    assert!(text.starts_with("broadcast number 1 on rank 0: waited") && text.contains("for ranks 1, 2 ("), "{text}");
    // Again, until a reset.
    assert_eq!((synchronize(comms.rank(0)), last()), (crosscclTimeout, text.clone()));
    assert_eq!((async_error(comms.rank(2)), last()), (crosscclTimeout, text.clone()));
    let refused = broadcast(input, output, comms.rank(1));
    fails(
        refused,
        crosscclPoisoned,
        &format!("the communicator refuses work since an earlier collective failed: {text}"),
    );
    ok(comms.reset());
    assert_eq!(async_error(comms.rank(0)), crosscclSuccess);
    ok(synchronize(comms.rank(0)));
    goes_on(&comms);
}

/// Nobody waits for the call that fails: who waits for a later one is told of it all the same.
#[test]
fn an_earlier_failure_is_told() {
    let comms = Comms::with_limit(2);
    let mut data = [[0u8; SLICE]; 3];
    let [input, first, second] = &mut data;
    ok(broadcast(input, first, comms.rank(0)));
    ok(broadcast(input, second, comms.rank(0)));
    assert_eq!(synchronize(comms.rank(0)), crosscclTimeout);
    assert!(last().starts_with("broadcast number 1 on rank 0"), "{}", last());
    ok(comms.reset());
    goes_on(&comms);
}

#[test]
fn a_disagreement() {
    let strict = crosscclAgreementStrict as c_int;
    let comms = Comms::new(2, &crosscclConfig_t { agreement: strict, ..config() });
    assert_ne!(strict, crosscclAgreementDependent as c_int);
    let mut data = [[1u8; SLICE], [2; SLICE]];
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = data
            .iter_mut()
            .enumerate()
            .map(|(rank, data)| {
                let comms = &comms;
                scope.spawn(move || {
                    let at = data.as_mut_ptr();
                    let comm = comms.rank(rank);
                    // SAFETY: in place, waited for.
                    ok(unsafe { raw_broadcast(at.cast(), at.cast(), SLICE, 1, rank as c_int, comm) });
                    (synchronize(comm), last())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    let text = "broadcast: the ranks disagree on root: rank 0 has 0, rank 1 has 1; call reset on all ranks to go on";
    for (result, told) in results {
        assert_eq!((result, told.as_str()), (crosscclMismatch, text));
    }
    assert_eq!(data, [[1; SLICE], [2; SLICE]]);
    ok(comms.reset());
    goes_on(&comms);
}

#[test]
fn an_abort_ends_a_wait_of_another_thread() {
    let comms = Comms::new(2, &crosscclConfig_t { timeout_ms: -1, ..config() });
    let mut data = [[0u8; SLICE]; 2];
    let [input, output] = &mut data;
    ok(broadcast(input, output, comms.rank(0)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| (synchronize(comms.rank(0)), last()));
        std::thread::sleep(Duration::from_millis(50));
        // The handle is in use, and says so.
        fails(
            synchronize(comms.rank(0)),
            crosscclInvalidUsage,
            "crosscclCommSynchronize: another thread is in a call with the handle of rank 0; use it in one at a time",
        );
        fails(
            comms.reset(),
            crosscclInvalidUsage,
            "crosscclCommResetAll: another thread is in a call with the handle of rank 0; use it in one at a time",
        );
        assert_eq!(async_error(comms.rank(0)), crosscclSuccess);
        // SAFETY: any handle is fine.
        ok(unsafe { crosscclCommAbort(comms.rank(1)) });
        let (result, text) = waits.join().expect("no panic");
        assert_eq!((result, text.as_str()), (crosscclAborted, "aborted; call reset on all ranks to go on"));
    });
    assert_eq!(async_error(comms.rank(0)), crosscclAborted);
    ok(comms.reset());
    goes_on(&comms);
}

#[test]
fn a_reset_by_a_thread_a_rank() {
    let comms = Comms::with_limit(3);
    // SAFETY: any handle is fine.
    let reset = |rank: usize, limit: i64| unsafe { crosscclCommReset(comms.rank(rank), limit) };
    // SAFETY: as above.
    ok(unsafe { crosscclCommAbort(comms.rank(0)) });
    // Alone it waits for the others, and names them.
    assert_eq!(reset(2, 20), crosscclTimeout);
    assert!(last().contains("for ranks 0, 1"), "{}", last());
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let reset = &reset;
            scope.spawn(move || ok(reset(rank, 10_000)));
        }
    });
    goes_on(&comms);
}

/// A wait that its caller limits, for whoever has to look for something else in between (case: Ctrl-C in Python).
#[test]
fn waits_in_slices() {
    let comms = Comms::with_limit(2);
    // SAFETY: any handle is fine; a local.
    let wait = |rank: usize, limit: i64| unsafe {
        let mut done = -1;
        (crosscclCommWait(comms.rank(rank), limit, &raw mut done), done)
    };
    assert_eq!(wait(0, 0), (crosscclSuccess, 1));
    let mut data = [[1u8; SLICE], [2; SLICE]];
    let [input, output] = &mut data;
    ok(broadcast(input, output, comms.rank(0)));
    let begin = Instant::now();
    assert_eq!(wait(0, 0), (crosscclSuccess, 0));
    assert_eq!(wait(0, 10), (crosscclSuccess, 0));
    assert!(begin.elapsed() >= Duration::from_millis(10));
    // It tells that the call is over, not how: `synchronize` does, and `destroy` where nobody asks.
    assert_eq!(wait(0, 20_000), (crosscclSuccess, 1));
    assert_eq!(wait(0, 0), (crosscclSuccess, 1));
    assert_eq!(synchronize(comms.rank(0)), crosscclTimeout);
    ok(comms.reset());
    goes_on(&comms);
    let (call, comm) = ("crosscclCommWait", comms.rank(0));
    let mut done = -1;
    // SAFETY: as above.
    unsafe {
        let text = format!("{call}: timeout_ms: expected 0 or more, got -1");
        fails(crosscclCommWait(comm, -1, &raw mut done), crosscclInvalidArgument, &text);
        let text = format!("{call}: done: expected an address aligned to 4 bytes, got null");
        fails(crosscclCommWait(comm, 0, ptr::null_mut()), crosscclInvalidArgument, &text);
        ok(crosscclGroupStart());
        let [input, output] = &mut data;
        ok(broadcast(input, output, comm));
        assert_eq!(crosscclCommWait(comm, 0, &raw mut done), crosscclInvalidUsage);
        assert_eq!(done, -1);
        assert_eq!(crosscclGroupEnd(), crosscclInvalidUsage);
        // A group of another communicator does not wait for it.
        ok(crosscclGroupStart());
        ok(crosscclCommWait(comm, 0, &raw mut done));
        ok(crosscclGroupEnd());
    }
    assert_eq!(wait(0, i64::MAX), (crosscclSuccess, 1));
}

/// A rank is there from its first slice on: between two of them it is not found missing.
#[test]
fn a_reset_in_slices() {
    let comms = Comms::with_limit(2);
    // SAFETY: any handle is fine; a local.
    let slice = |rank: usize, limit: i64| unsafe {
        let mut done = -1;
        (crosscclCommResetWait(comms.rank(rank), limit, &raw mut done), done)
    };
    // SAFETY: any handle is fine.
    let reset = |rank: usize| unsafe { crosscclCommReset(comms.rank(rank), 10) };
    let mut data = [[1u8; SLICE], [2; SLICE]];
    for round in 0..2 {
        comms.abort();
        assert_eq!(slice(0, 0), (crosscclSuccess, 0));
        assert_eq!(slice(0, 10), (crosscclSuccess, 0));
        let [input, output] = &mut data;
        assert_eq!(broadcast(input, output, comms.rank(0)), crosscclInvalidUsage);
        assert!(last().contains("rank 0 is in a reset"), "{}", last());
        if round == 0 {
            // The last of all does it, and none of them waits for it.
            assert_eq!(slice(1, 0), (crosscclSuccess, 1));
            assert_eq!(slice(0, 0), (crosscclSuccess, 1));
        } else {
            ok(reset(1));
            ok(reset(0));
        }
        goes_on(&comms);
    }
    // It leaves by its last wait, and nobody finds it there afterwards.
    comms.abort();
    assert_eq!(slice(0, 0), (crosscclSuccess, 0));
    assert_eq!(reset(0), crosscclTimeout);
    assert!(last().contains("for rank 1"), "{}", last());
    assert_eq!(reset(1), crosscclTimeout);
    assert!(last().contains("for rank 0"), "{}", last());
    // A reset of all handles at once leaves none behind in the other.
    assert_eq!(slice(0, 0), (crosscclSuccess, 0));
    ok(comms.reset());
    goes_on(&comms);
    assert_eq!(reset(1), crosscclTimeout);
    assert!(last().contains("for rank 0"), "{}", last());
    let text = "crosscclCommResetWait: timeout_ms: expected 0 or more, got -1";
    assert_eq!((slice(0, -1), last().as_str()), ((crosscclInvalidArgument, -1), text));
    // Nor does the end of a handle.
    assert_eq!(slice(1, 0), (crosscclSuccess, 0));
}

/// All of a group is launched, or nothing.
#[test]
fn groups() {
    let comms = Comms::with_limit(2);
    let mut data = [[1u32; SLICE], [2; SLICE]];
    let group = |data: &mut [[u32; SLICE]; 2], count: [usize; 2], null: bool| {
        ok(crosscclGroupStart());
        ok(crosscclGroupStart());
        let mut last = crosscclSuccess;
        for rank in 0..2 {
            let at = data[rank].as_mut_ptr();
            let to = if null && rank == 1 { ptr::null_mut() } else { at };
            let dtype = crosscclUint32 as c_int;
            // SAFETY: in place; waited for.
            last = unsafe { raw_broadcast(at.cast(), to.cast(), count[rank], dtype, 1, comms.rank(rank)) };
        }
        ok(crosscclGroupEnd());
        last
    };
    ok(group(&mut data, [SLICE; 2], false));
    // The inner group's end launches nothing.
    std::thread::sleep(Duration::from_millis(2 * LIMIT_MS as u64));
    assert_eq!((data[0], async_error(comms.rank(0))), ([1; SLICE], crosscclSuccess));
    fails(
        synchronize(comms.rank(0)),
        crosscclInvalidUsage,
        "crosscclCommSynchronize: not inside a group, whose calls are launched by crosscclGroupEnd; call it afterwards",
    );
    // That was a failure inside the group.
    assert_eq!(crosscclGroupEnd(), crosscclInvalidUsage);
    ok(synchronize(comms.rank(0)));
    assert_eq!(data[0], [1; SLICE]);

    ok(group(&mut data, [SLICE; 2], false));
    ok(crosscclGroupEnd());
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    assert_eq!(data, [[2; SLICE]; 2]);

    let text = "crosscclBroadcast: recvbuff of rank 1: expected an address for 4000 bytes, got null";
    fails(group(&mut data, [SLICE; 2], true), crosscclInvalidArgument, text);
    fails(crosscclGroupEnd(), crosscclInvalidArgument, text);
    ok(synchronize(comms.rank(0)));
    fails(
        crosscclGroupEnd(),
        crosscclInvalidUsage,
        "crosscclGroupEnd: no group of this thread was begun; call crosscclGroupStart first",
    );
    goes_on(&comms);
}

/// What cannot be launched at a group's end is not waited for by those that were; others are left alone.
/// Who collects garbage cannot choose when.
#[test]
fn a_handle_may_end_in_a_group_of_another_communicator() {
    let comms = Comms::new(2, &config());
    let other = Comms::new(2, &config());
    let mut data = [[1u32; SLICE], [2; SLICE]];
    ok(crosscclGroupStart());
    let mut enqueue = |rank: usize| {
        let at = data[rank].as_mut_ptr();
        // SAFETY: in place; waited for.
        ok(unsafe { raw_broadcast(at.cast(), at.cast(), SLICE, crosscclUint32 as c_int, 1, comms.rank(rank)) });
    };
    enqueue(0);
    // SAFETY: any handle is fine.
    ok(unsafe { crosscclCommDestroy(other.rank(0)) });
    enqueue(1);
    ok(crosscclGroupEnd());
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    assert_eq!(data, [[2; SLICE]; 2]);

    // One that has calls in it is still there.
    ok(crosscclGroupStart());
    let mut more = [3u32; SLICE];
    let at = more.as_mut_ptr();
    // SAFETY: never launched.
    ok(unsafe { raw_broadcast(at.cast(), at.cast(), SLICE, crosscclUint32 as c_int, 1, comms.rank(0)) });
    let text =
        "crosscclCommDestroy: not inside a group, whose calls are launched by crosscclGroupEnd; call it afterwards";
    // SAFETY: any handle is fine.
    fails(unsafe { crosscclCommDestroy(comms.rank(1)) }, crosscclInvalidUsage, text);
    fails(crosscclGroupEnd(), crosscclInvalidUsage, text);
    ok(synchronize(comms.rank(1)));
}

const GONE: &str = "broadcast on rank 0: rank 1 is gone (its handle was dropped); groups without it can go on, after a reset by \
                    all handles that are left; for others build a new communicator";

/// A rank that is destroyed while another waits for it ends that wait by name, and the handles that are left can be reset.
#[test]
fn a_rank_that_is_destroyed_is_named() {
    let comms = Comms::new(2, &config());
    let [input, mut output] = [[1u8; SLICE]; 2];
    ok(broadcast(&input, &mut output, comms.rank(0)));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| (synchronize(comms.rank(0)), last()));
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: any handle is fine.
        ok(unsafe { crosscclCommDestroy(comms.rank(1)) });
        assert_eq!(thread.join().expect("no panic"), (crosscclRankGone, GONE.to_owned()));
    });
    assert!(begin.elapsed() < Duration::from_secs(10), "it waited for the limit");
    let left = [comms.rank(0)];
    // SAFETY: as many as said.
    ok(unsafe { crosscclCommResetAll(left.as_ptr(), 1) });
    fails(broadcast(&input, &mut output, comms.rank(0)), crosscclRankGone, GONE);
    assert_eq!(async_error(comms.rank(0)), crosscclSuccess);
}

/// A group speaks for all its ranks: what each of them may ask alone, and not all together, is refused before anything is
/// launched. (It gave wrong results without an error.)
#[test]
fn a_group_refuses_what_its_ranks_cannot_do_together() {
    let comms = Comms::new(2, &config());
    let mut data = vec![0u32; 3 * SLICE];
    let at = |element: usize| data.as_ptr().wrapping_add(element).cast_mut();
    let group = |calls: [(usize, usize); 2], count: [usize; 2], root: [c_int; 2]| {
        ok(crosscclGroupStart());
        for rank in 0..2 {
            let (send, recv) = (at(calls[rank].0).cast(), at(calls[rank].1).cast());
            let dtype = crosscclUint32 as c_int;
            // SAFETY: waited for, where it is launched at all.
            ok(unsafe { raw_broadcast(send, recv, count[rank], dtype, root[rank], comms.rank(rank)) });
        }
        crosscclGroupEnd()
    };
    let apart = [(0, 0), (0, SLICE)];
    ok(group(apart, [SLICE; 2], [0, 0]));
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    // Rank 1's output lies in what rank 0 sends, or is rank 0's.
    for (calls, with) in
        [([(0, 0), (0, SLICE / 2)], "the output of rank 0"), ([(0, SLICE), (0, SLICE)], "the output of rank 0")]
    {
        let result = group(calls, [SLICE; 2], [0, 0]);
        let text = last();
        assert_eq!(result, crosscclInvalidArgument, "{text}");
        let expected = format!("crosscclBroadcast: recvbuff of rank 1: expected no overlap with {with}");
        assert!(text.starts_with(&expected), "{text}");
    }
    fails(
        group(apart, [SLICE, SLICE - 1], [0, 0]),
        crosscclInvalidArgument,
        "crosscclBroadcast: count of rank 1: expected 1000 elements, as rank 0, got 999",
    );
    fails(
        group(apart, [SLICE; 2], [0, 1]),
        crosscclInvalidArgument,
        "crosscclBroadcast: root of rank 1: expected 0, as rank 0, got 1",
    );
    // Nothing was launched: no rank waits, and nothing is to be reset.
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    // A rank may be one call ahead when the group begins: its calls meet those of the same number.
    // SAFETY: waited for.
    ok(unsafe { raw_broadcast(at(0).cast(), at(0).cast(), SLICE, crosscclUint32 as c_int, 0, comms.rank(0)) });
    ok(crosscclGroupStart());
    for (rank, count) in [(0, 10), (1, SLICE), (1, 10)] {
        let (send, recv) = (at(0).cast(), at(rank * SLICE).cast());
        // SAFETY: as above.
        ok(unsafe { raw_broadcast(send, recv, count, crosscclUint32 as c_int, 0, comms.rank(rank)) });
    }
    ok(crosscclGroupEnd());
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    data.clear();
}

#[test]
fn a_group_whose_end_fails() {
    let comms = Comms::new(2, &config());
    let other = Comms::new(2, &config());
    let mut data = [[1u32; SLICE], [2; SLICE]];
    ok(crosscclGroupStart());
    for (rank, data) in data.iter_mut().enumerate() {
        let at = data.as_mut_ptr();
        // SAFETY: in place; waited for.
        ok(unsafe { raw_broadcast(at.cast(), at.cast(), SLICE, crosscclUint32 as c_int, 1, comms.rank(rank)) });
    }
    let [mut input, mut output] = [[0u8; SLICE]; 2];
    ok(broadcast(&input, &mut output, other.rank(0)));
    // Of another thread, which is in no group.
    std::thread::scope(|scope| {
        // SAFETY: any handle is fine.
        scope.spawn(|| ok(unsafe { crosscclCommDestroy(comms.rank(1)) })).join().expect("no panic");
    });
    let begin = Instant::now();
    fails(crosscclGroupEnd(), crosscclRankGone, GONE);
    // Nothing was launched.
    ok(synchronize(comms.rank(0)));
    assert!(begin.elapsed() < Duration::from_secs(10), "it waited for the limit");
    assert_eq!(data, [[1; SLICE], [2; SLICE]]);
    // Of this one nothing was launched.
    assert_eq!(async_error(other.rank(0)), crosscclSuccess);
    input.fill(3);
    let mut copy = input;
    ok(broadcast(&input, &mut output, other.rank(0)));
    ok(broadcast(&input, &mut copy, other.rank(1)));
    (0..2).for_each(|rank| ok(synchronize(other.rank(rank))));
    assert_eq!(output, [3; SLICE]);
}

#[test]
fn bad_arguments_by_their_exact_words() {
    let comms = Comms::new(2, &config());
    let comm = comms.rank(1);
    let mut data = [0u64; 100];
    let at: *mut c_void = data.as_mut_ptr().cast();
    let f32 = crosscclFloat32 as c_int;
    // SAFETY: refused before anything is touched.
    let broadcast = |send, recv, count, dtype, root| unsafe { raw_broadcast(send, recv, count, dtype, root, comm) };
    let refused = |result, text: &str| fails(result, crosscclInvalidArgument, text);
    refused(
        broadcast(at, ptr::null_mut(), 8, f32, 0),
        "crosscclBroadcast: recvbuff of rank 1: expected an address for 32 bytes, got null",
    );
    refused(
        broadcast(ptr::null(), at, 8, f32, 1),
        "crosscclBroadcast: sendbuff of rank 1: expected an address for 32 bytes, got null",
    );
    let misaligned = at.wrapping_byte_add(2);
    let text = format!(
        "crosscclBroadcast: recvbuff of rank 1: expected an address aligned to the 4 bytes of f32, got {misaligned:p}"
    );
    refused(broadcast(at, misaligned, 8, f32, 0), &text);
    let most = usize::MAX / 2 / 4;
    let text =
        format!("crosscclBroadcast: count of rank 1: expected at most {most} elements of f32, got {}", usize::MAX);
    refused(broadcast(at, at, usize::MAX, f32, 0), &text);
    refused(broadcast(at, at, 8, f32, -1), "crosscclBroadcast: root of rank 1: expected a rank from 0 to 1, got -1");
    for wrong in [-1, 12, 256, c_int::MIN, c_int::MAX] {
        let text =
            format!("crosscclBroadcast: datatype of rank 1: expected a value of crosscclDataType_t, got {wrong}");
        refused(broadcast(at, at, 8, wrong, 0), &text);
        // SAFETY: as above.
        let result = unsafe { raw_reduce_scatter(at, at, 1, f32, wrong, comm) };
        let text = format!("crosscclReduceScatter: op of rank 1: expected a value of crosscclRedOp_t, got {wrong}");
        refused(result, &text);
    }
    fails(
        broadcast(at, at, 8, 11, 0),
        crosscclUnsupported,
        "crosscclBroadcast: datatype 11 (float8 e5m2) is not offered; a broadcast can take it as crosscclUint8",
    );
    // SAFETY: as above.
    let result = unsafe { raw_reduce_scatter(at, at, usize::MAX / 2, f32, 0, comm) };
    let text = format!(
        "crosscclReduceScatter: recvcount of rank 1: expected at most {} elements of f32 for each of the 2 ranks, got {}",
        most / 2,
        usize::MAX / 2
    );
    refused(result, &text);
    // SAFETY: as above.
    let result = unsafe { crosscclBroadcast(at, at, 8, number(f32), 0, comm, ptr::without_provenance_mut(64)) };
    refused(
        result,
        "crosscclBroadcast: stream of rank 1: expected NULL, or what crosscclCommStream wrote for the rank, got 0x40",
    );
    // SAFETY: as above.
    refused(
        unsafe { crosscclCommCount(comm, ptr::without_provenance_mut(2)) },
        "crosscclCommCount: count: expected an address aligned to 4 bytes, got 0x2",
    );
    assert_eq!(data, [0; 100]);
    goes_on(&comms);
}

#[test]
fn bad_configurations_by_their_exact_words() {
    let mut comms: [crosscclComm_t; 2] = [ptr::without_provenance_mut(8); 2];
    let mut init = |config: crosscclConfig_t| {
        // SAFETY: as many as said.
        unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), 2, ptr::null(), &config) }
    };
    let cases: [(crosscclConfig_t, &str); 10] = [
        (
            crosscclConfig_t { magic: 0, ..config() },
            "config.magic: expected 0xcc1c0de, by CROSSCCL_CONFIG_INITIALIZER, got 0x0",
        ),
        (
            crosscclConfig_t { version: 200, ..config() },
            "config.version: expected a header of version 0.1, which the library is of, got 200",
        ),
        (
            crosscclConfig_t { version: 10_100, ..config() },
            "config.version: expected a header of version 0.1, which the library is of, got 10100",
        ),
        (crosscclConfig_t { size: 47, ..config() }, "config.size: expected 48 (to 4096) bytes, got 47"),
        (
            crosscclConfig_t { size: usize::MAX, ..config() },
            "config.size: expected 48 (to 4096) bytes, got 18446744073709551615",
        ),
        (crosscclConfig_t { backend: 4, ..config() }, "config.backend: expected a value of crosscclBackend_t, got 4"),
        (
            crosscclConfig_t { agreement: 2, ..config() },
            "config.agreement: expected a value of crosscclAgreement_t, got 2",
        ),
        (crosscclConfig_t { virtual_ranks: 2, ..config() }, "config.virtual_ranks: expected 0 or 1, got 2"),
        (crosscclConfig_t { timeout_ms: -2, ..config() }, "config.timeout_ms: expected milliseconds, 0 or -1, got -2"),
        (crosscclConfig_t { payload_bytes: -2, ..config() }, "config.payload_bytes: expected bytes, 0 or -1, got -2"),
    ];
    for (config, text) in cases {
        fails(init(config), crosscclInvalidArgument, &format!("crosscclCommInitAllConfig: {text}"));
    }
    let text = "crosscclCommInitAllConfig: max_blocks: expected 1 to 128, got 129";
    fails(init(crosscclConfig_t { max_blocks: 129, ..config() }), crosscclInvalidArgument, text);
    assert_eq!(init(crosscclConfig_t { max_blocks: -1, ..config() }), crosscclInvalidArgument);
    // Nothing set is the default, and so is nothing given.
    let all =
        crosscclConfig_t { backend: 1, timeout_ms: 0, max_blocks: 3, payload_bytes: -1, virtual_ranks: 1, ..config() };
    ok(init(all));
    goes_on(&Comms(comms.iter().map(|comm| comm.addr()).collect()));
    // SAFETY: as many as said.
    let result = unsafe { crosscclCommInitAll(comms.as_mut_ptr(), 2, [0, -3].as_ptr()) };
    fails(
        result,
        crosscclInvalidArgument,
        "crosscclCommInitAll: devlist of rank 1: expected the number of a device, from 0, got -3",
    );
    assert!(comms.iter().all(|comm| comm.is_null()));
    // SAFETY: as above.
    let result = unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), 2, [0, 0].as_ptr(), &config()) };
    let text = "crosscclCommInitAllConfig: device of rank 1: expected a device of its own (or virtual_ranks(true), which lets ranks \
                share one), got device 0 again";
    fails(result, crosscclInvalidArgument, text);
}

/// Fields of a later version: fine where they are not set, an error where they are.
#[test]
fn a_configuration_from_the_future() {
    #[repr(C)]
    struct Later {
        known: crosscclConfig_t,
        unknown: [u64; 2],
    }
    let mut later =
        Later { known: crosscclConfig_t { size: size_of::<Later>(), version: 101, ..config() }, unknown: [0; 2] };
    let mut comms = [ptr::null_mut()];
    // SAFETY: the struct has as many bytes as it says.
    let mut init = |later: &Later| unsafe {
        crosscclCommInitAllConfig(comms.as_mut_ptr(), 1, ptr::null(), &raw const later.known)
    };
    ok(init(&later));
    for at in 0..2 {
        later.unknown = [0; 2];
        later.unknown[at] = 1 << 60;
        let text = "crosscclCommInitAllConfig: config: expected no field set that version 0.1.0 does not know, got one behind the \
                    first 48 of 64 bytes";
        fails(init(&later), crosscclInvalidArgument, text);
    }
}

/// A backend that was not compiled in, or that has no device.
#[test]
fn backends() {
    use crossccl::BackendKind;
    let numbers = [
        (BackendKind::Cpu, crosscclBackendCpu),
        (BackendKind::Cuda, crosscclBackendCuda),
        (BackendKind::Rocm, crosscclBackendRocm),
    ];
    assert_eq!(numbers.len(), BackendKind::ALL.len());
    let init = |backend: crosscclBackend_t| {
        let mut comms = [ptr::null_mut()];
        let config = crosscclConfig_t { backend: backend as c_int, ..config() };
        // SAFETY: as many as said.
        let result = unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), 1, ptr::null(), &config) };
        drop(Comms(comms.iter().filter(|comm| !comm.is_null()).map(|comm: &crosscclComm_t| comm.addr()).collect()));
        result
    };
    for (kind, number) in numbers {
        let outcome = kind.check();
        let expected = match &outcome {
            Ok(()) => crosscclSuccess,
            Err(crossccl::Error::NotCompiled { .. }) => crosscclNotCompiled,
            Err(_) => crosscclNoDevice,
        };
        assert_eq!(init(number), expected, "{kind}");
        if let Err(error) = outcome {
            assert_eq!(last(), error.to_string());
        }
    }
    // By itself the CPU is chosen only where there is nothing else.
    let gpus = [BackendKind::Cuda, BackendKind::Rocm].map(|kind| kind.check());
    let expected = match &gpus {
        gpus if gpus.iter().any(Result::is_ok) => crosscclSuccess,
        [Err(crossccl::Error::NotCompiled { .. }), Err(crossccl::Error::NotCompiled { .. })] => crosscclSuccess,
        _ => crosscclNoDevice,
    };
    assert_eq!(init(crosscclBackendAuto), expected, "{}", last());
}

#[test]
fn handles_that_are_none() {
    let gone = |comm: crosscclComm_t, got: &str| {
        let text =
            |call: &str| format!("{call}: comm: expected a communicator's handle that was not destroyed, got {got}");
        let mut answer = 0;
        // SAFETY: any handle is fine.
        unsafe {
            fails(crosscclCommDestroy(comm), crosscclInvalidArgument, &text("crosscclCommDestroy"));
            fails(crosscclCommAbort(comm), crosscclInvalidArgument, &text("crosscclCommAbort"));
            fails(crosscclCommSynchronize(comm), crosscclInvalidArgument, &text("crosscclCommSynchronize"));
            fails(crosscclCommReset(comm, 1), crosscclInvalidArgument, &text("crosscclCommReset"));
            let (wait, reset) = ("crosscclCommWait", "crosscclCommResetWait");
            fails(crosscclCommWait(comm, 1, &raw mut answer), crosscclInvalidArgument, &text(wait));
            fails(crosscclCommResetWait(comm, 1, &raw mut answer), crosscclInvalidArgument, &text(reset));
            fails(crosscclCommResetAll([comm].as_ptr(), 1), crosscclInvalidArgument, &text("crosscclCommResetAll"));
            fails(crosscclCommCount(comm, &raw mut answer), crosscclInvalidArgument, &text("crosscclCommCount"));
            let null = ptr::null_mut();
            fails(raw_broadcast(null, null, 0, 0, 0, comm), crosscclInvalidArgument, &text("crosscclBroadcast"));
            fails(
                raw_reduce_scatter(null, null, 0, 0, 0, comm),
                crosscclInvalidArgument,
                &text("crosscclReduceScatter"),
            );
        }
    };
    gone(ptr::null_mut(), "null");
    gone(ptr::without_provenance_mut(1), "0x1");
    let other = Comms::new(1, &config());
    gone(ptr::without_provenance_mut(other.0[0] + 1), &format!("{:#x}", other.0[0] + 1));
    let comms = Comms::new(2, &config());
    let destroyed = comms.rank(0);
    drop(comms);
    gone(destroyed, &format!("{destroyed:p}"));
    let comms = Comms::new(2, &config());
    for comm in [destroyed.addr(), other.0[0]] {
        let mixed = [comms.rank(0), ptr::without_provenance_mut(comm)];
        // SAFETY: as many as said.
        assert_eq!(unsafe { crosscclCommResetAll(mixed.as_ptr(), 2) }, crosscclInvalidArgument);
    }
    let twice = [comms.rank(0), comms.rank(0), comms.rank(1)];
    // SAFETY: as many as said.
    assert_eq!(unsafe { crosscclCommResetAll(twice.as_ptr(), 3) }, crosscclInvalidUsage);
    goes_on(&comms);
}

/// A failure that nobody asked for is told by the end of the handle, once, and soon.
#[test]
fn destroying_tells_what_nobody_was_told() {
    for asked in [false, true] {
        let mut comms = Comms::with_limit(2);
        let mut data = [[0u8; SLICE]; 2];
        let [input, output] = &mut data;
        ok(broadcast(input, output, comms.rank(0)));
        if asked {
            assert_eq!(synchronize(comms.rank(0)), crosscclTimeout);
        }
        let begin = Instant::now();
        // SAFETY: any handle is fine.
        let result = unsafe { crosscclCommDestroy(comms.rank(0)) };
        assert_eq!(result, if asked { crosscclSuccess } else { crosscclTimeout }, "{}", last());
        assert!(begin.elapsed() < Duration::from_secs(10));
        comms.0.remove(0);
    }
}

/// The text is the thread's own, and stays through calls that succeed.
#[test]
fn the_last_error_of_each_thread() {
    assert_eq!(last(), "no call of this thread has failed");
    // SAFETY: refused.
    assert_eq!(unsafe { crosscclGetVersion(ptr::null_mut()) }, crosscclInvalidArgument);
    let text = "crosscclGetVersion: version: expected an address aligned to 4 bytes, got null";
    assert_eq!(last(), text);
    std::thread::spawn(|| assert_eq!(last(), "no call of this thread has failed")).join().expect("no panic");
    let _comms = Comms::new(1, &config());
    assert_eq!(last(), text);
    let mut meanings = std::collections::BTreeSet::new();
    for code in (0..6).chain(16..23) {
        // SAFETY: never null.
        let meaning = unsafe { CStr::from_ptr(crosscclGetErrorString(number(code))) };
        assert!(meanings.insert(meaning.to_owned()), "{code}: {meaning:?}");
    }
    for code in [-1, 6, 7, 15, 24, c_int::MAX] {
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(crosscclGetErrorString(number(code))) }, c"not a result of crossccl");
    }
}

/// Tests of devices with memory of their own, once for each backend that has such.
macro_rules! on_devices {
    ($($(#[$attribute:meta])* $name:ident: $backend:ty, $stream:ty, $number:ident;)*) => { $(
        $(#[$attribute])*
        #[path = "capi"]
        mod $name {
            pub(crate) type B = $backend;
            pub(crate) type Stream = $stream;
            pub(crate) const BACKEND: crossccl::capi::crosscclBackend_t =
                crossccl::capi::crosscclBackend_t::$number;
            mod devices;
        }
    )* };
}

on_devices! {
    #[cfg(feature = "cuda")]
    cuda: crossccl::Cuda, crossccl::CudaStream, crosscclBackendCuda;
    #[cfg(feature = "rocm")]
    hip: crossccl::Hip, crossccl::HipStream, crosscclBackendRocm;
}
