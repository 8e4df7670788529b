//! One thread a rank, the raw forms, streams and signal buffers of one's own.

use std::time::Duration;

use crossccl::{
    Algorithm, Backend, Broadcast, Buffer, Communicator, DType, Error, Kernel, RawRank, ReduceOp, ReduceScatter, Wiring, signal_buffer_bytes,
};
use rstest::rstest;

use super::B;
use crate::support::{Random, cells, communicator, on_threads, rank_handles};

const LIMIT: Duration = Duration::from_secs(20);

/// Cases A11, G9: ranks that come at different times, many rounds, all collectives.
#[rstest]
fn g9_one_thread_a_rank(#[values(1, 2, 3, 8)] ranks: usize) {
    needs_device!();
    let handles = cells::<B>(rank_handles(ranks, LIMIT));
    on_threads(&handles, |me, comm| {
        let mut random = Random(me as u64);
        for round in 0..60usize {
            if random.next().is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(random.next() % 2000));
            }
            let root = round % ranks;
            let algorithm = [Algorithm::OneStage, Algorithm::TwoStage][round % 2];
            let what = Broadcast::from_root(root).algorithm(algorithm);
            let mut data = comm.buffer_from(&vec![(me * 1000 + round) as u32; 100 + round]).expect("buffer");
            if round % 3 == 0 {
                let input = comm.buffer_from(&vec![(me * 1000 + round) as u32; 100 + round]).expect("buffer");
                let input = (me == root).then_some(&input);
                comm.broadcast(input, &mut data, what).expect("launch").wait().expect("outcome");
            } else {
                comm.broadcast_in_place(&mut data, what).expect("launch").wait().expect("outcome");
            }
            assert_eq!(data.to_vec().expect("read"), vec![(root * 1000 + round) as u32; 100 + round]);

            let input = comm.buffer_from(&vec![me as i64 + 1; ranks * 10]).expect("buffer");
            let mut output = comm.buffer::<i64>(10).expect("buffer");
            comm.reduce_scatter(&input, &mut output, ReduceOp::Sum).expect("launch").wait().expect("outcome");
            assert_eq!(output.to_vec().expect("read"), vec![(ranks * (ranks + 1) / 2) as i64; 10]);
        }
    });
}

/// Several collectives in flight at once, waited for in the end.
#[rstest]
fn calls_queue_up() {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, LIMIT));
    on_threads(&handles, |me, comm| {
        let mut buffers: Vec<_> = (0..50).map(|i| comm.buffer_from(&[(me * 100 + i) as u32; 333]).expect("buffer")).collect();
        let flights: Vec<_> = (buffers.iter_mut().enumerate())
            .map(|(i, buffer)| comm.broadcast_in_place(buffer, i % 4).expect("launch"))
            .collect();
        for flight in flights {
            flight.wait().expect("outcome");
        }
        for (i, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.to_vec().expect("read"), [(i % 4 * 100 + i) as u32; 333]);
        }
    });
}

/// Groups with their own shapes, per rank; a group of one copies.
#[rstest]
fn groups_per_rank(#[values(1, 2, 3, 6)] group: usize) {
    needs_device!();
    let handles = cells::<B>(rank_handles(6, LIMIT));
    on_threads(&handles, |me, comm| {
        let rows = 4 + me / group;
        let what = ReduceScatter::new(ReduceOp::Max).group_size(group).shape([rows, 5]).axis(1);
        let input = comm.buffer_from(&vec![me as f64; rows * 5]).expect("buffer");
        let part = comm.part(rows * 5, what.clone()).expect("part").count() as usize;
        let mut output = comm.buffer::<f64>(part).expect("buffer");
        comm.reduce_scatter(&input, &mut output, what).expect("launch").wait().expect("outcome");
        assert_eq!(output.to_vec().expect("read"), vec![(me / group * group + group - 1) as f64; part]);
    });
}

/// A count of 0 still meets the peers in a per-rank call, with null addresses allowed.
#[rstest]
fn b4_nothing_to_move_is_fine() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, LIMIT));
    on_threads(&handles, |_, comm| {
        for algorithm in [Algorithm::OneStage, Algorithm::TwoStage] {
            let what = Broadcast::from_root(1).algorithm(algorithm);
            // SAFETY: a count of 0 touches no memory.
            let launched = unsafe { comm.broadcast_raw(RawRank::default(), comm.stream(), 0, DType::F32, what) };
            launched.expect("launch").wait().expect("outcome");
        }
        // SAFETY: as above.
        let launched = unsafe { comm.reduce_scatter_raw(RawRank::default(), comm.stream(), 0, DType::F32, ReduceOp::Sum) };
        launched.expect("launch").wait().expect("outcome");
        let mut data = comm.buffer_from(&[comm.rank().0]).expect("buffer");
        comm.broadcast_in_place(&mut data, 2).expect("launch").wait().expect("outcome");
        assert_eq!(data.to_vec().expect("read"), [2]);
    });
}

one_call! {
/// The raw forms, all ranks in one call, on streams of the caller's; two streams take turns.
#[rstest]
fn raw_calls_on_streams_of_ones_own() {
    needs_device!();
    let comm = communicator::<B>(3);
    let device = |r: usize| B::device_of(comm.stream(r).expect("a rank"));
    let others: Vec<_> = (0..3).map(|r| B::create_stream(&device(r)).expect("stream")).collect();
    let own: Vec<_> = (0..3).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let mut buffers: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &vec![r as u64; 20_000]).expect("buffer")).collect();
    let outputs: Vec<_> = (0..3).map(|r| comm.buffer::<u64>(r, 20_000 / 3 + usize::from(r < 2)).expect("buffer")).collect();
    let mut launched = Vec::new();
    for round in 0..20 {
        let streams = if round % 2 == 0 { &own } else { &others };
        let in_place: Vec<_> = buffers.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
        let apart: Vec<_> = buffers.iter().zip(&outputs).map(|(i, o)| RawRank::new(i.address(), o.address())).collect();
        // SAFETY: the buffers live until after the last wait, and nothing else uses them until then.
        launched.push(unsafe { comm.broadcast_raw(&in_place, streams, 20_000, DType::U64, round % 3) }.expect("launch"));
        // SAFETY: as above.
        let next = unsafe { comm.reduce_scatter_raw(&apart, streams, &[20_000; 3], DType::U64, ReduceOp::Sum) };
        launched.push(next.expect("launch"));
    }
    for one in &launched {
        one.wait().expect("outcome");
    }
    // Round 0 gave everybody the 0 of rank 0.
    assert!(buffers.iter().all(|b| b.to_vec().expect("read") == vec![0; 20_000]));
    buffers[1].write(&vec![7; 20_000]).expect("write");
    let apart: Vec<_> = buffers.iter().zip(&outputs).map(|(i, o)| RawRank::new(i.address(), o.address())).collect();
    // SAFETY: as above.
    let last = unsafe { comm.reduce_scatter_raw(&apart, &others, &[20_000; 3], DType::U64, ReduceOp::Sum) };
    last.expect("launch").wait().expect("outcome");
    assert!(outputs.iter().all(|o| o.to_vec().expect("read").iter().all(|x| *x == 7)));
}

#[rstest]
fn streams_signal_buffers_and_devices_of_ones_own() {
    needs_device!();
    let devices: Vec<_> = (0..2).map(crate::support::device::<B>).collect();
    let streams: Vec<_> = devices.iter().map(|d| B::create_stream(d).expect("stream")).collect();
    let bytes = signal_buffer_bytes(2, 4, 1 << 16);
    let signals = |bytes: usize| streams.iter().map(move |s| Buffer::<B, u8>::coherent(s, bytes).expect("buffer"));
    let builder = || {
        Communicator::<B>::builder([])
            .devices(devices.clone())
            .virtual_ranks(devices[0] == devices[1])
            .streams(streams.clone())
            .max_blocks(4)
            .payload_bytes(1 << 16)
    };
    let comm = builder().signal_buffers(signals(bytes)).build().expect("communicator");
    assert_eq!(comm.stream(1), Some(&streams[1]));
    let mut buffers: Vec<_> = streams.iter().map(|s| Buffer::from_slice(s, &[3u8; 200_000]).expect("buffer")).collect();
    buffers[1].write(&[9; 200_000]).expect("write");
    let what = Broadcast::from_root(1).algorithm(Algorithm::TwoStageStaged);
    comm.broadcast_in_place(&mut buffers, what).expect("launch").wait().expect("outcome");
    assert_eq!(buffers[0].to_vec().expect("read"), [9; 200_000]);

    let short = builder().signal_buffers(signals(bytes - 1)).build().expect_err("too small");
    let expected = format!(
        "communicator: signal buffer of rank 0: expected at least {bytes} bytes (see signal_buffer_bytes), got {} bytes",
        bytes - 1
    );
    assert_eq!(short.to_string(), expected);
}

/// An engine's own memory as signal buffers, by address: nothing is registered, and it is the engine's again afterwards.
#[rstest]
fn signal_buffers_by_address() {
    needs_device!();
    let devices: Vec<_> = (0..2).map(crate::support::device::<B>).collect();
    let streams: Vec<_> = devices.iter().map(|d| B::create_stream(d).expect("stream")).collect();
    let bytes = signal_buffer_bytes(2, 4, 1 << 16);
    let mut memory: Vec<_> = streams.iter().map(|s| Buffer::<B, u8>::coherent(s, bytes).expect("buffer")).collect();
    let addresses = [0, 1].map(|rank| (memory[rank].address(), bytes));
    let builder = || {
        let builder = Communicator::<B>::builder([]).devices(devices.clone()).virtual_ranks(devices[0] == devices[1]);
        builder.max_blocks(4).payload_bytes(1 << 16)
    };
    for round in 0..2 {
        // What an engine had there before.
        memory.iter_mut().for_each(|one| one.fill_bytes(0xff).expect("fill"));
        // SAFETY: `memory` outlives the communicator, and is left alone while that lives.
        let comm = unsafe { builder().signal_addresses(addresses) }.build().expect("communicator");
        let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 200_000]).expect("buffer")).collect();
        let what = Broadcast::from_root(round).algorithm(Algorithm::TwoStageStaged);
        comm.broadcast_in_place(&mut data, what).expect("launch").wait().expect("outcome");
        assert!(data.iter().all(|one| one.to_vec().expect("read") == [round as u8; 200_000]));
        drop(data);
    }
    // It was used, and not given back: with its owner it is, once.
    assert!(memory[0].to_vec().expect("read").iter().any(|byte| !matches!(byte, 0 | 0xff)));
    drop(memory);

    let refused = |addresses: Vec<(u64, usize)>, text: &str| {
        // SAFETY: refused before anything is touched.
        let error = unsafe { builder().signal_addresses(addresses) }.build().expect_err("wrong addresses");
        assert_eq!(error.to_string(), text);
    };
    let [good, _] = addresses;
    refused(vec![good], "communicator: signal_addresses: expected one for each of the 2 ranks, got 1");
    refused(vec![(0, bytes); 2], "communicator: signal buffer of rank 0: expected an address aligned to 128 bytes, got 0x0");
    refused(vec![(0x1040, bytes); 2], "communicator: signal buffer of rank 0: expected an address aligned to 128 bytes, got 0x1040");
    let text = format!("communicator: signal buffer of rank 0: expected at least {bytes} bytes (see signal_buffer_bytes), got 1 bytes");
    refused(vec![(good.0, 1); 2], &text);
    let both = builder().signal_buffers(streams.iter().map(|s| Buffer::<B, u8>::coherent(s, bytes).expect("buffer")));
    // SAFETY: as above.
    let error = unsafe { both.signal_addresses(addresses) }.build().expect_err("both");
    assert_eq!(error.to_string(), "communicator: signal_addresses: expected none, there being signal_buffers, got both");
}

/// Case C9: the same device twice is a mistake unless it was asked for.
#[rstest]
fn c9_ranks_may_share_a_device_if_asked_for() {
    needs_device!();
    let error = Communicator::<B>::builder([0, 0]).build().expect_err("the same device twice");
    assert!(matches!(error, Error::InvalidArgument { argument: "device", .. }), "{error}");
    let other = 1 % B::device_count().expect("devices");
    let comm = Communicator::<B>::builder([0, 0, other]).virtual_ranks(true).build().expect("communicator");
    let mut buffers: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[r as u8; 10]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut buffers, 1).expect("launch").wait().expect("outcome");
    assert!(buffers.iter().all(|b| b.to_vec().expect("read") == [1; 10]));
}

/// As many ranks as are asked for, on as many devices as there are.
#[rstest]
fn ranks_beyond_the_devices_share_them() {
    needs_device!(5);
    let comm = Communicator::<B>::builder_for_ranks(5).build().expect("communicator");
    let devices = B::device_count().expect("devices");
    for rank in 0..5 {
        assert_eq!(B::ordinal(&B::device_of(comm.stream(rank).expect("a rank"))), rank % devices);
    }
    let mut buffers: Vec<_> = (0..5).map(|r| comm.buffer_from(r, &[r as u8; 10]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut buffers, 4).expect("launch").wait().expect("outcome");
    assert!(buffers.iter().all(|b| b.to_vec().expect("read") == [4; 10]));
}

/// What the planner knows of the machine is of these devices: only threads are in the machine's own memory, and only ranks
/// of one device share that device's.
#[rstest]
fn how_the_devices_are_joined() {
    needs_device!();
    let wiring = communicator::<B>(4).topology().wiring;
    assert_eq!(wiring == Wiring::Host, matches!(B::NAME, "cpu" | "toy"), "{wiring}");
    if B::device_count().expect("devices") > 1 {
        assert_ne!(wiring, Wiring::Device);
    }
}

/// I6: ranks that share a device share its room, however many blocks are asked for; where none are, a launch has as many as
/// the device prefers, and one where others would come too late to be of use.
#[rstest]
fn ranks_that_share_a_device_share_its_room() {
    needs_device!();
    let comm = Communicator::<B>::builder([0; 4]).virtual_ranks(true).build().expect("communicator");
    let device = B::device_of(comm.stream(0).expect("a rank"));
    let properties = B::properties(&device, 4, 4).expect("properties");
    let plan = |bytes, what: Broadcast| comm.plan_broadcast(bytes, DType::U8, what).expect("plan");
    let most = plan(1 << 30, Broadcast::from_root(0).max_blocks(128));
    let functions = B::load(&device).expect("kernels");
    let (_, function) = Kernel::all().zip(&functions).find(|(kernel, _)| *kernel == most.kernel).expect("a kernel");
    let room = B::resident_blocks(&device, *function).expect("a number");
    assert!(most.blocks == 1 || most.blocks * 4 <= room, "{most}, and room for {room}");
    let usual = plan(1 << 30, 0.into()).blocks;
    assert!(usual <= properties.preferred_blocks.broadcast, "{usual} blocks of {:?}", properties.preferred_blocks);
    if properties.one_block > 0 {
        assert_eq!(plan(properties.one_block as usize - 1, Broadcast::from_root(0).algorithm(Algorithm::OneStage)).blocks, 1);
    }
}

/// Two communicators on the same devices and streams.
#[rstest]
fn two_communicators_on_the_same_devices() {
    needs_device!();
    let first = communicator::<B>(4);
    let second = communicator::<B>(4);
    let mut a: Vec<_> = (0..4).map(|r| first.buffer_from(r, &[r as u8; 1000]).expect("buffer")).collect();
    let mut b: Vec<_> = (0..4).map(|r| second.buffer_from(r, &[r as u8; 1000]).expect("buffer")).collect();
    for round in 0..50 {
        let one = first.broadcast_in_place(&mut a, round % 4).expect("launch");
        let two = second.broadcast_in_place(&mut b, 3 - round % 4).expect("launch");
        two.wait().expect("outcome");
        one.wait().expect("outcome");
    }
}
}
