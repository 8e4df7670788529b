//! What a rank brings to a call of its own is looked at like what a call for all ranks brings (`arguments.rs`): the two
//! have ways of their own through validation.

use std::time::Duration;

use crossccl::{Backend, Buffer, DType, Destination, RankComm, RawRank, ReduceOp, ReduceScatter, Result};
use rstest::rstest;

use super::B;
use crate::support::rank_handles;

#[track_caller]
fn refused<T>(outcome: Result<T>, text: &str) {
    assert_eq!(outcome.err().map(|e| e.to_string()).as_deref(), Some(text));
}

fn two() -> Vec<RankComm<B>> {
    rank_handles(2, Duration::from_secs(20))
}

fn of(comm: &RankComm<B>, len: usize) -> Buffer<B, f32> {
    comm.buffer_from(&vec![0.5; len]).expect("buffer")
}

/// A buffer on the other rank's stream, in each place that an argument has.
#[rstest]
fn buffers_of_another_rank() {
    needs_device!();
    let ranks = two();
    let (me, other) = (&ranks[0], &ranks[1]);
    let text = |argument: &str| {
        let device = B::ordinal(&B::device_of(me.stream()));
        format!(
            "{argument} of rank 0: expected a buffer of rank 0 of this communicator, on device {device}, got one of rank 1"
        )
    };
    let (mut mine, mut theirs) = (of(me, 4), of(other, 4));
    refused(me.broadcast_in_place(&mut theirs, 1), &format!("broadcast: {}", text("output")));
    refused(me.broadcast(Some(&theirs), &mut mine, 0), &format!("broadcast: {}", text("input")));
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    let (mut part, mut their_part) = (of(me, 2), of(other, 2));
    refused(me.reduce_scatter(&theirs, &mut part, sum()), &format!("reduce_scatter: {}", text("input")));
    refused(me.reduce_scatter(&mine, &mut their_part, sum()), &format!("reduce_scatter: {}", text("output")));
    let added = Destination::new(&mut part).residual(&their_part);
    refused(me.reduce_scatter_fused(&mine, added, sum()), &format!("reduce_scatter: {}", text("residual")));
    let long = of(me, 3);
    let added = Destination::new(&mut part).residual(&long);
    refused(
        me.reduce_scatter_fused(&mine, added, sum()),
        "reduce_scatter: residual of rank 0: expected 2 elements, its part of the shape [4] along axis 0, got 3",
    );
    refused(
        me.broadcast(Some(&long), &mut mine, 0),
        "broadcast: input of rank 0: expected 4 elements, as the output, got 3",
    );
    for untouched in [mine, part] {
        assert!(untouched.to_vec().expect("read").iter().all(|x| *x == 0.5), "something was written");
    }
}

/// By address: overlaps, alignment, presence, sizes, and what has no epilogue.
#[rstest]
fn addresses() {
    needs_device!();
    let ranks = two();
    let me = &ranks[0];
    let memory = of(me, 100);
    let a = memory.address();
    let broadcast = |at: RawRank, count: usize| {
        // SAFETY: refused before anything is launched.
        unsafe { me.broadcast_raw(at, me.stream(), count, DType::F32, 0) }.map(drop)
    };
    let reduce = |at: RawRank, count: usize, dtype: DType, what: ReduceScatter| {
        // SAFETY: as above.
        unsafe { me.reduce_scatter_raw(at, me.stream(), count, dtype, what) }.map(drop)
    };
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    let span = |bytes: u64, at: u64| format!("{bytes} bytes at {at:#x}");
    let overlap = |operation: &str, with: &str, output: &str| {
        format!("{operation}: output of rank 0: expected no overlap with {with}, got {output}")
    };

    let apart = format!("the input of rank 0 ({}) other than the in-place form", span(40, a));
    refused(broadcast(RawRank::new(a, a + 4), 10), &overlap("broadcast", &apart, &span(40, a + 4)));
    let apart = format!("the input of rank 0 ({}) other than the in-place form", span(80, a));
    let at = RawRank::new(a, a + 40);
    refused(reduce(at, 20, DType::F32, sum()), &overlap("reduce_scatter", &apart, &span(40, a + 40)));
    let apart = format!("the residual of rank 0 ({}) other than the output itself", span(40, a + 204));
    let at = RawRank { residual: a + 204, ..RawRank::new(a, a + 200) };
    refused(reduce(at, 20, DType::F32, sum()), &overlap("reduce_scatter", &apart, &span(40, a + 200)));

    let odd = |argument: &str, at: u64| {
        format!("reduce_scatter: {argument} of rank 0: expected an address aligned to the 4 bytes of f32, got {at:#x}")
    };
    refused(reduce(RawRank::new(a + 1, a + 200), 20, DType::F32, sum()), &odd("input", a + 1));
    refused(reduce(RawRank::new(a, a + 202), 20, DType::F32, sum()), &odd("output", a + 202));
    let at = RawRank { residual: a + 303, ..RawRank::new(a, a + 200) };
    refused(reduce(at, 20, DType::F32, sum()), &odd("residual", a + 303));
    refused(
        reduce(RawRank::new(0, a), 20, DType::F32, sum()),
        "reduce_scatter: input of rank 0: expected an address for 80 bytes, got null",
    );

    // The most elements that there can be are one fewer.
    let many = 2_305_843_009_213_693_952;
    let text = |operation: &str| {
        format!("{operation}: count of rank 0: expected at most {} elements of f32, got {many}", many - 1)
    };
    refused(broadcast(RawRank::new(a, a), many), &text("broadcast"));
    refused(reduce(RawRank::new(a, a), many, DType::F32, sum()), &text("reduce_scatter"));

    let at = RawRank { residual: a + 200, ..RawRank::new(a, a + 200) };
    refused(
        reduce(at, 20, DType::I32, sum()),
        "reduce_scatter: a residual with i32 is not offered: f16, bf16 and f32 become each other, f64 stays f64, \
         integers have no epilogue",
    );
    refused(
        reduce(at, 20, DType::F32, ReduceScatter::new(ReduceOp::Max)),
        "reduce_scatter: a residual with f32 is offered for sum and average, not for max",
    );
    refused(
        reduce(RawRank::new(a, a + 200), 20, DType::I32, sum().factor(2.0)),
        "reduce_scatter: a factor with i32 is not offered: f16, bf16 and f32 become each other, f64 stays f64, \
         integers have no epilogue",
    );
    assert!(memory.to_vec().expect("read").iter().all(|x| *x == 0.5), "something was written");
}

/// A stream of another device.
#[rstest]
fn streams() {
    needs_device!();
    let ranks = two();
    let (me, other) = (&ranks[0], &ranks[1]);
    let [mine, theirs] = [me, other].map(|comm| B::ordinal(&B::device_of(comm.stream())));
    if mine == theirs {
        println!("SKIPPED {}: one device", B::NAME);
        return;
    }
    let memory = of(me, 4);
    let at = RawRank::new(memory.address(), memory.address());
    // SAFETY: refused before anything is launched.
    let outcome = unsafe { me.broadcast_raw(at, other.stream(), 4, DType::F32, 1) };
    let text = format!(
        "broadcast: stream of rank 0: expected a stream of the rank's device {mine}, got one of device {theirs}"
    );
    refused(outcome, &text);
}

/// Sizes and epilogues are refused where a plan is asked for, and a call for all ranks is held to the same.
#[rstest]
fn plans_and_calls_for_all_ranks() {
    needs_device!();
    let comm = crate::support::communicator::<B>(2);
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    let many = 2_305_843_009_213_693_952;
    let text = |operation: &str| {
        format!("{operation}: count of rank 0: expected at most {} elements of f32, got {many}", many - 1)
    };
    refused(comm.plan_reduce_scatter(0, many, DType::F32, sum()), &text("reduce_scatter"));
    refused(comm.explain_reduce_scatter(0, many, DType::F32, sum()), &text("reduce_scatter"));
    refused(comm.explain_broadcast(many, DType::F32, 0), &text("broadcast"));
    assert!(comm.plan_broadcast(many - 1, DType::F32, 0).is_ok(), "the most that there can be");
    refused(
        comm.explain_broadcast(4, DType::F32, crossccl::Broadcast::from_root(0).max_blocks(129)),
        "broadcast: max_blocks: expected 1 to 128, got 129",
    );
    let most = crossccl::Broadcast::from_root(0).max_blocks(128);
    assert!(comm.plan_broadcast(4, DType::F32, most).is_ok(), "as many blocks as there may be");
    let out = "reduce_scatter: rank: expected a rank from 0 to 1, got 2";
    refused(comm.plan_reduce_scatter(2, 4, DType::F32, sum()), out);
    refused(comm.explain_reduce_scatter(2, 4, DType::F32, sum()), out);
    refused(comm.part(2, 4, sum()), out);
    refused(
        comm.plan_reduce_scatter(0, 4, DType::I32, sum().factor(2.0)),
        "reduce_scatter: a factor with i32 is not offered: f16, bf16 and f32 become each other, f64 stays f64, \
         integers have no epilogue",
    );

    let data = [0, 1].map(|rank| comm.buffer_from(rank, &[0.5f32; 8]).expect("buffer"));
    let streams = [0, 1].map(|rank| comm.stream(rank).expect("a rank").clone());
    let at = [0, 1].map(|rank: usize| {
        let a = data[rank].address();
        RawRank { residual: a + 16, ..RawRank::new(a, a + 16) }
    });
    // SAFETY: all are refused before anything is launched.
    unsafe {
        refused(
            comm.reduce_scatter_raw(&at[..1], &streams, &[4, 4], DType::F32, sum()),
            "reduce_scatter: ranks: expected one for each of the 2 ranks, got 1",
        );
        refused(
            comm.reduce_scatter_raw(&at, &streams, &[4, 4], DType::F32, ReduceScatter::new(ReduceOp::Min)),
            "reduce_scatter: a residual with f32 is offered for sum and average, not for min",
        );
        let mut null = at;
        null[1].send = 0;
        refused(
            comm.reduce_scatter_raw(&null, &streams, &[4, 4], DType::F32, sum()),
            "reduce_scatter: input of rank 1: expected an address for 16 bytes, got null",
        );
        null[1] = RawRank { recv: at[1].recv + 2, ..at[1] };
        let text = format!(
            "reduce_scatter: output of rank 1: expected an address aligned to the 4 bytes of f32, got {:#x}",
            null[1].recv
        );
        refused(comm.reduce_scatter_raw(&null, &streams, &[4, 4], DType::F32, sum()), &text);
    }
    assert!(data.iter().all(|one| one.to_vec().expect("read") == [0.5; 8]), "something was written");
}

/// With a shape for each group, a rank's is that of its own group.
#[rstest]
fn shapes_by_group() {
    needs_device!();
    let ranks = rank_handles::<B>(4, Duration::from_secs(20));
    let what = || ReduceScatter::new(ReduceOp::Sum).group_size(2).group_shapes([[4], [6]]);
    for (rank, comm) in ranks.iter().enumerate() {
        let (right, wrong) = if rank < 2 { (4, 6) } else { (6, 4) };
        assert_eq!(comm.part(right, what()).expect("a part").count(), right as u64 / 2);
        let memory = of(comm, 8);
        let at = RawRank::new(memory.address(), memory.address());
        // SAFETY: refused before anything is launched.
        let outcome = unsafe { comm.reduce_scatter_raw(at, comm.stream(), wrong, DType::F32, what()) };
        let text = format!(
            "reduce_scatter: input of rank {rank}: expected {right} elements, the shape being [{right}], got {wrong}"
        );
        refused(outcome, &text);
    }
}
