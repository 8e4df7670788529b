//! crossccl as a plugin of a bench that runs several libraries under one protocol on one GPU, all ranks sharing it: a
//! shared library with the C functions below, which the bench loads. Built by
//! `cargo build --release --features cuda --example peerbench_plugin`.
//!
//! ```c
//! enum { PB_F32 = 0, PB_BF16 = 1 };
//! const char* pb_plugin_name(void);
//! int pb_plugin_init(int nranks, void* const* streams, size_t max_bytes);
//! int pb_plugin_broadcast(const void* in_root, void* const* outs, size_t bytes, int dtype, int root);
//! int pb_plugin_reduce_scatter(const void* const* ins, void* const* outs, size_t bytes, int dtype);
//! int pb_plugin_reduce_scatter_grouped(const void* const* ins, void* const* outs, size_t bytes, int dtype, int group);
//! void pb_plugin_fini(void);
//! ```
//!
//! 0: enqueued; negative: not offered; positive: an error, whose text is on standard error. `bytes` are those of the
//! message, or of each rank's whole input. All ranks are on device 0; `streams` are one `cudaStream_t` a rank.

#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_void},
    panic::catch_unwind,
    sync::Mutex,
    time::Duration,
};

use crossccl::{Backend, Broadcast, Communicator, Cuda, CudaStream, DType, Error, RawRank, ReduceOp, ReduceScatter};

struct Bench {
    comm: Communicator<Cuda>,
    streams: Vec<CudaStream>,
}

static BENCH: Mutex<Option<Bench>> = Mutex::new(None);

/// What the bench is told of an outcome.
fn code(outcome: Result<(), Error>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Error::Unsupported { .. }) => -1,
        Err(error) => {
            eprintln!("crossccl: {error}");
            1
        }
    }
}

/// Nothing unwinds into C.
fn guarded(body: impl FnOnce() -> Result<(), Error> + std::panic::UnwindSafe) -> c_int {
    catch_unwind(body).map_or(2, code)
}

fn with(body: impl FnOnce(&Bench) -> Result<(), Error> + std::panic::UnwindSafe) -> c_int {
    guarded(|| {
        let held = BENCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let missing = || Error::Unsupported { operation: "plugin", what: "pb_plugin_init was not called".into() };
        body(held.as_ref().ok_or_else(missing)?)
    })
}

fn dtype_of(number: c_int) -> Result<DType, Error> {
    match number {
        0 => Ok(DType::F32),
        1 => Ok(DType::BF16),
        other => Err(Error::Unsupported { operation: "plugin", what: format!("dtype {other}") }),
    }
}

/// # Safety
/// `list` holds an address of each rank.
unsafe fn addresses(list: *const *mut c_void, ranks: usize) -> Vec<u64> {
    // SAFETY: the caller's promise.
    (0..ranks).map(|rank| unsafe { *list.add(rank) } as u64).collect()
}

#[unsafe(no_mangle)]
extern "C" fn pb_plugin_name() -> *const c_char {
    c"crossccl".as_ptr()
}

/// # Safety
/// `streams` holds a stream of device 0 for each of `nranks` ranks; they live until `pb_plugin_fini`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pb_plugin_init(nranks: c_int, streams: *const *mut c_void, _max_bytes: usize) -> c_int {
    guarded(|| {
        let ranks = usize::try_from(nranks).unwrap_or(0);
        let fault =
            |f: crossccl::Fault| Error::Unsupported { operation: "plugin", what: format!("{}: {}", f.call, f.name) };
        let device = Cuda::open(0).map_err(fault)?;
        // SAFETY: the caller's promise.
        let streams: Vec<CudaStream> = unsafe {
            addresses(streams, ranks).into_iter().map(|handle| CudaStream::from_raw(&device, handle)).collect()
        };
        let comm = Communicator::<Cuda>::builder([])
            .devices(vec![device; ranks])
            .virtual_ranks(true)
            .streams(streams.clone())
            .timeout(Duration::from_secs(10))
            .build()?;
        *BENCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Bench { comm, streams });
        Ok(())
    })
}

/// # Safety
/// `in_root` and each rank's output are `bytes` bytes of device 0, and live until the streams are at rest.
#[unsafe(no_mangle)]
unsafe extern "C" fn pb_plugin_broadcast(
    in_root: *const c_void,
    outs: *const *mut c_void,
    bytes: usize,
    dtype: c_int,
    root: c_int,
) -> c_int {
    let send = in_root as u64;
    with(|bench| {
        let dtype = dtype_of(dtype)?;
        let root = usize::try_from(root).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let outs = unsafe { addresses(outs, bench.streams.len()) };
        let ranks: Vec<RawRank> = outs
            .into_iter()
            .enumerate()
            .map(|(r, recv)| RawRank::new(if r == root { send } else { 0 }, recv))
            .collect();
        let what = Broadcast::from_root(root);
        // SAFETY: the caller's promise.
        unsafe { bench.comm.broadcast_raw(&ranks, &bench.streams, bytes / dtype.size(), dtype, what).map(drop) }
    })
}

/// # Safety
/// Each rank's input is `bytes` bytes of device 0, its output `bytes` over the ranks; they live until the streams are at
/// rest.
#[unsafe(no_mangle)]
unsafe extern "C" fn pb_plugin_reduce_scatter(
    ins: *const *mut c_void,
    outs: *const *mut c_void,
    bytes: usize,
    dtype: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reduce_scatter(ins, outs, bytes, dtype, None) }
}

/// # Safety
/// As [`pb_plugin_reduce_scatter`], `bytes` over `group`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pb_plugin_reduce_scatter_grouped(
    ins: *const *mut c_void,
    outs: *const *mut c_void,
    bytes: usize,
    dtype: c_int,
    group: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reduce_scatter(ins, outs, bytes, dtype, Some(group)) }
}

/// # Safety
/// As above.
unsafe fn reduce_scatter(
    ins: *const *mut c_void,
    outs: *const *mut c_void,
    bytes: usize,
    dtype: c_int,
    group: Option<c_int>,
) -> c_int {
    with(|bench| {
        let dtype = dtype_of(dtype)?;
        let n = bench.streams.len();
        // SAFETY: the caller's promise.
        let (ins, outs) = unsafe { (addresses(ins, n), addresses(outs, n)) };
        let ranks: Vec<RawRank> = ins.into_iter().zip(outs).map(|(send, recv)| RawRank::new(send, recv)).collect();
        let mut what = ReduceScatter::new(ReduceOp::Sum);
        if let Some(group) = group {
            what = what.group_size(usize::try_from(group).unwrap_or(0));
        }
        let counts = vec![bytes / dtype.size(); n];
        // SAFETY: the caller's promise.
        unsafe { bench.comm.reduce_scatter_raw(&ranks, &bench.streams, &counts, dtype, what).map(drop) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn pb_plugin_fini() {
    let _ = catch_unwind(|| drop(BENCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()));
}
