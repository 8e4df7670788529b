//! Cases C8 and G: who lives how long, and who may use what.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crossccl::{Backend, Communicator, DType, Error, Rank, RankComm, RawRank};
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
            // Rank 1 went before the abort.
            assert!(matches!(flight.wait(), Err(Error::RankGone { gone: Rank(1), .. })));
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

one_call! {
/// Case G11: the communicator, its buffers, a replay, a launch of it in flight, a handle to abort and clones of the streams
/// go in every order, at rest, in flight or aborted.
#[rstest]
fn g11_drops_in_every_order() {
    needs_device!(2);
    let begin = Instant::now();
    let mut orders = 0;
    // Set-up takes longer on a device.
    for number in (0..720).step_by(if B::NAME == "cpu" { 1 } else { 37 }) {
        let mut left: Vec<usize> = (0..6).collect();
        let order: Vec<usize> = [120, 24, 6, 2, 1, 1].iter().map(|n| left.remove(number / n % left.len())).collect();
        let comm = crate::support::builder::<B>(0..2).payload_bytes(1 << 10).build().expect("communicator");
        let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 100]).expect("buffer")).collect();
        let mut recording = comm.record();
        recording.broadcast_in_place(&mut data, 1).expect("recorded");
        let replay = recording.finish().expect("replay");
        let flight = replay.launch().expect("launch");
        let abort = comm.abort_handle();
        let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
        match number % 3 {
            0 => abort.abort(),
            1 => std::thread::yield_now(),
            _ => assert_eq!(data[0].to_vec().expect("read"), [1; 100]),
        }
        let mut objects: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(comm)),
            Some(Box::new(data)),
            Some(Box::new(replay)),
            Some(Box::new(flight)),
            Some(Box::new(abort)),
            Some(Box::new(streams)),
        ];
        order.into_iter().for_each(|at| drop(objects[at].take()));
        assert!(objects.iter().all(Option::is_none));
        orders += 1;
    }
    assert!(orders == 720 || B::NAME != "cpu", "{orders} orders");
    assert!(begin.elapsed() < Duration::from_secs(60), "{orders} orders took {:?}", begin.elapsed());
}
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

one_call! {
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
