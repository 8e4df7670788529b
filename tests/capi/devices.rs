//! Memory and streams of devices, through C.

use crossccl::{Backend, MemoryKind};

use super::{super::*, B, BACKEND, Stream};
use crate::mapped_memory::{Mapper, PAGE};

const BYTES: usize = 4 * SLICE;

fn device_memory(rank: usize) -> *mut c_void {
    let address = B::allocate(&crate::support::device::<B>(rank), MemoryKind::Device, BYTES).expect("memory");
    ptr::without_provenance_mut(address as usize)
}

fn communicator() -> Comms {
    let count = B::device_count().expect("devices");
    let devices = [0, (1 % count) as c_int];
    let config = crosscclConfig_t { backend: BACKEND as c_int, virtual_ranks: 1, ..config() };
    let mut comms = [ptr::null_mut(); 2];
    // SAFETY: as many as said.
    ok(unsafe { crosscclCommInitAllConfig(comms.as_mut_ptr(), 2, devices.as_ptr(), &config) });
    let mut backend = crosscclBackendAuto;
    // SAFETY: a local.
    ok(unsafe { crosscclCommBackend(comms[0], &raw mut backend) });
    assert_eq!(backend, BACKEND);
    Comms(comms.iter().map(|comm: &crosscclComm_t| comm.addr()).collect())
}

fn own_stream(comm: crosscclComm_t) -> crosscclStream_t {
    let mut stream = ptr::null_mut();
    // SAFETY: a local.
    ok(unsafe { crosscclCommStream(comm, &raw mut stream) });
    stream
}

/// The driver's functions that map memory; the emulator of AMD's machine code has none.
fn mapper() -> Option<Mapper> {
    let names = match BACKEND {
        crosscclBackendCuda => vec!["libcuda.so.1".to_owned()],
        _ => std::env::var("CROSSCCL_HIP_LIBRARY").into_iter().chain(["libamdhip64.so.6".to_owned()]).collect(),
    };
    // SAFETY: the driver, which is loaded already. It is never unloaded.
    let library = names.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok())?;
    let library = Box::leak(Box::new(library));
    // SAFETY: as said.
    unsafe { Mapper::load(library, if BACKEND == crosscclBackendCuda { "cu" } else { "hip" }) }
}

/// Broadcasts from rank 1 in the order of the streams given, looks, and gives the memory back.
fn goes_in_order(comms: &Comms, streams: [crosscclStream_t; 2]) {
    let memory = [0, 1].map(device_memory);
    let mut host = [[0u8; BYTES]; 2];
    for (rank, stream) in streams.into_iter().enumerate() {
        // SAFETY: device memory of that size, waited for below.
        unsafe {
            let own = own_stream_of(comms, rank);
            B::fill(&own, memory[rank].addr() as u64, rank as u8 + 1, BYTES).expect("fill");
            assert!(B::wait(&B::record(&own).expect("event"), None).expect("wait"));
            let (dtype, comm) = (number(crosscclUint8 as c_int), comms.rank(rank));
            ok(crosscclBroadcast(memory[rank], memory[rank], BYTES, dtype, 1, comm, stream));
        }
    }
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    for (rank, host) in host.iter_mut().enumerate() {
        let own = own_stream_of(comms, rank);
        // SAFETY: as above.
        unsafe { B::copy(&own, host.as_mut_ptr() as u64, memory[rank].addr() as u64, BYTES) }.expect("copy");
        assert!(B::wait(&B::record(&own).expect("event"), None).expect("wait"));
        // SAFETY: nothing uses it any more.
        unsafe {
            B::free(&crate::support::device::<B>(rank), MemoryKind::Device, memory[rank].addr() as u64, BYTES)
        };
    }
    assert_eq!(host, [[2; BYTES]; 2]);
}

fn own_stream_of(comms: &Comms, rank: usize) -> Stream {
    let handle = own_stream(comms.rank(rank)).addr() as u64;
    // SAFETY: the communicator outlives it.
    unsafe { Stream::from_raw(&crate::support::device::<B>(rank), handle) }
}

#[test]
fn streams_by_handle() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    let comms = communicator();
    goes_in_order(&comms, [own_stream(comms.rank(0)), own_stream(comms.rank(1))]);
    if B::device_count().expect("devices") > 1 {
        // The devices' default streams, as NCCL takes NULL.
        goes_in_order(&comms, [ptr::null_mut(); 2]);
    }
    let made = [0, 1].map(|rank| B::create_stream(&crate::support::device::<B>(rank)).expect("stream"));
    goes_in_order(&comms, made.each_ref().map(|stream| ptr::without_provenance_mut(stream.handle() as usize)));
    drop(comms);
}

/// A stream of another device is refused before anything is enqueued on any, whatever it is asked for, and the rank goes on.
#[test]
fn streams_of_another_device() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    if B::device_count().expect("devices") < 2 {
        println!("SKIPPED {} with 2 devices: there is one", B::NAME);
        return;
    }
    let comms = communicator();
    let made = [0, 1].map(|rank| B::create_stream(&crate::support::device::<B>(rank)).expect("stream"));
    let [zeroth, first] = made.each_ref().map(|stream| ptr::without_provenance_mut(stream.handle() as usize));
    let memory = [0, 1].map(device_memory);
    let dtype = number(crosscclUint8 as c_int);
    let expected = |call: &str, rank: usize| {
        let text = last();
        let other = 1 - rank;
        let why = format!("stream of rank {rank}: expected a stream of the rank's device {rank}, got one of device {other}");
        assert!(text.starts_with(call) && text.contains(&why), "{text}");
    };
    for (rank, stream) in [(0, first), (1, zeroth), (0, own_stream(comms.rank(1)))] {
        let (at, comm) = (memory[rank], comms.rank(rank));
        // SAFETY: device memory of that size; refused before anything is enqueued.
        unsafe {
            assert_eq!(crosscclBroadcast(at, at, BYTES, dtype, 1, comm, stream), crosscclInvalidArgument);
            expected("crosscclBroadcast", rank);
            let (part, behind) = (BYTES / 4, at.wrapping_byte_add(BYTES / 2));
            let result = crosscclReduceScatter(at, behind, part, dtype, number(crosscclSum as c_int), comm, stream);
            assert_eq!(result, crosscclInvalidArgument);
            expected("crosscclReduceScatter", rank);
            // In a group, the call is refused where it is made.
            ok(crosscclGroupStart());
            assert_eq!(crosscclBroadcast(at, at, BYTES, dtype, 1, comm, stream), crosscclInvalidArgument);
            expected("crosscclBroadcast", rank);
            assert_eq!(crosscclGroupEnd(), crosscclInvalidArgument);
        }
        assert_eq!(async_error(comm), crosscclSuccess);
    }
    goes_in_order(&comms, [zeroth, first]);
    drop(comms);
    for (rank, at) in memory.into_iter().enumerate() {
        // SAFETY: nothing uses it.
        unsafe { B::free(&crate::support::device::<B>(rank), MemoryKind::Device, at.addr() as u64, BYTES) };
    }
}

/// An engine captures its own streams, and replays its own graphs.
#[test]
fn calls_on_streams_that_are_captured() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    let comms = communicator();
    let device = crate::support::device::<B>;
    let streams = [0, 1].map(|rank| B::create_stream(&device(rank)).expect("stream"));
    let memory = [0, 1].map(device_memory);
    let fill = |value: u8| {
        for (rank, stream) in streams.iter().enumerate() {
            // SAFETY: device memory of that size.
            unsafe { B::fill(stream, memory[rank].addr() as u64, value + rank as u8, BYTES) }.expect("fill");
        }
    };
    let first_bytes = || {
        [0, 1].map(|rank| {
            let mut host = [0u8; BYTES];
            // SAFETY: as above, waited for.
            unsafe { B::copy(&streams[rank], host.as_mut_ptr() as u64, memory[rank].addr() as u64, BYTES) }.expect("copy");
            assert!(B::wait(&B::record(&streams[rank]).expect("event"), None).expect("wait"));
            assert_eq!(host, [host[0]; BYTES]);
            host[0]
        })
    };
    fill(1);
    assert_eq!(first_bytes(), [1, 2]);
    let graphs = [0, 1].map(|rank| {
        let (at, handle) = (memory[rank], ptr::without_provenance_mut(streams[rank].handle() as usize));
        B::begin_capture(&streams[rank]).expect("capture");
        // SAFETY: the memory outlives the graph.
        ok(unsafe { crosscclBroadcast(at, at, BYTES, number(crosscclUint8 as c_int), 1, comms.rank(rank), handle) });
        B::end_capture(&streams[rank]).expect("capture")
    });
    // Nothing has run, and nothing is waited for.
    (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
    assert_eq!(first_bytes(), [1, 2]);
    for value in [10, 20] {
        fill(value);
        for (stream, graph) in streams.iter().zip(&graphs) {
            // SAFETY: as above; the communicator is there.
            unsafe { B::launch_graph(stream, graph) }.expect("replay");
        }
        assert_eq!(first_bytes(), [value + 1; 2]);
        assert_eq!(async_error(comms.rank(0)), crosscclSuccess);
    }
    // A rank of which no replay comes is found missing, as in any call.
    // SAFETY: as above.
    unsafe { B::launch_graph(&streams[0], &graphs[0]) }.expect("replay");
    // SAFETY: any handle is fine.
    ok(unsafe { crosscclCommAbort(comms.rank(1)) });
    assert!(B::wait(&B::record(&streams[0]).expect("event"), None).expect("wait"));
    assert_eq!(async_error(comms.rank(0)), crosscclAborted);
    ok(comms.reset());
    goes_in_order(&comms, streams.each_ref().map(|stream| ptr::without_provenance_mut(stream.handle() as usize)));
    drop((graphs, comms));
    for (rank, at) in memory.into_iter().enumerate() {
        // SAFETY: nothing uses it any more.
        unsafe { B::free(&device(rank), MemoryKind::Device, at.addr() as u64, BYTES) };
    }
}

/// One graph over two devices, as an engine makes it: the second stream joins the capture of the first by an event, and
/// is joined by one. Replayed with other inputs each time.
#[test]
fn a_capture_over_two_devices() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    if B::device_count().expect("devices") < 2 {
        println!("SKIPPED {} with 2 devices: there is one", B::NAME);
        return;
    }
    let comms = communicator();
    let device = crate::support::device::<B>;
    let streams = [0, 1].map(|rank| B::create_stream(&device(rank)).expect("stream"));
    let handles = streams.each_ref().map(|stream| ptr::without_provenance_mut::<c_void>(stream.handle() as usize));
    let [inputs, outputs] = [[0, 1].map(device_memory), [0, 1].map(device_memory)];
    const COUNT: usize = BYTES / 4;
    let copy = |rank: usize, to: u64, from: u64| {
        // SAFETY: as many bytes on both sides, waited for.
        unsafe { B::copy(&streams[rank], to, from, BYTES) }.expect("copy");
        assert!(B::wait(&B::record(&streams[rank]).expect("event"), None).expect("wait"));
    };
    // A reduce-scatter, and a broadcast of what rank 1 got: one graph of four kernels.
    let graph = {
        B::begin_capture(&streams[0]).expect("capture");
        let fork = B::record(&streams[0]).expect("event");
        B::wait_event(&streams[1], &fork).expect("fork");
        let (dtype, sum) = (crosscclUint32 as c_int, crosscclSum as c_int);
        for rank in 0..2 {
            let (comm, stream) = (comms.rank(rank), handles[rank]);
            let (input, output) = (inputs[rank], outputs[rank]);
            // SAFETY: the memory outlives the graph.
            unsafe {
                ok(crosscclReduceScatter(input, output, COUNT / 2, number(dtype), number(sum), comm, stream));
                ok(crosscclBroadcast(output, output, COUNT / 2, number(dtype), 1, comm, stream));
            }
        }
        let join = B::record(&streams[1]).expect("event");
        B::wait_event(&streams[0], &join).expect("join");
        B::end_capture(&streams[0]).expect("capture")
    };
    for round in 1..=5 {
        for (rank, input) in inputs.iter().enumerate() {
            let values: Vec<u32> = (0..COUNT as u32).map(|i| round * 1000 + i * (rank as u32 + 1)).collect();
            copy(rank, input.addr() as u64, values.as_ptr() as u64);
        }
        // SAFETY: as above; the communicator is there.
        unsafe { B::launch_graph(&streams[0], &graph) }.expect("replay");
        assert!(B::wait(&B::record(&streams[0]).expect("event"), None).expect("wait"));
        for (rank, output) in outputs.iter().enumerate() {
            let mut got = vec![0u32; COUNT];
            copy(rank, got.as_mut_ptr() as u64, output.addr() as u64);
            let half = COUNT / 2;
            let expected: Vec<u32> = (half as u32..COUNT as u32).map(|i| 2000 * round + 3 * i).collect();
            assert_eq!(got[..half], expected, "rank {rank}, replay {round}");
        }
        (0..2).for_each(|rank| assert_eq!(async_error(comms.rank(rank)), crosscclSuccess));
    }
    drop(graph);
    goes_in_order(&comms, handles);
    drop(comms);
    for (rank, at) in inputs.into_iter().chain(outputs).enumerate() {
        // SAFETY: nothing uses it any more.
        unsafe { B::free(&device(rank % 2), MemoryKind::Device, at.addr() as u64, BYTES) };
    }
}

/// Of the host where the device's is needed, of another device, too little of it: refused, by name.
#[test]
fn memory_that_is_not_the_devices() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    let comms = communicator();
    let stream = own_stream(comms.rank(0));
    let good = device_memory(0);
    let broadcast = |at: *mut c_void, bytes: usize| {
        // SAFETY: refused before anything is touched.
        unsafe { crosscclBroadcast(at, at, bytes, number(crosscclUint8 as c_int), 1, comms.rank(0), stream) }
    };
    let refused = |result, part: &str| {
        assert_eq!(result, crosscclInvalidArgument);
        let text = last();
        assert!(
            text.starts_with("crosscclBroadcast: recvbuff of rank 0: expected") && text.contains(part),
            "{text}"
        );
    };
    let mut host = [0u8; SLICE];
    refused(broadcast(host.as_mut_ptr().cast(), SLICE), "memory of device 0, got 0x");
    refused(broadcast(good, BYTES << 40), "bytes within one allocation");
    if B::device_count().expect("devices") > 1 {
        let other = device_memory(1);
        refused(broadcast(other, BYTES), "memory of device 0, got memory of device 1");
        // SAFETY: nothing uses it.
        unsafe { B::free(&crate::support::device::<B>(1), MemoryKind::Device, other.addr() as u64, BYTES) };
    }
    // SAFETY: nothing uses it.
    unsafe { B::free(&crate::support::device::<B>(0), MemoryKind::Device, good.addr() as u64, BYTES) };
    drop(comms);
}

/// What an engine maps itself is granted to the peers, or refused by name with nothing launched.
#[test]
fn memory_that_is_mapped() {
    let Some(_turn) = crate::support::turn::<B>(2) else { return };
    if B::device_count().expect("devices") < 2 {
        println!("SKIPPED {} with 2 devices: there is one", B::NAME);
        return;
    }
    let comms = communicator();
    let Some(mapper) = mapper() else {
        println!("SKIPPED {}: its driver maps no memory", B::NAME);
        return;
    };
    // Two pieces of as much as drivers map at least, and as much again without memory.
    const PAGES: usize = (2 << 20) / PAGE;
    const PIECE: u64 = 2 << 20;
    let ranges = [0, 1].map(|rank| {
        let _entered = B::enter(&crate::support::device::<B>(rank)).expect("device");
        let start = mapper.reserve(4 * PAGES);
        for piece in [start, start + PIECE] {
            mapper.map(piece, PAGES, rank);
            mapper.set_access(piece, PAGES, rank, 3);
        }
        start
    });
    // Over both.
    let at = ranges.map(|start| ptr::without_provenance_mut::<c_void>((start + PIECE) as usize - BYTES / 2));
    // A copy of the stand-in's is of one piece.
    let halves = |at: *mut c_void| [at.addr() as u64, at.addr() as u64 + BYTES as u64 / 2];
    let streams = [0, 1].map(|rank| own_stream_of(&comms, rank));
    for root in 0..2 {
        for (rank, stream) in streams.iter().enumerate() {
            for piece in halves(at[rank]) {
                // SAFETY: memory of that size, which its device may touch.
                unsafe { B::fill(stream, piece, rank as u8 + 1, BYTES / 2) }.expect("fill");
            }
            assert!(B::wait(&B::record(stream).expect("event"), None).expect("wait"));
            let (dtype, comm) = (number(crosscclUint8 as c_int), comms.rank(rank));
            // SAFETY: likewise, waited for below.
            ok(unsafe { crosscclBroadcast(at[rank], at[rank], BYTES, dtype, root, comm, ptr::null_mut()) });
        }
        (0..2).for_each(|rank| ok(synchronize(comms.rank(rank))));
        for (rank, stream) in streams.iter().enumerate() {
            for piece in halves(at[rank]) {
                let mut host = [0u8; BYTES / 2];
                // SAFETY: as above.
                unsafe { B::copy(stream, host.as_mut_ptr() as u64, piece, BYTES / 2) }.expect("copy");
                assert!(B::wait(&B::record(stream).expect("event"), None).expect("wait"));
                assert_eq!(host, [root as u8 + 1; BYTES / 2], "rank {rank}");
            }
        }
    }
    // Behind its end nothing is mapped.
    let end = ptr::without_provenance_mut::<c_void>((ranges[0] + 2 * PIECE) as usize - 8);
    // SAFETY: refused before anything is touched.
    let result = unsafe {
        crosscclBroadcast(end, end, 16, number(crosscclUint8 as c_int), 0, comms.rank(0), ptr::null_mut())
    };
    assert_eq!(result, crosscclInvalidArgument);
    let text = last();
    let begin = "crosscclBroadcast: sendbuff of rank 0: expected 16 ";
    assert!(text.starts_with(begin) && text.contains("8 bytes from 0x"), "{text}");
    assert_eq!(async_error(comms.rank(0)), crosscclSuccess);
    goes_in_order(&comms, [own_stream(comms.rank(0)), own_stream(comms.rank(1))]);
    drop(comms);
    for start in ranges {
        [start, start + PIECE].into_iter().for_each(|piece| mapper.unmap(piece, PAGES));
    }
}
