//! What a reset leaves: nothing of the failure but its record, and ears for the next one.

use std::{sync::Barrier, time::Duration};

use crossccl::{Backend, Broadcast, DType, Error, Rank, RankComm, RawRank, ReduceOp, ReduceScatter, Result};
use rstest::rstest;

use super::B;
use crate::support::{RankCell, cells, on_threads, rank_handles};

const SHORT: Duration = Duration::from_millis(200);

/// Until what was launched for a rank is over. Nobody is told how it went.
fn rest(comm: &RankComm<B>) {
    let end = B::record(comm.stream()).expect("event");
    assert!(B::wait(&end, None).expect("wait"));
}

fn reset(handles: &[RankCell<B>]) {
    on_threads(handles, |_, comm| comm.reset(Duration::from_secs(10)).expect("reset"));
}

fn misses_rank_1(error: &Error) -> bool {
    matches!(error, Error::Timeout { missing, .. } if missing[..] == [Rank(1)])
}

/// A failure that nobody waits for is noticed in every life: a reset that forgot to take back the mark of the first
/// failure (a planted bug) had the second one pass unseen.
#[rstest]
fn a_failure_that_nobody_waits_for_is_noticed_after_every_reset() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    for asked_first in [true, false, true] {
        on_threads(&handles[..1], |_, comm| {
            let mut data = [(); 2].map(|()| comm.buffer::<u8>(10).expect("buffer"));
            let [first, second] = &mut data;
            let unheard = comm.broadcast_in_place(first, 1).expect("launch");
            rest(comm);
            if asked_first {
                assert!(comm.failure().is_some_and(|failure| misses_rank_1(&failure)), "{:?}", comm.failure());
            }
            let next = comm.broadcast_in_place(second, 1).map(drop).expect_err("poisoned");
            assert!(matches!(&next, Error::Poisoned { cause } if misses_rank_1(cause)), "{next}");
            let own = unheard.wait().expect_err("rank 1 did not come");
            assert!(misses_rank_1(&own), "{own}");
        });
        reset(&handles);
        assert_eq!(handles[0].lock().failure(), None);
    }
}

/// Each of a rank's calls has an outcome of its own, whether it is asked for before the reset or after it: that of the
/// call that failed, of one before it, and of one behind it. The buffers are the caller's again with the reset.
#[rstest]
fn calls_around_a_failure_keep_their_outcomes(#[values(false, true)] after_the_reset: bool) {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    let over = Barrier::new(2);
    on_threads(&handles, |me, comm| {
        let mut data: Vec<_> = (0..3).map(|_| comm.buffer_from(&[me as u8; 10]).expect("buffer")).collect();
        // Rank 1 makes the first call alone.
        let calls = if me == 0 { 3 } else { 1 };
        let flights: Vec<_> =
            data.iter_mut().take(calls).map(|one| comm.broadcast_in_place(one, 1).expect("launch")).collect();
        rest(comm);
        over.wait();
        if after_the_reset {
            comm.reset(Duration::from_secs(10)).expect("reset");
        }
        let outcomes: Vec<Result<()>> = flights.into_iter().map(|flight| flight.wait()).collect();
        assert_eq!(outcomes[0], Ok(()));
        if let [_, Err(own), Err(behind)] = &outcomes[..] {
            assert!(misses_rank_1(own), "{own}");
            assert_eq!(*behind, Error::Poisoned { cause: Box::new(own.clone()) });
        } else {
            assert_eq!((me, outcomes.len()), (1, 1), "{outcomes:?}");
        }
        if !after_the_reset {
            comm.reset(Duration::from_secs(10)).expect("reset");
        }
        assert_eq!(data[0].to_vec().expect("read"), [1; 10]);
        for one in &mut data {
            one.write(&[7; 10]).expect("nothing uses it any more");
            assert_eq!(one.to_vec().expect("read"), [7; 10]);
        }
    });
}

/// A reset ends what is in flight, and waits for no call's own limit.
#[rstest]
fn a_reset_ends_a_call_that_waits_without_limit() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    on_threads(&handles, |me, comm| {
        let mut data = comm.buffer_from(&[me as u8; 10]).expect("buffer");
        let what = || Broadcast::from_root(1).no_timeout();
        let flight = if me == 0 { Some(comm.broadcast_in_place(&mut data, what()).expect("launch")) } else { None };
        comm.reset(Duration::from_secs(10)).expect("reset");
        assert!(flight.is_none_or(|flight| flight.wait() == Err(Error::Aborted)));
        comm.broadcast_in_place(&mut data, what()).expect("launch").wait().expect("outcome");
        assert_eq!(data.to_vec().expect("read"), [1; 10]);
    });
}

/// A handle that stopped waiting for a reset has left it: the others do not go on without it.
#[rstest]
fn a_handle_that_gave_up_a_reset_is_missed() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, SHORT));
    for meeting in [1, 2] {
        for rank in [0, 1, 0, 1] {
            let error = handles[rank].lock().reset(Duration::from_millis(20)).expect_err("the other one does not come");
            let Error::Timeout { operation: "reset", rank: asking, missing, sequence, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(
                (asking.index(), &missing[..], *sequence),
                (rank, &[Rank(1 - rank as u32)][..], meeting),
                "{error}"
            );
        }
        reset(&handles);
    }
}

/// In a group that is not the first, who is missing is named by the number that the world knows.
#[rstest]
fn a_rank_that_is_missing_in_the_second_group_is_named() {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, SHORT));
    let error = on_threads(&handles[2..3], |_, comm| {
        let mut data = comm.buffer::<f32>(4).expect("buffer");
        let what = ReduceScatter::new(ReduceOp::Sum).group_size(2);
        comm.reduce_scatter_in_place(&mut data, what).expect("launch").wait().expect_err("rank 3 does not come")
    });
    let Error::Timeout { rank, missing, .. } = &error[0] else { panic!("{}", error[0]) };
    assert_eq!((*rank, &missing[..]), (Rank(2), &[Rank(3)][..]), "{}", error[0]);
}

one_call! {
/// A launch behind other work on a stream of the caller's: the rank's own stream rests, and reset does not take that
/// for the launch's.
#[rstest]
fn a_reset_looks_at_the_stream_of_the_last_launch() {
    needs_device!();
    let build = || crate::support::builder::<B>(0..2);
    let comm = build().build().expect("communicator");
    let device = |r: usize| B::device_of(comm.stream(r).expect("a rank"));
    let streams: Vec<_> = (0..2).map(|r| B::create_stream(&device(r)).expect("stream")).collect();
    let other = build().streams(streams.clone()).timeout(None).build().expect("communicator").into_ranks();
    let mut in_front = other[0].buffer::<u8>(10).expect("buffer");
    let endless = other[0].broadcast_in_place(&mut in_front, 1).expect("launch");
    let data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 10]).expect("buffer")).collect();
    let at: Vec<_> = data.iter().map(|one| RawRank::new(one.address(), one.address())).collect();
    // SAFETY: the buffers live until after the reset that succeeds, and nothing else uses them.
    let behind = unsafe { comm.broadcast_raw(&at, &streams, 10, DType::U8, 1) }.expect("launch");
    let error = comm.reset().expect_err("a launch that has not begun");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    other[0].abort();
    assert_eq!(endless.wait(), Err(Error::Aborted));
    comm.reset().expect("at rest now");
    assert!(behind.wait().is_err());
    // SAFETY: as above, until the wait.
    let again = unsafe { comm.broadcast_raw(&at, &streams, 10, DType::U8, 1) };
    again.expect("launch").wait().expect("outcome");
    assert!(data.iter().all(|one| one.to_vec().expect("read") == [1; 10]));
}
}
