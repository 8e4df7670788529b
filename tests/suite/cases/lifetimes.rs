//! Cases C8 and G: who lives how long, and who may use what.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crossccl::{Communicator, DType, Error, RankComm, RawRank};
use rstest::rstest;

use super::B;
use crate::support::{cells, communicator, on_threads, rank_handles};

const SHORT: Duration = Duration::from_millis(200);

/// Handles, calls in flight, buffers and abort handles go in any order, after an abort too; nothing is freed twice.
#[rstest]
fn c8_drops_after_an_abort_in_any_order(#[values(0, 1, 2, 3)] order: usize) {
    needs_device!();
    let mut ranks = rank_handles::<B>(2, Duration::from_secs(20));
    let abort = ranks[0].abort_handle();
    let mut data = ranks[0].buffer_from(&[5u8; 100]).expect("buffer");
    let flight = ranks[0].broadcast_in_place(&mut data, 1).expect("launch");
    let begin = Instant::now();
    match order {
        0 => {
            abort.abort();
            assert_eq!(flight.wait(), Err(Error::Aborted));
            drop(ranks);
        }
        // The drop of the flight has nothing left to wait for.
        1 => {
            abort.abort();
            drop(flight);
            drop(ranks);
        }
        // The flight keeps what it needs of a communicator that is gone.
        2 => {
            ranks.clear();
            abort.abort();
            assert_eq!(flight.wait(), Err(Error::Aborted));
        }
        _ => {
            drop(ranks.pop());
            abort.abort();
            abort.abort();
            drop(abort.clone());
            drop(flight);
            ranks[0].abort();
            drop(ranks);
        }
    }
    drop(abort);
    assert!(begin.elapsed() < Duration::from_secs(2), "took {:?}", begin.elapsed());
    // With the last handle the buffer is free.
    assert_eq!(data.to_vec().expect("free"), [5; 100]);
}

/// A panic of the caller's with a collective in flight unwinds through the drops: it stays the only one.
#[rstest]
fn g1_drops_while_unwinding(#[values(false, true)] aborted: bool) {
    needs_device!();
    let begin = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let ranks = rank_handles::<B>(2, SHORT);
        let mut data = ranks[0].buffer::<u8>(100).expect("buffer");
        let _flight = ranks[0].broadcast_in_place(&mut data, 1).expect("launch");
        if aborted {
            ranks[1].abort();
        }
        // Without the message that a panic prints.
        std::panic::resume_unwind(Box::new("the caller's own"));
    }));
    assert_eq!(panic.expect_err("a panic").downcast_ref(), Some(&"the caller's own"));
    assert!(begin.elapsed() < Duration::from_secs(2), "took {:?}", begin.elapsed());
}

/// A communicator that was aborted is dropped like any other, with a call in flight on every rank.
#[rstest]
fn g1_abort_then_drop() {
    needs_device!();
    let comm = communicator::<B>(2);
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 1000]).expect("buffer")).collect();
    let flight = comm.broadcast_in_place(&mut data, 0).expect("launch");
    comm.abort();
    drop(comm);
    // Both ranks were there: whether the abort came in time is a matter of luck.
    let outcome = flight.wait();
    assert!(matches!(outcome, Ok(()) | Err(Error::Aborted)), "{outcome:?}");
    assert_eq!(data[0].to_vec().expect("free"), [0; 1000]);
}

/// Eight threads, a rank each, ten thousand calls each, each checked: a call that got another's data would have its
/// number. What may go where is said by the types; `tests/ui` has what they forbid.
#[rstest]
fn g9_ten_thousand_calls_of_eight_threads() {
    needs_device!();
    fn sent<T: Send>() {}
    fn shared<T: Sync>() {}
    sent::<RankComm<B>>();
    sent::<Communicator<B>>();
    shared::<Communicator<B>>();
    const CALLS: u32 = 10_000;
    let handles = cells::<B>(rank_handles(8, Duration::from_secs(30)));
    on_threads(&handles, |me, comm| {
        // One slot a call, so that all can be in flight.
        let all: Vec<u32> = (0..CALLS).map(|call| if call % 8 == me as u32 { call } else { u32::MAX }).collect();
        let data = comm.buffer_from(&all).expect("buffer");
        for batch in 0..CALLS / 100 {
            let launched: Vec<_> = (batch * 100..(batch + 1) * 100)
                .map(|call| {
                    let at = data.address() + u64::from(call) * 4;
                    // SAFETY: the buffer lives until after the waits, and each call has its own element.
                    let one = unsafe {
                        comm.broadcast_raw(
                            RawRank::new(at, at),
                            comm.stream(),
                            1,
                            DType::U32,
                            call as usize % 8,
                        )
                    };
                    one.expect("launch")
                })
                .collect();
            launched.iter().for_each(|l| l.wait().expect("outcome"));
        }
        assert_eq!(data.to_vec().expect("read"), (0..CALLS).collect::<Vec<_>>());
    });
}
