//! The streams that a framework works on: its own by handle, the legacy default stream, a thread's default stream.

use crossccl::{Backend, Broadcast, Buffer, Communicator, DType, Error, RawRank, ReduceOp};
use rstest::rstest;

use super::B;
use crate::support::communicator;

type Stream = <B as Backend>::Stream;

const COUNT: usize = 50_000;

fn own(comm: &Communicator<B>) -> Vec<Stream> {
    (0..comm.ranks()).map(|r| comm.stream(r).expect("a rank").clone()).collect()
}

/// Fills and copies of the framework's before and behind two collectives, in the order of its streams and nothing else.
fn goes_in_order(comm: &Communicator<B>, streams: &[Stream]) {
    let ranks = comm.ranks();
    let buffers = || -> Vec<Buffer<B, u8>> { (0..ranks).map(|r| comm.buffer(r, COUNT).expect("buffer")).collect() };
    let (data, copies, sums) = (buffers(), buffers(), buffers());
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let into: Vec<_> = data.iter().zip(&sums).map(|(d, s)| RawRank::new(d.address(), s.address())).collect();
    for round in 0..20u8 {
        let root = usize::from(round) % ranks;
        // SAFETY: the buffers live until after the last wait; each copy has the length of both.
        unsafe {
            for (rank, stream) in streams.iter().enumerate() {
                B::fill(stream, data[rank].address(), round + rank as u8, COUNT).expect("fill");
            }
            let first = comm.broadcast_raw(&raw, streams, COUNT, DType::U8, root).expect("launch");
            for (rank, stream) in streams.iter().enumerate() {
                B::copy(stream, copies[rank].address(), data[rank].address(), COUNT).expect("copy");
            }
            let counts = vec![COUNT; ranks];
            let second = comm.reduce_scatter_raw(&into, streams, &counts, DType::U8, ReduceOp::Sum).expect("launch");
            second.wait().expect("outcome");
            first.wait().expect("outcome");
            for stream in streams {
                B::wait(&B::record(stream).expect("event"), None).expect("at rest");
            }
        }
        for (rank, (copy, sum)) in copies.iter().zip(&sums).enumerate() {
            let value = round + root as u8;
            assert_eq!(copy.to_vec().expect("read"), vec![value; COUNT], "rank {rank}, round {round}");
            let part = comm.part(rank, COUNT, ReduceOp::Sum).expect("a part").count() as usize;
            assert_eq!(sum.to_vec().expect("read")[..part], vec![value * ranks as u8; part], "rank {rank}");
        }
    }
}

#[rstest]
fn a_frameworks_own_streams_by_handle(#[values(2, 4)] ranks: usize) {
    needs_device!(ranks);
    let comm = communicator::<B>(ranks);
    let made: Vec<_> = own(&comm).iter().map(|s| B::create_stream(&B::device_of(s)).expect("stream")).collect();
    // SAFETY: the streams outlive the handles.
    let named: Vec<_> = made.iter().map(|s| unsafe { Stream::from_raw(&B::device_of(s), s.handle()) }).collect();
    goes_in_order(&comm, &named);
}

/// One rank of each device on the device's default stream, the others on streams that do not wait for it.
#[rstest]
fn the_legacy_default_stream(#[values(2, 4)] ranks: usize) {
    needs_device!(ranks);
    let comm = communicator::<B>(ranks);
    let mut streams = own(&comm);
    let devices = B::device_count().expect("devices");
    for stream in streams.iter_mut().take(devices) {
        *stream = Stream::legacy(&B::device_of(stream));
    }
    goes_in_order(&comm, &streams);
}

#[rstest]
fn the_default_stream_of_a_thread(#[values(2, 4)] ranks: usize) {
    needs_device!(ranks);
    let comm = communicator::<B>(ranks);
    let mut streams = own(&comm);
    let devices = B::device_count().expect("devices");
    for stream in streams.iter_mut().take(devices) {
        *stream = Stream::per_thread(&B::device_of(stream));
    }
    goes_in_order(&comm, &streams);
    // Elsewhere it would be another stream: refused, and nothing is left waiting.
    let data: Vec<_> = (0..ranks).map(|r| comm.buffer_from(r, &[r as u8; 100]).expect("buffer")).collect();
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let refused = std::thread::scope(|scope| {
        // SAFETY: the buffers live until after the last wait.
        let elsewhere = scope.spawn(|| unsafe { comm.broadcast_raw(&raw, &streams, 100, DType::U8, 0).map(drop) });
        elsewhere.join().expect("no panic")
    });
    assert!(matches!(&refused, Err(Error::Driver { call: "stream", .. })), "{refused:?}");
    comm.reset().expect("reset");
    // SAFETY: as above.
    unsafe { comm.broadcast_raw(&raw, &streams, 100, DType::U8, 1) }.expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
}

/// Two default streams of one device wait for each other: two ranks cannot meet on them, and are told so.
#[rstest]
fn streams_that_wait_for_each_other_are_refused() {
    needs_device!(2);
    let device = B::open(0).expect("device");
    let streams = [Stream::legacy(&device), Stream::per_thread(&device)];
    let builder = || Communicator::<B>::builder([0, 0]).virtual_ranks(true);
    let error = builder().streams(streams.clone()).build().expect_err("they wait for each other");
    assert!(matches!(&error, Error::InvalidArgument { argument: "stream", rank: Some(rank), .. } if rank.0 == 1), "{error}");
    let comm = builder().build().expect("communicator");
    let data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 100]).expect("buffer")).collect();
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    // SAFETY: the buffers live until after the last wait.
    let error = unsafe { comm.broadcast_raw(&raw, &streams, 100, DType::U8, 0) }.expect_err("likewise");
    assert!(matches!(&error, Error::InvalidArgument { argument: "stream", .. }), "{error}");
    // SAFETY: as above.
    unsafe { comm.broadcast_raw(&raw, &own(&comm), 100, DType::U8, 0) }.expect("launch").wait().expect("outcome");
}

/// Likewise for ranks that call for themselves: the second one is told at once, not the first one after its limit.
#[rstest]
fn a_call_behind_a_peer_that_waits_for_it_is_refused() {
    needs_device!(2);
    let comm = Communicator::<B>::builder([0, 0]).virtual_ranks(true).build().expect("communicator");
    let ranks = comm.into_ranks();
    let stream = Stream::legacy(&B::open(0).expect("device"));
    let data: Vec<_> = ranks.iter().map(|r| r.buffer_from(&[r.rank().0 as u8; 100]).expect("buffer")).collect();
    let broadcast = |rank: usize, stream: &Stream, root: usize| {
        let at = RawRank::new(data[rank].address(), data[rank].address());
        // SAFETY: the buffers live until after the last wait.
        unsafe { ranks[rank].broadcast_raw(at, stream, 100, DType::U8, root) }
    };
    let first = broadcast(1, &stream, 0).expect("launch");
    let begin = std::time::Instant::now();
    let error = broadcast(0, &stream, 0).map(drop).expect_err("it would wait for itself");
    assert!(matches!(&error, Error::InvalidArgument { argument: "stream", rank: Some(rank), .. } if rank.0 == 0), "{error}");
    assert!(error.to_string().contains("and rank 1, which waits for this call, has"), "{error}");
    assert!(begin.elapsed().as_secs() < 5, "it waited");
    // Nothing of it was launched: another stream will do.
    let second = broadcast(0, ranks[0].stream(), 0).expect("launch");
    second.wait().expect("outcome");
    first.wait().expect("outcome");
    assert_eq!(data[1].to_vec().expect("read"), [0; 100]);
    // A stream that a peer is through with is as good as any.
    let both = [broadcast(0, &stream, 0).expect("launch"), broadcast(1, ranks[1].stream(), 0).expect("launch")];
    both.iter().for_each(|one| one.wait().expect("outcome"));
}

/// The legacy stream cannot be captured; what was begun is ended, and calls go on.
#[rstest]
fn a_capture_of_the_legacy_stream_is_refused() {
    needs_device!(2);
    let comm = communicator::<B>(2);
    let mut streams = own(&comm);
    streams[1] = Stream::legacy(&B::device_of(&streams[1]));
    // SAFETY: nothing is enqueued.
    let error = unsafe { comm.capture(&streams, || Ok(())) }.expect_err("the driver cannot");
    assert!(matches!(&error, Error::Driver { .. }), "{error}");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 100]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut data, Broadcast::from_root(1)).expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
}
