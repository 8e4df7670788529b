//! A rank that does not come, or comes with something else, becomes an error that names it.

use std::time::{Duration, Instant};

use crossccl::{
    Agreement, Algorithm, Backend, Broadcast, DType, Error, Rank, RankComm, ReduceOp, ReduceScatter, Result,
};
use rstest::rstest;

use super::B;
use crate::support::{Guarded, RankCell, cells, on_threads, rank_handles};

const SHORT: Duration = Duration::from_millis(200);

fn strict(agreement: Agreement, ranks: usize) -> Vec<RankCell<B>> {
    let comm = crate::support::builder::<B>(0..ranks).timeout(SHORT).agreement(agreement).build().expect("communicator");
    cells(comm.into_ranks())
}

/// All ranks reset together, and the next collective is right.
pub(super) fn recovers(handles: &[RankCell<B>]) {
    on_threads(handles, |me, comm| {
        comm.reset(Duration::from_secs(10)).expect("reset");
        for round in 0..4 {
            let root = (round + 1) % comm.ranks();
            // Two stages in the form that the memory allows.
            let algorithm = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStage, Algorithm::LowLatency][round];
            let mut data = comm.buffer_from(&[me as f32; 1000]).expect("buffer");
            let what = Broadcast::from_root(root).algorithm(algorithm).timeout(Duration::from_secs(10));
            comm.broadcast_in_place(&mut data, what).expect("launch").wait().expect("outcome");
            assert_eq!(data.to_vec().expect("read"), [root as f32; 1000]);
        }
    });
}

fn broadcast(comm: &RankComm<B>, what: impl Into<Broadcast>) -> Result<()> {
    let mut data = comm.buffer::<f32>(1000)?;
    comm.broadcast_in_place(&mut data, what)?.wait()
}

/// Case A9: three ranks, one never calls.
#[rstest]
fn a9_a_missing_root_is_named(
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let handles = cells::<B>(rank_handles(3, SHORT));
    let begin = Instant::now();
    let outcomes = on_threads(&handles[..2], |_, comm| broadcast(comm, Broadcast::from_root(2).algorithm(algorithm)));
    assert!(begin.elapsed() < Duration::from_secs(1), "took {:?}", begin.elapsed());
    for error in outcomes.into_iter().map(|o| o.expect_err("the root is missing")) {
        let Error::Timeout { operation, missing, sequence, waited, .. } = &error else { panic!("{error}") };
        assert_eq!((*operation, &missing[..], *sequence), ("broadcast", &[Rank(2)][..], 1));
        assert!(*waited >= SHORT && *waited < SHORT * 3, "{waited:?}");
        assert!(error.to_string().contains(" ms for rank 2 (rank 2 has called nothing yet); call reset on all ranks"), "{error}");
    }
    // Whoever comes late is refused: it must not touch what is gone. The streams go on.
    on_threads(&handles, |_, comm| {
        assert_eq!(comm.buffer_from(&[7u8; 3]).and_then(|b| b.to_vec()), Ok(vec![7; 3]));
        let error = broadcast(comm, 0).expect_err("poisoned");
        assert!(matches!(&error, Error::Poisoned { cause } if matches!(&**cause, Error::Timeout { .. })), "{error}");
    });
    recovers(&handles);
}

/// The receivers of a broadcast wait for the root alone; the root waits for all.
#[rstest]
fn a9_who_depends_on_the_missing_rank_fails() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, SHORT));
    let outcomes = on_threads(&handles[..2], |_, comm| broadcast(comm, 0));
    assert!(matches!(&outcomes[0], Err(Error::Timeout { missing, .. }) if missing[..] == [Rank(2)]), "{outcomes:?}");
    assert_eq!(outcomes[1], Ok(()));
    let next = on_threads(&handles[1..2], |_, comm| broadcast(comm, 0));
    assert!(matches!(next[0], Err(Error::Poisoned { .. })), "{next:?}");
    recovers(&handles);
}

#[rstest]
fn a9_strict_agreement_fails_everywhere() {
    needs_device!();
    let handles = strict(Agreement::Strict, 3);
    let outcomes = on_threads(&handles[..2], |_, comm| broadcast(comm, 0));
    for outcome in &outcomes {
        assert!(matches!(outcome, Err(Error::Timeout { missing, .. }) if missing[..] == [Rank(2)]), "{outcomes:?}");
    }
    recovers(&handles);
}

#[rstest]
fn a9_reduce_scatter_depends_on_all() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, SHORT));
    let outcomes = on_threads(&handles[..2], |_, comm| {
        let input = comm.buffer_from(&[1.0f32; 30])?;
        let mut output = comm.buffer(10)?;
        comm.reduce_scatter(&input, &mut output, ReduceOp::Sum)?.wait()
    });
    for outcome in outcomes {
        let error = outcome.expect_err("rank 2 is missing");
        assert!(matches!(&error, Error::Timeout { operation: "reduce_scatter", missing, .. } if missing[..] == [Rank(2)]), "{error}");
    }
    recovers(&handles);
}

/// Late, but within the limit: right.
#[rstest]
fn a_late_rank_is_waited_for() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, Duration::from_secs(10)));
    on_threads(&handles, |me, comm| {
        if me == 2 {
            std::thread::sleep(Duration::from_millis(150));
        }
        let mut data = comm.buffer_from(&[me as u32; 77]).expect("buffer");
        comm.broadcast_in_place(&mut data, 2).expect("launch").wait().expect("outcome");
        assert_eq!(data.to_vec().expect("read"), [2; 77]);
    });
}

/// One rank calls something else. `calls[rank]` runs on each rank with a guarded output.
pub(super) fn disagree(agreement: Agreement, field: &str, values: &[&str], call: impl Fn(usize, &RankComm<B>) -> Result<()> + Sync) {
    let handles = strict(agreement, values.len());
    let begin = Instant::now();
    let outcomes = on_threads(&handles, |me, comm| call(me, comm));
    assert!(begin.elapsed() < Duration::from_secs(1), "{field}: took {:?}", begin.elapsed());
    let errors: Vec<&Error> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
    assert!(!errors.is_empty(), "{field}: nobody noticed");
    if agreement == Agreement::Strict {
        assert_eq!(errors.len(), values.len(), "{field}: {outcomes:?}");
    }
    for error in errors {
        // In flight one sees the mismatch; a call that comes after it is refused with it as the cause.
        let cause = match error {
            Error::Poisoned { cause } => cause,
            error => error,
        };
        let Error::Mismatch { field: named, values: seen, .. } = cause else { panic!("{field}: {error}") };
        assert_eq!(*named, field, "{error}");
        assert!(seen.len() >= 2, "{error}");
        for (rank, value) in seen {
            assert_eq!(value, values[rank.index()], "{error}");
        }
    }
    recovers(&handles);
}

/// A broadcast whose output must stay untouched where it fails: of a rank that agrees with whom it depends on it need not,
/// since the others' disagreement may reach it when some of its blocks have done their part.
pub(super) fn guarded_broadcast(comm: &RankComm<B>, dtype: DType, count: usize, what: Broadcast) -> Result<()> {
    let input = Guarded::<B>::with(comm.stream(), dtype, &vec![1; count * dtype.size()], 0);
    let mut output = Guarded::<B>::new(comm.stream(), dtype, count, 0);
    let outcome = comm.broadcast(Some(input.input()), output.output(), what).and_then(|f| f.wait());
    untouched(&outcome, comm, output);
    outcome
}

pub(super) fn guarded_reduce_scatter(comm: &RankComm<B>, dtype: DType, shape: [usize; 2], what: ReduceScatter) -> Result<()> {
    let input = Guarded::<B>::with(comm.stream(), dtype, &vec![1; shape[0] * shape[1] * dtype.size()], 0);
    let what = what.shape(shape);
    let part = comm.part(shape[0] * shape[1], what.clone())?.count() as usize;
    let mut output = Guarded::<B>::new(comm.stream(), dtype, part, 0);
    let outcome = comm.reduce_scatter(input.input(), output.output(), what).and_then(|f| f.wait());
    untouched(&outcome, comm, output);
    outcome
}

/// The buffer is borrowed until reset; looking at it is what this test must do all the same, by the
/// raw address that the rank's stream reads.
fn untouched(outcome: &Result<()>, comm: &RankComm<B>, output: Guarded<B>) {
    if outcome.is_err() {
        let mut bytes = vec![0u8; output.buffer.size_in_bytes()];
        // SAFETY: both ranges are valid, and the event below is waited for.
        let event = unsafe {
            <B as crossccl::Backend>::copy(comm.stream(), bytes.as_mut_ptr() as u64, output.buffer.address(), bytes.len()).expect("copy");
            <B as crossccl::Backend>::record(comm.stream()).expect("event")
        };
        assert!(<B as crossccl::Backend>::wait(&event, None).expect("wait"));
        let poison = bytes.iter().filter(|b| **b == crate::support::POISON_BYTE).count();
        assert_eq!(poison, output.len * output.buffer.dtype().size(), "an output was written although the ranks disagree");
    }
}

#[rstest]
fn c5_counts_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "count", &["409600", "409598", "409598"], |me, comm| {
        let count = if me == 0 { 409_600 } else { 409_598 };
        guarded_broadcast(comm, DType::F32, count, Broadcast::from_root(0))
    });
    disagree(agreement, "count", &["409600", "409598", "409598"], |me, comm| {
        let count = if me == 0 { 409_600 } else { 409_598 };
        guarded_reduce_scatter(comm, DType::F32, [count, 1], ReduceScatter::new(ReduceOp::Sum))
    });
}

/// Case B4: a count of 0 on one rank only.
#[rstest]
fn b4_nothing_on_one_rank_only(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "count", &["100", "0"], |me, comm| {
        guarded_broadcast(comm, DType::F32, if me == 0 { 100 } else { 0 }, Broadcast::from_root(0))
    });
}

#[rstest]
fn c6_roots_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "root", &["0", "1"], |me, comm| guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(me)));
    disagree(agreement, "root", &["0", "0", "2"], |me, comm| match me {
        1 => broadcast(comm, 0),
        _ => guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(me)),
    });
}

#[rstest]
fn c6_dtypes_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "dtype", &["f32", "f32", "i32"], |me, comm| match me {
        0 => broadcast(comm, 1),
        _ => guarded_broadcast(comm, if me == 2 { DType::I32 } else { DType::F32 }, 1000, Broadcast::from_root(1)),
    });
}

#[rstest]
fn c6_algorithms_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "algorithm", &["one-stage", "two-stage-staged"], |me, comm| {
        let algorithm = [Algorithm::OneStage, Algorithm::TwoStageStaged][me];
        guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(0).algorithm(algorithm))
    });
}

#[rstest]
fn c6_blocks_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "blocks", &["2", "3"], |me, comm| {
        guarded_broadcast(comm, DType::F32, 1 << 18, Broadcast::from_root(0).max_blocks(me as u32 + 2))
    });
}

#[rstest]
fn c6_collectives_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "collective", &["broadcast", "reduce_scatter"], |me, comm| {
        if me == 0 {
            guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(0))
        } else {
            guarded_reduce_scatter(comm, DType::F32, [100, 10], ReduceScatter::new(ReduceOp::Sum))
        }
    });
}

#[rstest]
fn c6_order_of_operations_that_differs(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "root", &["0", "1"], |me, comm| {
        guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(me))?;
        guarded_broadcast(comm, DType::F32, 1000, Broadcast::from_root(1 - me))
    });
}

#[rstest]
fn c6_ops_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "op", &["sum", "sum", "average"], |me, comm| {
        let op = if me == 2 { ReduceOp::Average } else { ReduceOp::Sum };
        guarded_reduce_scatter(comm, DType::F32, [12, 5], ReduceScatter::new(op))
    });
}

#[rstest]
fn c6_axes_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "axis", &["0", "1", "0"], |me, comm| {
        let axis = i64::from(me == 1);
        guarded_reduce_scatter(comm, DType::BF16, [12, 12], ReduceScatter::new(ReduceOp::Sum).axis(axis))
    });
}

#[rstest]
fn c6_shapes_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "shape", &["[12, 5]", "[6, 10]"], |me, comm| {
        guarded_reduce_scatter(comm, DType::I8, [[12, 5], [6, 10]][me], ReduceScatter::new(ReduceOp::Sum))
    });
    disagree(agreement, "count", &["60", "70"], |me, comm| {
        guarded_reduce_scatter(comm, DType::I8, [[12, 5], [14, 5]][me], ReduceScatter::new(ReduceOp::Sum))
    });
}

/// A rank that takes another for the root, and comes late: that one never depended on it and has gone on. Its
/// later record must not pass for this call's.
#[rstest]
fn c6_a_root_that_has_gone_on() {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, Duration::from_millis(500)));
    let outcomes = on_threads(&handles, |me, comm| {
        let roots = if me == 1 { [3, 0, 3] } else { [2, 0, 3] };
        if me == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        // All three enqueued at once, as an engine does.
        let mut data: Vec<_> = (0..3).map(|i| comm.buffer_from(&[(10 * me + i) as u8; 500]).expect("buffer")).collect();
        let flights: Vec<_> =
            data.iter_mut().zip(roots).map(|(d, root)| comm.broadcast_in_place(d, root)).collect::<Result<_>>()?;
        flights.into_iter().map(|f| f.wait()).collect::<Result<Vec<_>>>()
    });
    // Whoever notices first names it: the root of the first call, which misses rank 1, or rank 1 itself.
    let cause = match &outcomes[1] {
        Err(Error::Poisoned { cause }) => cause,
        Err(cause) => cause,
        Ok(_) => panic!("{outcomes:?}"),
    };
    assert!(matches!(cause, Error::Mismatch { field: "root" | "order", .. }), "{outcomes:?}");
    recovers(&handles);
}

/// A disagreement in a group ends the world's call that was enqueued behind it, for those outside, too.
#[rstest]
fn a_failure_in_a_group_reaches_the_world() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..4).timeout(Duration::from_secs(20)).build().expect("communicator");
    let handles = cells(comm.into_ranks());
    let begin = Instant::now();
    let outcomes = on_threads(&handles, |me, comm| {
        let op = if me == 1 { ReduceOp::Max } else { ReduceOp::Sum };
        let mut first = comm.buffer::<f32>(12).expect("buffer");
        let mut second = comm.buffer::<f32>(12).expect("buffer");
        // Either call may be refused already: the others' failure was there before it.
        let group = comm.reduce_scatter_in_place(&mut first, ReduceScatter::new(op).group_size(2));
        let world = comm.reduce_scatter_in_place(&mut second, ReduceOp::Sum);
        [group.and_then(|f| f.wait()), world.and_then(|f| f.wait())]
    });
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    for [group, world] in &outcomes {
        for outcome in [group, world] {
            let cause = match outcome {
                Err(Error::Poisoned { cause }) => cause,
                Err(cause) => cause,
                // Ranks 2 and 3 are a group that agrees.
                Ok(()) => continue,
            };
            assert!(matches!(cause, Error::Mismatch { field: "op", .. }), "{outcomes:?}");
        }
        assert!(world.is_err(), "{outcomes:?}");
    }
    assert!(outcomes[0][0].is_err() && outcomes[1][0].is_err(), "{outcomes:?}");
    recovers(&handles);
}

/// A group that meets the world shares no flags with it: a time-out that says what the peer runs.
#[rstest]
fn c6_groups_that_differ() {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, SHORT));
    let outcomes = on_threads(&handles, |me, comm| {
        let size = if me < 2 { 4 } else { 2 };
        guarded_reduce_scatter(comm, DType::F32, [8, 4], ReduceScatter::new(ReduceOp::Sum).group_size(size))
    });
    for outcome in &outcomes[..2] {
        let Err(error @ Error::Timeout { missing, .. }) = outcome else { panic!("{outcomes:?}") };
        assert_eq!(missing[..], [Rank(2), Rank(3)]);
        assert!(error.to_string().contains("the last call of rank 2, its number 1, was reduce_scatter in groups of 2"), "{error}");
    }
    // Ranks 2 and 3 are a whole group and have what they need.
    assert_eq!(outcomes[2..], [Ok(()), Ok(())]);
    recovers(&handles);
}

/// Case A10: abort from another thread while the ranks wait without a limit.
#[rstest]
fn a10_abort_ends_every_wait() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..3).timeout(None).build().expect("communicator");
    let abort = comm.abort_handle();
    let handles = cells(comm.into_ranks());
    let begin = Instant::now();
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            abort.abort();
        });
        on_threads(&handles[..2], |_, comm| broadcast(comm, 2))
    });
    assert!(begin.elapsed() < Duration::from_secs(1), "took {:?}", begin.elapsed());
    assert_eq!(outcomes, [Err(Error::Aborted), Err(Error::Aborted)]);
    let next = on_threads(&handles, |_, comm| broadcast(comm, 2));
    assert!(next.iter().all(|o| matches!(o, Err(Error::Poisoned { cause }) if **cause == Error::Aborted)), "{next:?}");
    recovers(&handles);
}

/// A buffer of a failed call cannot be used until reset, since a late rank may still touch it.
#[rstest]
fn buffers_of_a_failed_call_stay_borrowed_until_reset() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    let comm = &handles[..1];
    let mut data = on_threads(comm, |_, comm| comm.buffer_from(&[1u8; 10]).expect("buffer")).remove(0);
    on_threads(comm, |_, comm| {
        // The outcome of a flight that is dropped is not lost: the next call tells it.
        let mut other = comm.buffer::<u8>(10).expect("buffer");
        drop(comm.broadcast_in_place(&mut other, 1).expect("launch"));
        let error = broadcast(comm, 0).expect_err("poisoned");
        assert!(matches!(&error, Error::Poisoned { cause } if matches!(&**cause, Error::Timeout { .. })), "{error}");
        assert!(matches!(other.to_vec(), Err(Error::Busy { .. })));
        assert!(matches!(other.write(&[0; 10]), Err(Error::Busy { .. })));
    });
    data.write(&[2; 10]).expect("not part of it");
    recovers(&handles);
}

/// After `stop` nothing runs that could touch memory of a failed call, though a rank never came, nor comes to reset.
#[rstest]
fn stop_ends_what_runs_without_the_other_handles() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, Duration::from_secs(20)));
    let streams = on_threads(&handles, |_, comm| comm.stream().clone());
    let begin = Instant::now();
    let outcomes = on_threads(&handles[..2], |me, comm| {
        let mut data = comm.buffer::<f32>(1000).expect("buffer");
        let flight = comm.broadcast_in_place(&mut data, 2).expect("launch");
        if me == 0 {
            // The other one waits for rank 2 by then.
            std::thread::sleep(Duration::from_millis(50));
            comm.stop().expect("at rest");
            // Where a driver is asked, an event takes its time in a stream at rest as well.
            let soon = Instant::now() + Duration::from_secs(if B::NAME == "cpu" { 0 } else { 2 });
            let rests = |stream| B::wait(&B::record(stream).expect("event"), Some(soon)).expect("a wait");
            assert!(streams.iter().all(rests), "a kernel runs after stop");
            let next = broadcast(comm, 0).expect_err("poisoned");
            assert!(matches!(&next, Error::Poisoned { cause } if **cause == Error::Aborted), "{next}");
        }
        flight.wait()
    });
    assert_eq!(outcomes, [Err(Error::Aborted), Err(Error::Aborted)]);
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    on_threads(&handles[2..], |_, comm| {
        comm.stop().expect("nothing runs");
        let late = broadcast(comm, 2).expect_err("poisoned");
        assert!(matches!(&late, Error::Poisoned { .. }), "{late}");
    });
    recovers(&handles);
}

/// Reset is a meeting of all handles, and does not wait for ever for one that does not come.
#[rstest]
fn reset_names_the_handles_that_do_not_come() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, SHORT));
    let outcomes = on_threads(&handles[..2], |_, comm| comm.reset(Duration::from_millis(100)));
    for outcome in outcomes {
        let error = outcome.expect_err("rank 2 does not come");
        let Error::Timeout { operation: "reset", missing, .. } = &error else { panic!("{error}") };
        assert!(missing.contains(&Rank(2)), "{error}");
    }
    recovers(&handles);
}

/// Resets again and again: epochs are raised, never zeroed.
#[rstest]
fn a11_failures_and_resets_alternate() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..3).timeout(Duration::from_millis(30)).build().expect("communicator");
    let handles = cells(comm.into_ranks());
    for round in 0..10 {
        let absent = round % 3;
        let outcomes = on_threads(&handles, |me, comm| if me == absent { Ok(()) } else { broadcast(comm, absent) });
        assert!((0..3).filter(|r| *r != absent).all(|r| outcomes[r].is_err()), "{outcomes:?}");
        recovers(&handles);
    }
}

/// Case G4: drops are bounded, whoever is missing.
#[rstest]
fn g4_drops_do_not_wait_for_others() {
    needs_device!();
    let begin = Instant::now();
    let mut handles = rank_handles::<B>(3, SHORT);
    let first = handles.remove(0);
    let mut data = first.buffer::<u8>(100).expect("buffer");
    let flight = first.broadcast_in_place(&mut data, 2).expect("launch");
    drop(handles.pop());
    drop(flight);
    drop(first);
    drop(handles);
    drop(data);
    assert!(begin.elapsed() < Duration::from_secs(2), "took {:?}", begin.elapsed());
}

one_call! {
/// Case G2: many communicators, one after the other.
#[rstest]
fn g2_communicators_come_and_go() {
    needs_device!();
    for round in 0..100 {
        let comm = crate::support::communicator::<B>(1 + round % 4);
        let mut buffers: Vec<_> = (0..comm.ranks()).map(|r| comm.buffer_from(r, &[r as u8; 64]).expect("buffer")).collect();
        comm.broadcast_in_place(&mut buffers, 0).expect("launch").wait().expect("outcome");
        assert!(buffers.iter().all(|b| b.to_vec().expect("read") == [0; 64]));
    }
}

/// A time-out while the ranks of one call are still being launched: the call waits for those that run before it
/// gives the buffers back.
#[rstest]
fn a_failure_in_the_middle_of_the_launches() {
    needs_device!(16);
    let mut failed = 0;
    for _ in 0..60 {
        let comm = crate::support::builder::<B>(0..16).timeout(Duration::from_micros(30)).build().expect("communicator");
        let mut buffers: Vec<_> = (0..16).map(|r| comm.buffer_from(r, &[r as u8; 300_000]).expect("buffer")).collect();
        let outcome = comm.broadcast_in_place(&mut buffers, 15).and_then(|f| f.wait());
        failed += usize::from(outcome.is_err());
        // Freed at once: nothing may still read or write them.
        drop(buffers);
        assert!(!matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
    }
    assert!(failed > 0, "no time-out in 60 rounds of 30 us");
}

/// Two threads with one communicator: each call gets its own data.
#[rstest]
fn g9_threads_that_share_a_communicator() {
    needs_device!();
    let comm = crate::support::communicator::<B>(2);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let comm = &comm;
            scope.spawn(move || {
                let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[0; 8]).expect("buffer")).collect();
                for round in 0..2000u32 {
                    let mine = [thread, round as u8, 3, 4, 5, 6, 7, 8];
                    data[0].write(&mine).expect("write");
                    comm.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("outcome");
                    assert_eq!(data[1].to_vec().expect("read"), mine);
                }
            });
        }
    });
}

/// Memory that a collective may still use is taken neither as an output nor as a signal buffer.
#[rstest]
fn memory_of_a_leaked_call_is_refused() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..2).build().expect("communicator");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer::<u8>(r, 1 << 20).expect("buffer")).collect();
    std::mem::forget(comm.broadcast_in_place(&mut data, 0).expect("launch"));
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let other = crate::support::builder::<B>(0..2).streams(streams.clone()).build().expect("communicator");
    let error = other.broadcast_in_place(&mut data, 0).expect_err("in flight");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    // Reads come after the leaked call in the same stream.
    let mut copies: Vec<_> = (0..2).map(|r| other.buffer::<u8>(r, 1 << 20).expect("buffer")).collect();
    other.broadcast(&data[1], &mut copies, 1).expect("launch").wait().expect("outcome");
    let builder = crate::support::builder::<B>(0..2).payload_bytes(0).signal_buffers(data);
    let error = builder.build().expect_err("in flight");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
}

/// Work of another communicator in the same stream: reset says so instead of waiting for it.
#[rstest]
fn reset_does_not_wait_for_the_work_of_others() {
    needs_device!();
    let first = crate::support::builder::<B>(0..2).build().expect("communicator");
    let streams: Vec<_> = (0..2).map(|r| first.stream(r).expect("a rank").clone()).collect();
    let second = crate::support::builder::<B>(0..2).streams(streams).timeout(None).build().expect("communicator");
    let handles = second.into_ranks();
    let mut data = handles[0].buffer::<u8>(10).expect("buffer");
    let endless = handles[0].broadcast_in_place(&mut data, 1).expect("launch");
    let begin = Instant::now();
    let error = first.reset().expect_err("the stream is busy");
    assert!(matches!(error, Error::Busy { .. }) && begin.elapsed() < Duration::from_secs(5), "{error}");
    handles[0].abort();
    assert_eq!(endless.wait(), Err(Error::Aborted));
    first.reset().expect("at rest now");
    let mut data: Vec<_> = (0..2).map(|r| first.buffer_from(r, &[r as u8; 9]).expect("buffer")).collect();
    first.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 9]);
}
}

/// With the communicator, what it had borrowed goes free.
#[rstest]
fn buffers_outlive_a_failed_communicator() {
    needs_device!();
    let mut handles = rank_handles::<B>(2, SHORT);
    let mut data = handles[0].buffer_from(&[7u8; 10]).expect("buffer");
    let error = handles[0].broadcast_in_place(&mut data, 1).expect("launch").wait().expect_err("rank 1 is missing");
    assert!(matches!(error, Error::Timeout { .. }) && matches!(data.to_vec(), Err(Error::Busy { .. })), "{error}");
    handles.clear();
    assert_eq!(data.to_vec().expect("free"), [7; 10]);
    data.write(&[8; 10]).expect("free");
}

#[rstest]
fn reset_takes_any_limit() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    let outcomes = on_threads(&handles, |_, comm| comm.reset(Duration::MAX));
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}
