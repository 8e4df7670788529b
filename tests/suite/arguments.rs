//! Bad input is refused before anything is launched, with these exact words.

use std::time::Duration;

use crossccl::{
    Algorithm, Backend, Broadcast, Buffer, Communicator, DType, Error, RawRank, Reason, ReduceOp, ReduceScatter, Result,
    Untyped, Wiring,
};
use rstest::rstest;

use super::B;
use crate::support::{communicator, rank_handles};

#[track_caller]
fn refused<T>(outcome: Result<T>, text: &str) {
    assert_eq!(outcome.err().map(|e| e.to_string()).as_deref(), Some(text));
}

fn buffers(comm: &Communicator<B>, len: usize) -> Vec<Buffer<B, f32>> {
    (0..comm.ranks()).map(|r| comm.buffer_from(r, &vec![0.5; len]).expect("buffer")).collect()
}

/// Case B14.
#[rstest]
fn b14_numbers_of_ranks() {
    needs_device!();
    let build = |ranks: usize| crate::support::builder::<B>(0..ranks).build();
    refused(build(0), "communicator: devices: expected 1 to 64, got 0");
    refused(build(65), "communicator: devices: expected 1 to 64, got 65");
    assert_eq!(build(64).expect("64 ranks").ranks(), 64);
    // One rank is a copy.
    let alone = build(1).expect("one rank");
    let input = alone.buffer_from(0, &[1.5f32; 9]).expect("buffer");
    let mut output = [alone.buffer(0, 9).expect("buffer")];
    alone.broadcast(&input, &mut output, 0).expect("launch").wait().expect("outcome");
    assert_eq!(output[0].to_vec().expect("read"), [1.5; 9]);
    alone.reduce_scatter([&output[0]], [&mut alone.buffer(0, 9).expect("buffer")], ReduceOp::Sum).expect("launch").wait().expect("outcome");
}

#[rstest]
fn builders() {
    needs_device!();
    let builder = || crate::support::builder::<B>(0..2);
    refused(builder().max_blocks(0).build(), "communicator: max_blocks: expected 1 to 128, got 0");
    refused(builder().max_blocks(100_000).build(), "communicator: max_blocks: expected 1 to 128, got 100000");
    refused(
        builder().payload_bytes((1 << 40) + 1).build(),
        "communicator: payload_bytes: expected at most 1 TiB, got 1099511627777",
    );
    refused(builder().timeout(Duration::ZERO).build(), "communicator: timeout: expected more than zero (or None), got 0 s");
    refused(
        Communicator::<B>::builder([0, 0]).build(),
        "communicator: device of rank 1: expected a device of its own (or virtual_ranks(true), which lets ranks share one), got device 0 again",
    );
    let device = B::open(0).expect("device");
    let stream = B::create_stream(&device).expect("stream");
    refused(builder().streams([stream.clone()]).build(), "communicator: streams: expected one for each of the 2 ranks, got 1");
    if B::device_count().expect("devices") > 1 {
        refused(
            builder().streams([stream.clone(), stream]).build(),
            "communicator: stream of rank 1: expected one on the rank's device 1, got one on device 0",
        );
    }
    let stream = B::create_stream(&B::open(0).expect("device")).expect("stream");
    let text = format!(
        "communicator: stream of rank 1: expected one that does not wait for another rank's, got {stream:?}, and rank 0 has \
         {stream:?}"
    );
    refused(Communicator::<B>::builder([0, 0]).virtual_ranks(true).streams([stream.clone(), stream]).build(), &text);
}

#[rstest]
fn device_that_does_not_exist() {
    needs_device!();
    let count = B::device_count().expect("devices");
    let text = format!(
        "communicator: device of rank 1: expected one of the {count} {} devices, numbered from 0, got {count}",
        B::NAME
    );
    refused(Communicator::<B>::builder([0, count]).build(), &text);
}

#[rstest]
fn roots() {
    needs_device!();
    let comm = communicator(3);
    let input = comm.buffer_from(0, &[1.0; 4]).expect("buffer");
    let mut outputs = buffers(&comm, 4);
    refused(comm.broadcast(&input, &mut outputs, 3), "broadcast: root: expected a rank from 0 to 2, got 3");
    refused(comm.broadcast_in_place(&mut outputs, usize::MAX), "broadcast: root: expected a rank from 0 to 2, got 4294967295");
    let ranks = rank_handles::<B>(2, Duration::from_secs(1));
    let mut data = ranks[0].buffer::<f32>(4).expect("buffer");
    refused(ranks[0].broadcast_in_place(&mut data, 2), "broadcast: root: expected a rank from 0 to 1, got 2");
    refused(
        ranks[0].broadcast(None::<&Buffer<B, f32>>, &mut data, 0),
        "broadcast: input of rank 0: expected one, since this rank is the root, got none",
    );
    assert!(outputs.iter().all(|o| o.to_vec().expect("read") == [0.5; 4]), "something was written");
}

#[rstest]
fn lengths() {
    needs_device!();
    let comm = communicator(3);
    let input = comm.buffer_from(1, &[1.0; 4]).expect("buffer");
    let mut outputs = buffers(&comm, 4);
    outputs[2] = comm.buffer(2, 5).expect("buffer");
    refused(
        comm.broadcast(&input, &mut outputs, 1),
        "broadcast: output of rank 2: expected 4 elements, as the input of the root, got 5",
    );
    refused(comm.broadcast(&input, &mut outputs[..2], 1), "broadcast: outputs: expected one for each of the 3 ranks, got 2");
    refused(comm.broadcast_in_place(&mut outputs[..0], 0), "broadcast: outputs: expected one for each of the 3 ranks, got 0");

    let mut inputs = buffers(&comm, 9);
    let mut outputs = buffers(&comm, 3);
    let op = ReduceOp::Sum;
    inputs[1] = comm.buffer(1, 8).expect("buffer");
    refused(
        comm.reduce_scatter(&inputs, &mut outputs, op),
        "reduce_scatter: input of rank 1: expected 9 elements, as rank 0 of its group, got 8",
    );
    inputs[1] = comm.buffer(1, 9).expect("buffer");
    outputs[2] = comm.buffer(2, 2).expect("buffer");
    refused(
        comm.reduce_scatter(&inputs, &mut outputs, op),
        "reduce_scatter: output of rank 2: expected 3 elements, its part of the shape [9] along axis 0, got 2",
    );
    refused(
        comm.reduce_scatter(&inputs[..2], &mut outputs, op),
        "reduce_scatter: inputs: expected one for each of the 3 ranks, got 2",
    );
    refused(
        comm.reduce_scatter(&inputs, &mut outputs[..2], op),
        "reduce_scatter: outputs: expected one for each of the 3 ranks, got 2",
    );
    assert!(outputs[..2].iter().all(|o| o.to_vec().expect("read") == [0.5; 3]), "something was written");
}

#[rstest]
#[case::negative_axis(ReduceScatter::new(ReduceOp::Sum).axis(-1), "axis: expected an axis of the shape [12], counted from 0, got -1")]
#[case::axis(ReduceScatter::new(ReduceOp::Sum).shape([3, 4]).axis(2), "axis: expected an axis of the shape [3, 4], counted from 0, got 2")]
#[case::shape(ReduceScatter::new(ReduceOp::Sum).shape([3, 5]), "input of rank 0: expected 15 elements, the shape being [3, 5], got 12")]
#[case::no_axis(ReduceScatter::new(ReduceOp::Sum).shape([]), "axis: expected an axis of the shape [], counted from 0, got 0")]
#[case::huge_shape(
    ReduceScatter::new(ReduceOp::Sum).shape([usize::MAX, 2]),
    "shape: expected a shape whose elements can be counted in 64 bits, got [18446744073709551615, 2]"
)]
#[case::group_of_none(ReduceScatter::new(ReduceOp::Sum).group_size(0), "group_size: expected a divisor of the 4 ranks, got 0")]
#[case::group_of_three(ReduceScatter::new(ReduceOp::Sum).group_size(3), "group_size: expected a divisor of the 4 ranks, got 3")]
#[case::group_of_all_twice(ReduceScatter::new(ReduceOp::Sum).group_size(8), "group_size: expected a divisor of the 4 ranks, got 8")]
#[case::shapes(
    ReduceScatter::new(ReduceOp::Sum).group_size(2).group_shapes([[12], [12], [12]]),
    "shapes: expected one, or one for each of the 2 groups, got 3"
)]
#[case::strides(
    ReduceScatter::new(ReduceOp::Sum).shape([3, 4]).strides([1, 3]),
    "strides [1, 3] are not those of a contiguous row-major tensor of shape [3, 4] ([4, 1]); copy the tensor to a contiguous one first"
)]
#[case::no_blocks(ReduceScatter::new(ReduceOp::Sum).max_blocks(0), "max_blocks: expected 1 to 128, got 0")]
#[case::b10_blocks(ReduceScatter::new(ReduceOp::Sum).max_blocks(100_000), "max_blocks: expected 1 to 128, got 100000")]
#[case::no_time(ReduceScatter::new(ReduceOp::Sum).timeout(Duration::ZERO), "timeout: expected more than zero (or no_timeout), got 0 s")]
#[case::algorithm(
    ReduceScatter::new(ReduceOp::Sum).algorithm(Algorithm::TwoStage),
    "the algorithm two-stage is for broadcast; use auto, one-stage or low-latency"
)]
fn reduce_scatters(#[case] what: ReduceScatter, #[case] text: &str) {
    needs_device!();
    let comm = communicator(4);
    let inputs = buffers(&comm, 12);
    let mut outputs = buffers(&comm, 3);
    refused(comm.reduce_scatter(&inputs, &mut outputs, what), &format!("reduce_scatter: {text}"));
    assert!(outputs.iter().all(|o| o.to_vec().expect("read") == [0.5; 3]), "something was written");
}

#[rstest]
fn contiguous_strides_are_fine() {
    needs_device!();
    let comm = communicator(2);
    let inputs = buffers(&comm, 12);
    let mut outputs = buffers(&comm, 6);
    // The stride of an axis of one element means nothing.
    for (shape, strides) in [([1, 6, 2], [99, 2, 1]), ([2, 6, 1], [6, 1, 99])] {
        let what = ReduceScatter::new(ReduceOp::Sum).shape(shape).strides(strides).axis(1);
        comm.reduce_scatter(&inputs, &mut outputs, what).expect("launch").wait().expect("outcome");
    }
    let what = ReduceScatter::new(ReduceOp::Sum).shape([2, 3, 2]).strides([6, 2, 1]);
    comm.reduce_scatter(&inputs, &mut outputs, what).expect("launch").wait().expect("outcome");
    assert_eq!(outputs[1].to_vec().expect("read"), [1.0; 6]);
}

/// An inbox takes so much and no more.
#[rstest]
fn packets_have_a_limit() {
    needs_device!();
    let comm = communicator(2);
    let most = crossccl::low_latency_bytes(2);
    let mut data = buffers(&comm, most / 4 + 1);
    refused(
        comm.broadcast_in_place(&mut data, Broadcast::from_root(0).algorithm(Algorithm::LowLatency)),
        "broadcast: the algorithm low-latency moves at most 65536 bytes from rank to rank in this communicator, and this \
         broadcast has 65540; use auto or one-stage",
    );
    let mut data = buffers(&comm, most / 2 + 1);
    refused(
        comm.reduce_scatter_in_place(&mut data, ReduceScatter::new(ReduceOp::Sum).algorithm(Algorithm::LowLatency)),
        "reduce_scatter: the algorithm low-latency moves at most 65536 bytes from rank to rank in this communicator, and \
         the largest part here has 65540; use auto or one-stage",
    );
    let mut data = buffers(&comm, most / 2);
    let what = ReduceScatter::new(ReduceOp::Sum).algorithm(Algorithm::LowLatency);
    comm.reduce_scatter_in_place(&mut data, what).expect("launch").wait().expect("outcome");
}

#[rstest]
fn two_stage_without_payload() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..2).payload_bytes(0).build().expect("communicator");
    let mut data = buffers(&comm, 4);
    comm.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("one stage needs none");
    refused(
        comm.broadcast_in_place(&mut data, Broadcast::from_root(0).algorithm(Algorithm::TwoStageStaged)),
        "broadcast: the algorithm two-stage-staged needs payload in the signal buffers, and the communicator was built with none; \
         set payload_bytes on the builder",
    );
}

#[rstest]
fn in_place_is_along_axis_0() {
    needs_device!();
    let comm = communicator(2);
    let mut data = buffers(&comm, 12);
    refused(
        comm.reduce_scatter_in_place(&mut data, ReduceScatter::new(ReduceOp::Sum).shape([3, 4]).axis(1)),
        "reduce_scatter: in place is offered along axis 0 only, not along axis 1; give separate outputs",
    );
}

#[rstest]
fn buffers_of_another_rank_or_dtype() {
    needs_device!();
    let comm = communicator(2);
    let mut data = buffers(&comm, 4);
    data.swap(0, 1);
    let text = format!(
        "broadcast: input of rank 0: expected a buffer of rank 0 of this communicator, on device {}, got one of rank 1",
        B::ordinal(&B::device_of(comm.stream(0).expect("a rank")))
    );
    refused(comm.broadcast_in_place(&mut data, 0), &text);

    let sized = |rank: usize, dtype, len| {
        Buffer::<B, Untyped>::with_dtype(comm.stream(rank).expect("a rank"), dtype, len).expect("buffer")
    };
    let untyped = |rank, dtype| sized(rank, dtype, 4);
    let mut mixed = [untyped(0, DType::F32), untyped(1, DType::I32)];
    refused(comm.broadcast_in_place(&mut mixed, 0), "broadcast: output of rank 1: expected elements of f32, got i32");
    let inputs = [untyped(0, DType::F32), untyped(1, DType::F16)];
    refused(
        comm.reduce_scatter(&inputs, &mut [sized(0, DType::F32, 2), sized(1, DType::F32, 2)], ReduceOp::Sum),
        "reduce_scatter: input of rank 1: expected elements of f32, got f16",
    );
}

/// Case C2: the in-place rule, and everything beside it. The addresses are never read.
#[rstest]
fn c2_overlaps() {
    needs_device!();
    let comm = communicator(2);
    let data = buffers(&comm, 100);
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let [a, b] = [data[0].address(), data[1].address()];
    let broadcast = |ranks: [(u64, u64); 2], count: usize| {
        let ranks = ranks.map(|(send, recv)| RawRank::new(send, recv));
        // SAFETY: refused before anything is launched.
        unsafe { comm.broadcast_raw(&ranks, &streams, count, DType::F32, 0) }.map(drop)
    };
    let hex = |address: u64| format!("{address:#x}");
    refused(
        broadcast([(a, a + 4), (0, b)], 10),
        &format!(
            "broadcast: output of rank 0: expected no overlap with the input of rank 0 (40 bytes at {}) other than the in-place form, got 40 bytes at {}",
            hex(a),
            hex(a + 4)
        ),
    );
    refused(
        broadcast([(a, a), (0, a + 36)], 10),
        &format!(
            "broadcast: output of rank 1: expected no overlap with the output of rank 0 (40 bytes at {}), got 40 bytes at {}",
            hex(a),
            hex(a + 36)
        ),
    );
    refused(
        broadcast([(a + 1, b), (0, b + 40)], 10),
        &format!("broadcast: input of rank 0: expected an address aligned to the 4 bytes of f32, got {}", hex(a + 1)),
    );
    refused(broadcast([(a, a), (0, 0)], 10), "broadcast: output of rank 1: expected an address for 40 bytes, got null");

    let reduce = |ranks: [(u64, u64); 2], what: ReduceScatter| {
        let ranks = ranks.map(|(send, recv)| RawRank::new(send, recv));
        // SAFETY: refused before anything is launched, or in place in buffers that live on.
        unsafe { comm.reduce_scatter_raw(&ranks, &streams, &[20, 20], DType::F32, what) }?.wait()
    };
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    assert_eq!(reduce([(a, a), (b, b + 40)], sum()), Ok(()));
    refused(
        reduce([(a, a), (b, b + 44)], sum()),
        &format!(
            "reduce_scatter: output of rank 1: expected no overlap with the input of rank 1 (80 bytes at {}) other than the in-place form, got 40 bytes at {}",
            hex(b),
            hex(b + 44)
        ),
    );
    refused(
        reduce([(a, a), (b, b)], sum().shape([2, 10]).axis(1)),
        &format!(
            "reduce_scatter: output of rank 0: expected no overlap with the input of rank 0 (80 bytes at {}) other than the in-place form, got 40 bytes at {}",
            hex(a),
            hex(a)
        ),
    );
}

/// Case B3: counts whose bytes do not fit.
#[rstest]
fn b3_counts_that_overflow() {
    needs_device!();
    let comm = communicator::<B>(2);
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let ranks = [RawRank::new(64, 64); 2];
    // SAFETY: refused before anything is launched.
    let outcome = unsafe { comm.broadcast_raw(&ranks, &streams, usize::MAX / 2, DType::F32, 0) };
    refused(
        outcome,
        "broadcast: count of rank 0: expected at most 2305843009213693951 elements of f32, got 9223372036854775807",
    );
    // SAFETY: as above.
    let outcome = unsafe { comm.reduce_scatter_raw(&ranks, &streams, &[usize::MAX / 2; 2], DType::F32, ReduceOp::Sum) };
    refused(
        outcome,
        "reduce_scatter: count of rank 0: expected at most 2305843009213693951 elements of f32, got 9223372036854775807",
    );
    refused(
        Buffer::<B, f64>::new(&streams[0], usize::MAX),
        "buffer: length: expected at most 2305843009213693951 elements of f64, got 18446744073709551615",
    );
    let error = Buffer::<B, f64>::new(&streams[0], usize::MAX / 16).expect_err("no such memory");
    assert!(matches!(error, Error::Driver { .. }), "{error}");
}

#[rstest]
fn raw_streams_and_ranks() {
    needs_device!();
    let comm = communicator::<B>(2);
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let data = buffers(&comm, 4);
    let ranks: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    // SAFETY: refused before anything is launched.
    unsafe {
        refused(
            comm.broadcast_raw(&ranks, &streams[..1], 4, DType::F32, 0),
            "broadcast: streams: expected one for each of the 2 ranks, got 1",
        );
        refused(
            comm.broadcast_raw(&ranks[..1], &streams, 4, DType::F32, 0),
            "broadcast: ranks: expected one for each of the 2 ranks, got 1",
        );
        refused(
            comm.reduce_scatter_raw(&ranks, &streams, &[4], DType::F32, ReduceOp::Sum),
            "reduce_scatter: counts: expected one for each of the 2 ranks, got 1",
        );
        let mut wrongs = vec![[streams[0].clone(), streams[0].clone()]];
        if B::device_count().expect("devices") > 1 {
            wrongs.push([streams[1].clone(), streams[0].clone()]);
        }
        for wrong in wrongs {
            let error = comm.broadcast_raw(&ranks, &wrong, 4, DType::F32, 0).expect_err("wrong device");
            assert!(matches!(error, Error::InvalidArgument { argument: "stream", .. }), "{error}");
        }
    }
    // A refusal leaves no trace: the next call is right.
    let mut data = data;
    comm.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
}

#[rstest]
fn slices_and_lengths_of_buffers() {
    needs_device!();
    let comm = communicator::<B>(1);
    let mut buffer = comm.buffer_from(0, &[1u8, 2, 3]).expect("buffer");
    refused(buffer.slice(2..4), "buffer slice: range: expected a range within 0..3, got 2..4");
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = buffer.slice_mut(2..1).map(drop);
    refused(backwards, "buffer slice: range: expected a range within 0..3, got 2..1");
    refused(buffer.write(&[1, 2]), "buffer write: length: expected 3 bytes, got 2");
    refused(buffer.read_bytes(&mut [0; 4]), "buffer read: length: expected 3 bytes, got 4");
    refused(buffer.write_at(2, &[1, 2]), "buffer slice: range: expected a range within 0..3, got 2..4");
    refused(comm.buffer::<u8>(1, 1), "buffer: rank: expected a rank from 0 to 0, got 1");
    assert_eq!(buffer.to_vec().expect("read"), [1, 2, 3]);
}

/// A plan can be asked for without buffers, and is refused in the words of the call.
#[rstest]
fn plans() {
    needs_device!();
    let comm = communicator::<B>(4);
    let plan = |what: Broadcast| comm.plan_broadcast(1 << 20, DType::F32, what);
    let broadcast = || Broadcast::from_root(3);
    let why = comm.explain_broadcast(1 << 20, DType::F32, broadcast()).expect("an explanation");
    assert_eq!(plan(broadcast()).expect("plan"), why.plan);
    if why.reason == Reason::Model {
        assert!(why.others.iter().all(|other| other.cost.total() >= why.cost.total()), "{why}");
    }
    // Where all ranks share one memory there is nothing to win by a second stage.
    if [Wiring::Device, Wiring::Host, Wiring::Bus].contains(&comm.topology().wiring) {
        assert_eq!(why.plan.algorithm, Algorithm::OneStage, "{why}");
    }
    let staged = plan(broadcast().algorithm(Algorithm::TwoStageStaged)).expect("plan");
    assert_eq!(staged.algorithm, Algorithm::TwoStageStaged);
    // `two-stage` lets the planner pick the form; which one depends on the backend's memory.
    let form = plan(broadcast().algorithm(Algorithm::TwoStage)).expect("plan").algorithm;
    assert!([Algorithm::TwoStageStaged, Algorithm::TwoStageDirect].contains(&form), "{form}");
    assert_eq!(plan(broadcast().max_blocks(1)).expect("plan").blocks, 1);
    refused(plan(Broadcast::from_root(4)), "broadcast: root: expected a rank from 0 to 3, got 4");
    refused(
        comm.plan_broadcast(usize::MAX, DType::F32, 0),
        "broadcast: count of rank 0: expected at most 2305843009213693951 elements of f32, got 18446744073709551615",
    );

    let plan = |rank: usize, what: ReduceScatter| comm.plan_reduce_scatter(rank, 64, DType::F16, what);
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    let chosen = plan(3, sum().shape([8, 8]).axis(1).group_size(2)).expect("plan").algorithm;
    assert!([Algorithm::OneStage, Algorithm::LowLatency].contains(&chosen), "{chosen}");
    let why = comm.explain_reduce_scatter(3, 64, DType::F16, sum().shape([8, 8]).axis(1).group_size(2));
    let why = why.expect("an explanation");
    assert_eq!((why.plan.algorithm, why.ranks, why.bytes), (chosen, 2, 128));
    // Groups may differ: the rank says whose plan.
    let shapes = || sum().group_size(2).group_shapes([vec![64], vec![32]]);
    assert!(plan(1, shapes()).is_ok());
    refused(plan(2, shapes()), "reduce_scatter: input of rank 2: expected 32 elements, the shape being [32], got 64");
    refused(
        plan(0, sum().axis(-1)),
        "reduce_scatter: axis: expected an axis of the shape [64], counted from 0, got -1",
    );
    assert!(plan(4, sum()).is_err());
}
