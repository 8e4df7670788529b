//! Any call of a backend fails: told, with the call and the rank, in bounded time; nothing is lost or given back too
//! early; and what failed works when it is tried again. The backend is the CPU's, with faults (`support/faulty.rs`), so
//! that this holds for what all backends share; `cuda_driver.rs` and `hip_driver.rs` do the same for their drivers' calls.
#![cfg(all(feature = "cpu", not(crossccl_no_kernels)))]
#![allow(missing_docs)]

#[path = "support/faulty.rs"]
#[allow(dead_code)]
mod faulty;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crossccl::{
    Agreement, Algorithm, Backend, Broadcast, Buffer, Communicator, DType, Destination, Error, MemoryKind, Rank,
    RankComm, RawRank, ReduceOp, ReduceScatter,
};
use faulty::{Alive, CODE, Cut, Faulty, Machine, Method, Which};

/// Within it, whatever happens.
const BOUND: Duration = Duration::from_secs(8);
const SHORT: Duration = Duration::from_millis(50);
const NOTHING: Alive = Alive { allocations: 0, bytes: 0, streams: 0 };

fn build(ranks: usize) -> Result<Communicator<Faulty>, Error> {
    Communicator::<Faulty>::builder(0..ranks).timeout(Duration::from_secs(20)).build()
}

/// All algorithms and a reduce-scatter, each result looked at.
fn works(comm: &Communicator<Faulty>) {
    let ranks = comm.ranks();
    for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
        let mut data: Vec<_> = (0..ranks).map(|r| comm.buffer_from(r, &[r as u32; 1000]).expect("buffer")).collect();
        let what = Broadcast::from_root(ranks - 1).algorithm(algorithm);
        comm.broadcast_in_place(&mut data, what).expect("launch").wait().expect("outcome");
        comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).expect("launch").wait().expect("outcome");
        let sum = (ranks * (ranks - 1)) as u32;
        for (rank, data) in data.iter().enumerate() {
            let part = comm.part(rank, 1000, ReduceOp::Sum).expect("a part");
            let mine = part.offset as usize..(part.offset + part.count()) as usize;
            assert_eq!(data.to_vec().expect("read")[mine.clone()], vec![sum; mine.len()]);
        }
    }
}

/// Whether `error` is what is told of the fault: the method, and the rank where the call was for one.
fn tells(error: &Error, machine: &Machine) -> bool {
    let (method, device) = machine.fired().expect("a call that failed");
    match error {
        Error::Driver { backend: "faulty", call, code: CODE, rank, .. } => {
            // A call that names no device is told with the rank that it was made for.
            *call == method.name() && rank.is_none_or(|r| device.is_none_or(|d| r.index() == d))
        }
        Error::PeerAccess { from, reason, .. } => {
            device == Some(from.index()) && reason.starts_with(&format!("{} failed", method.name()))
        }
        Error::NoDevice { reason, .. } => reason.starts_with(method.name()),
        Error::Poisoned { cause } => tells(cause, machine),
        _ => false,
    }
}

/// Runs `body` once without a fault, and once for each call of each method that it makes, which fails then. How often.
fn for_each_call(mut body: impl FnMut(&Machine, Option<(Method, usize)>)) -> BTreeMap<Method, usize> {
    let machine = Machine::turn();
    body(&machine, None);
    let calls = machine.calls();
    drop(machine);
    for (method, calls) in &calls {
        for call in 1..=*calls {
            let machine = Machine::turn();
            body(&machine, Some((*method, call)));
            assert_eq!(machine.wrong(), Vec::<String>::new(), "call {call} of {}", method.name());
        }
    }
    println!("{} calls failed, one at a time: {calls:?}", calls.values().sum::<usize>());
    calls
}

fn only(fault: Option<(Method, usize)>) -> Option<(Method, Which)> {
    fault.map(|(method, call)| (method, Which::Only(call)))
}

/// Cases G3 and G12: nothing is left of a set-up that failed, and the next one works.
#[test]
fn g3_each_call_of_the_set_up_may_fail() {
    let calls = for_each_call(|machine, fault| {
        machine.arm(only(fault));
        let begin = Instant::now();
        let outcome = build(3);
        assert!(begin.elapsed() < BOUND, "{fault:?}: {:?}", begin.elapsed());
        let Some(fault) = fault else {
            works(&outcome.expect("communicator"));
            // What it used is not of the set-up.
            machine.arm(None);
            drop(build(3).expect("communicator"));
            return;
        };
        let error = outcome.map(drop).expect_err("a call failed");
        assert!(tells(&error, machine), "{fault:?}: {error}");
        assert_eq!(machine.alive(), NOTHING, "{fault:?}");
        machine.arm(None);
        works(&build(3).expect("the fault is over"));
        assert_eq!(machine.alive(), NOTHING, "{fault:?}");
    });
    let set_up = [
        Method::Count,
        Method::Open,
        Method::Properties,
        Method::CanAccess,
        Method::EnableAccess,
        Method::AllocateSignal,
        Method::AllocateHost,
        Method::Load,
        Method::Resident,
        Method::Stream,
        Method::Launch,
        Method::Copy,
        Method::Fill,
        Method::Record,
        Method::Wait,
    ];
    assert!(set_up.iter().all(|method| calls.contains_key(method)), "{calls:?}");
}

type Buffers = Vec<Buffer<Faulty, u32>>;

/// `call` with each of its calls made to fail. A reset makes the communicator whole; only where the end of a launch
/// cannot be known it says why it does not, and what kernels may touch stays for good.
fn any_call_may_fail(mut call: impl FnMut(&Communicator<Faulty>, &mut Buffers, &mut Buffers) -> Result<(), Error>) {
    let mut lost = 0;
    let calls = for_each_call(|machine, fault| {
        let comm = build(3).expect("communicator");
        let [mut data, mut others] = [0, 10]
            .map(|x| (0..3).map(|r| comm.buffer_from(r, &[x + r as u32; 999]).expect("buffer")).collect::<Vec<_>>());
        machine.arm(only(fault));
        let begin = Instant::now();
        let outcome = call(&comm, &mut data, &mut others);
        assert!(begin.elapsed() < BOUND, "{fault:?} took {:?}", begin.elapsed());
        let Some((method, number)) = fault else {
            outcome.expect("nothing failed");
            let calls = machine.calls();
            drop((data, others, comm));
            assert_eq!(machine.alive(), NOTHING);
            // Those of the call alone.
            machine.arm(None);
            calls.into_iter().for_each(|(method, calls)| machine.count(method, calls));
            return;
        };
        let error = outcome.expect_err("a call failed");
        assert!(tells(&error, machine), "{fault:?}: {error}");
        machine.arm(None);
        let reset = comm.reset();
        match &reset {
            Ok(()) => works(&comm),
            Err(Error::Poisoned { cause }) => {
                assert!(method == Method::Record, "call {number} of {}: {cause}", method.name());
                assert_eq!(**cause, error);
                lost += 1;
            }
            Err(other) => panic!("{fault:?}: {other}"),
        }
        let begin = Instant::now();
        drop((data, others, comm));
        assert!(begin.elapsed() < BOUND, "the drop after {fault:?} took {:?}", begin.elapsed());
        let alive = machine.alive();
        if reset.is_ok() {
            assert_eq!(alive, NOTHING, "{fault:?}");
        } else {
            // Signal buffers, control structures, and the buffers of the call.
            assert_eq!([MemoryKind::Signal, MemoryKind::Host].map(|kind| machine.alive_of(kind)), [3, 3], "{fault:?}");
            assert!((6..=12).contains(&alive.allocations), "{fault:?}: {alive:?}");
        }
        works(&build(3).expect("the fault is over"));
    });
    assert!(calls.values().sum::<usize>() > 5, "{calls:?}");
    println!("{lost} of them left a launch whose end cannot be known");
}

/// Cases A19 and G3.
#[test]
fn a19_each_call_of_a_broadcast_may_fail() {
    for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
        any_call_may_fail(|comm, data, _| {
            comm.broadcast_in_place(data, Broadcast::from_root(1).algorithm(algorithm))?.wait()
        });
    }
}

#[test]
fn a19_each_call_of_a_reduce_scatter_may_fail() {
    any_call_may_fail(|comm, data, others| {
        comm.reduce_scatter_in_place(others, ReduceScatter::new(ReduceOp::Max).group_size(1))?.wait()?;
        comm.reduce_scatter_in_place(data, ReduceOp::Sum)?.wait()
    });
}

/// Another dtype's outputs, which are made and go with the call.
#[test]
fn each_call_of_a_fused_call_with_new_buffers_may_fail() {
    any_call_may_fail(|comm, _, _| {
        let inputs = (0..3).map(|r| comm.buffer_from(r, &[1.0f32; 9])).collect::<Result<Vec<_>, _>>()?;
        let mut outputs = (0..3).map(|r| comm.buffer::<crossccl::half::bf16>(r, 3)).collect::<Result<Vec<_>, _>>()?;
        let what = ReduceScatter::new(ReduceOp::Sum).factor(0.5);
        comm.reduce_scatter_fused(&inputs, outputs.iter_mut().map(Destination::accumulate), what)?.wait()
    });
}

#[test]
fn each_call_of_reads_and_writes_may_fail() {
    any_call_may_fail(|_, data, others| {
        for (from, to) in data.iter().zip(others) {
            to.write(&from.to_vec()?)?;
            to.fill_bytes(1)?;
        }
        Ok(())
    });
}

/// Two queued launches of a recording.
#[test]
fn each_call_of_a_replay_may_fail() {
    any_call_may_fail(|comm, data, _| {
        let mut recording = comm.record();
        recording.broadcast_in_place(&mut *data, 2)?.reduce_scatter_in_place(&mut *data, ReduceOp::Sum)?;
        let replay = recording.finish()?;
        let flights = [replay.launch()?, replay.launch()?];
        flights.into_iter().try_for_each(|flight| flight.wait())
    });
}

/// By address, on other streams than before: events between them.
#[test]
fn each_call_on_streams_of_the_callers_may_fail() {
    let mut lost = 0;
    for_each_call(|machine, fault| {
        let comm = build(2).expect("communicator");
        let data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u32; 99]).expect("buffer")).collect();
        let own: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
        let other: Vec<_> = own
            .iter()
            .map(|s| {
                <Faulty as crossccl::Backend>::create_stream(&<Faulty as crossccl::Backend>::device_of(s))
                    .expect("stream")
            })
            .collect();
        let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
        machine.arm(only(fault));
        let begin = Instant::now();
        let outcome = (|| {
            // SAFETY: the buffers live until after the waits, and after a failure until after the reset, or for good.
            let first = unsafe { comm.broadcast_raw(&raw, &own, 99, DType::U32, 1)? };
            // SAFETY: as above.
            let second = unsafe { comm.broadcast_raw(&raw, &other, 99, DType::U32, 0)? };
            first.wait()?;
            second.wait()
        })();
        assert!(begin.elapsed() < BOUND, "{fault:?} took {:?}", begin.elapsed());
        let calls = machine.calls();
        machine_is_told(machine, fault, &outcome);
        machine.arm(None);
        let reset = comm.reset();
        if reset.is_ok() {
            works(&comm);
            drop((data, comm, own, other));
            assert_eq!(machine.alive(), NOTHING, "{fault:?}");
        } else {
            assert!(matches!(fault, Some((Method::Record, _))), "{fault:?}: {reset:?}");
            lost += 1;
            std::mem::forget(data);
        }
        machine.arm(None);
        if fault.is_none() {
            calls.into_iter().for_each(|(method, calls)| machine.count(method, calls));
        }
    });
    assert!(lost > 0, "no launch whose end cannot be known");
}

/// Memory of the caller's is looked at for a rank that calls for itself as for all at once: what it reads and what it
/// writes, and nothing that is not there.
#[test]
fn each_look_at_memory_of_the_callers_may_fail() {
    let machine = Machine::turn();
    let ranks = build(2).expect("communicator").into_ranks();
    let data = ranks[1].buffer::<u32>(99).expect("buffer");
    // Not in place, where one look is enough.
    let sum = ranks[1].buffer::<u32>(49).expect("buffer");
    let at = RawRank::new(data.address(), sum.address());
    let call = || {
        let what = ReduceScatter::new(ReduceOp::Sum).timeout(SHORT);
        // SAFETY: the buffers go after the communicator.
        unsafe { ranks[1].reduce_scatter_raw(at, ranks[1].stream(), 99, DType::U32, what) }.map(drop)
    };
    for number in [1, 2] {
        machine.arm(Some((Method::CheckMemory, Which::Only(number))));
        let error = call().expect_err("a look failed");
        assert!(tells(&error, &machine), "{error}");
        assert_eq!(machine.calls().get(&Method::Launch), None);
    }
    machine.arm(None);
    call().expect("launch");
    assert_eq!(machine.calls().get(&Method::CheckMemory), Some(&2), "the input and the output");
    drop((ranks, data, sum));
}

fn machine_is_told(machine: &Machine, fault: Option<(Method, usize)>, outcome: &Result<(), Error>) {
    match (fault, outcome) {
        (None, Ok(())) => {}
        (Some(_), Err(error)) => assert!(tells(error, machine), "{fault:?}: {error}"),
        _ => panic!("{fault:?}: {outcome:?}"),
    }
}

/// A reset that fails says so, and can be asked for again.
#[test]
fn each_call_of_a_reset_may_fail() {
    let calls = for_each_call(|machine, fault| {
        let comm = build(3).expect("communicator");
        works(&comm);
        comm.abort();
        machine.arm(only(fault));
        let begin = Instant::now();
        let outcome = comm.reset();
        assert!(begin.elapsed() < BOUND, "{fault:?} took {:?}", begin.elapsed());
        let calls = machine.calls();
        machine_is_told(machine, fault, &outcome);
        machine.arm(None);
        if fault.is_some() {
            let mut data: Vec<_> = (0..3).map(|r| comm.buffer::<u8>(r, 9).expect("buffer")).collect();
            let error = comm.broadcast_in_place(&mut data, 0).map(drop).expect_err("poisoned");
            assert!(matches!(error, Error::Poisoned { .. }), "{error}");
            comm.reset().expect("the fault is over");
        }
        works(&comm);
        drop(comm);
        assert_eq!(machine.alive(), NOTHING, "{fault:?}");
        machine.arm(None);
        if fault.is_none() {
            calls.into_iter().for_each(|(method, calls)| machine.count(method, calls));
        }
    });
    assert!(calls[&Method::Copy] > 10, "{calls:?}");
}

/// Drops tell nobody: they neither panic nor wait without limit, and keep what a kernel may still touch.
#[test]
fn each_call_of_a_drop_may_fail() {
    for_each_call(|machine, fault| {
        let ranks = build(2).expect("communicator").into_ranks();
        let mut data = ranks[0].buffer::<u32>(999).expect("buffer");
        let what = Broadcast::from_root(1).timeout(SHORT);
        let flight = ranks[0].broadcast_in_place(&mut data, what).expect("launch");
        machine.arm(only(fault));
        let begin = Instant::now();
        drop(flight);
        drop(ranks);
        drop(data);
        assert!(begin.elapsed() < BOUND, "{fault:?} took {:?}", begin.elapsed());
        let calls = machine.calls();
        machine.arm(None);
        if fault.is_none() {
            assert_eq!(machine.alive(), NOTHING);
            calls.into_iter().for_each(|(method, calls)| machine.count(method, calls));
            return;
        }
        works(&build(2).expect("the fault is over"));
    });
}

/// From some call on all fail, as after an error of the hardware.
#[test]
fn a_device_may_die_in_each_call_of_a_broadcast() {
    let dies = |fault: Option<(Method, usize)>| {
        let machine = Machine::turn();
        let comm = build(2).expect("communicator");
        let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 1000]).expect("buffer")).collect();
        machine.arm(fault.map(|(method, call)| (method, Which::From(call))));
        let begin = Instant::now();
        let outcome = comm.broadcast_in_place(&mut data, 1).and_then(|flight| flight.wait());
        let calls = machine.calls();
        machine_is_told(&machine, fault, &outcome);
        if fault.is_some() {
            assert!(comm.broadcast_in_place(&mut data, 1).is_err());
            assert!(comm.reset().is_err());
        }
        drop((data, comm));
        assert!(begin.elapsed() < BOUND, "{fault:?} took {:?}", begin.elapsed());
        assert_eq!(machine.wrong(), Vec::<String>::new(), "{fault:?}");
        calls
    };
    let calls = dies(None);
    for (method, calls) in calls {
        (1..=calls).for_each(|call| drop(dies(Some((method, call)))));
    }
}

/// Case A19: in the call of all ranks a launch that fails frees those that wait already, whichever rank's it is.
#[test]
fn a19_a_launch_that_fails_on_any_rank_frees_the_others() {
    let machine = Machine::turn();
    let comm = Communicator::<Faulty>::builder(0..4).timeout(None).build().expect("communicator");
    let mut data: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as u8; 999]).expect("buffer")).collect();
    for rank in 0..4 {
        machine.arm(Some((Method::Launch, Which::Only(rank + 1))));
        let begin = Instant::now();
        let error = comm.broadcast_in_place(&mut data, 3).map(drop).expect_err("a launch failed");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert!(matches!(&error, Error::Driver { call: "launch", rank: Some(r), .. } if r.index() == rank), "{error}");
        machine.arm(None);
        if rank > 0 {
            let next = comm.broadcast_in_place(&mut data, 0).map(drop).expect_err("poisoned");
            assert_eq!(next, Error::Poisoned { cause: Box::new(error) });
            comm.reset().expect("reset");
        }
        works(&comm);
    }
    drop((data, comm));
    assert_eq!(machine.alive(), NOTHING);
}

/// Every rank's outcome of a reduce-scatter on a thread of its own; the buffers live until after `then`.
fn on_threads(
    ranks: &[std::sync::Mutex<RankComm<Faulty>>],
    limit: Duration,
    skip: Option<usize>,
) -> Vec<Option<Result<(), Error>>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, comm)| {
                scope.spawn(move || {
                    let comm = comm.lock().expect("one thread a rank");
                    if skip == Some(rank) {
                        return None;
                    }
                    let mut data = comm.buffer_from(&[rank as u32; 30]).expect("buffer");
                    let what = ReduceScatter::new(ReduceOp::Sum).timeout(limit);
                    Some(comm.reduce_scatter_in_place(&mut data, what).and_then(|flight| flight.wait()))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn reset(ranks: &[std::sync::Mutex<RankComm<Faulty>>]) {
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| rank.lock().expect("one thread a rank").reset(Duration::from_secs(10)).expect("reset"));
        }
    });
}

/// Case A19 with a handle a rank: who has the error knows; those that wait for it are told that it did not come.
#[test]
fn a19_a_launch_that_fails_is_missed_by_the_others() {
    let machine = Machine::turn();
    for agreement in [Agreement::Dependent, Agreement::Strict] {
        for failing in 0..3usize {
            let comm = Communicator::<Faulty>::builder(0..3).agreement(agreement).build().expect("communicator");
            let ranks: Vec<_> = comm.into_ranks().into_iter().map(std::sync::Mutex::new).collect();
            {
                let comm = ranks[failing].lock().expect("one thread a rank");
                let mut data = comm.buffer_from(&[1u32; 30]).expect("buffer");
                machine.arm(Some((Method::Launch, Which::Only(1))));
                let error =
                    comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).map(drop).expect_err("a launch failed");
                assert!(tells(&error, &machine), "{error}");
                machine.arm(None);
            }
            for outcome in on_threads(&ranks, SHORT, Some(failing)).into_iter().flatten() {
                let error = outcome.expect_err("a rank is missing");
                let cause = if let Error::Poisoned { cause } = &error { cause } else { &error };
                assert!(
                    matches!(cause, Error::Timeout { missing, .. } if missing.contains(&Rank(failing as u32))),
                    "{error}"
                );
            }
            reset(&ranks);
            assert!(on_threads(&ranks, Duration::from_secs(10), None).into_iter().all(|o| o == Some(Ok(()))));
        }
    }
    assert_eq!(machine.alive(), NOTHING);
}

/// Cases D2 and D4: peer access is reported, and what goes that way is lost or damaged. Each ordered pair is named.
#[test]
fn d2_pairs_that_lose_or_damage_are_named() {
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        for how in [Cut::Lost, Cut::Reads(0), Cut::Reads(0xff)] {
            let machine = Machine::turn();
            machine.cut(Some((from, to, how)));
            let error = build(3).map(drop).expect_err("a pair does not work");
            let pair = Error::PeerSelfTest { from: Rank(from as u32), to: Rank(to as u32) };
            assert_eq!(error, pair, "{how:?}");
            assert_eq!(machine.alive(), NOTHING, "{how:?}");
            // Other pairs work, and this one when it is mended.
            let other = 3 - from - to;
            works(&Communicator::<Faulty>::builder([from, other]).build().expect("communicator"));
            works(&Communicator::<Faulty>::builder([other, to]).build().expect("communicator"));
            machine.cut(None);
            works(&build(3).expect("mended"));
            assert_eq!(machine.alive(), NOTHING, "{how:?}");
        }
    }
}

/// Case D3.
#[test]
fn d3_a_pair_without_access_is_named() {
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let machine = Machine::turn();
        machine.unreachable(from, to);
        let error = build(3).map(drop).expect_err("a pair without access");
        let reason = "the driver reports no peer access".to_owned();
        assert_eq!(error, Error::PeerAccess { from: Rank(from as u32), to: Rank(to as u32), reason });
        assert_eq!(machine.alive(), NOTHING);
    }
}

/// Case D16: a link that worked in the set-up, and over which a peer's flags never come from then on: a time-out that names
/// the peer, on every rank, and once it is mended, all goes on.
#[test]
fn d16_flags_that_never_come_are_a_time_out() {
    let machine = Machine::turn();
    let ranks: Vec<_> = build(3).expect("communicator").into_ranks().into_iter().map(std::sync::Mutex::new).collect();
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        assert!(on_threads(&ranks, Duration::from_secs(10), None).into_iter().all(|o| o == Some(Ok(()))));
        machine.cut(Some((from, to, Cut::Lost)));
        let begin = Instant::now();
        let outcomes = on_threads(&ranks, SHORT, None);
        assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
        // Who waits for the flags names their rank; who waits for that one in turn may be the first.
        let fits = |error: &Error| match error {
            Error::Timeout { rank, missing, .. } if rank.index() == to => missing.contains(&Rank(from as u32)),
            Error::Timeout { missing, .. } => missing.contains(&Rank(to as u32)),
            _ => false,
        };
        for outcome in outcomes.into_iter().flatten() {
            let error = outcome.expect_err("nobody does without");
            assert!(
                fits(if let Error::Poisoned { cause } = &error { cause } else { &error }),
                "{from} to {to}: {error}"
            );
        }
        machine.cut(None);
        reset(&ranks);
    }
    assert!(on_threads(&ranks, Duration::from_secs(10), None).into_iter().all(|o| o == Some(Ok(()))));
    drop(ranks);
    assert_eq!((machine.alive(), machine.wrong()), (NOTHING, Vec::new()));
}

/// Case E6.
#[test]
fn e6_a_rank_without_coherent_memory_is_named() {
    for rank in 0..3usize {
        let machine = Machine::turn();
        machine.without_coherent_memory();
        machine.arm(Some((Method::AllocateSignal, Which::Only(rank + 1))));
        let error = build(3).map(drop).expect_err("no coherent memory");
        let named = matches!(&error, Error::SignalMemoryNotCoherent { rank: Some(r), .. } if r.index() == rank);
        assert!(named, "{error}");
        assert_eq!(machine.alive(), NOTHING);
        machine.arm(None);
        works(&build(3).expect("communicator"));
    }
}

/// A backend without inline streams says so, and is not asked for one.
#[test]
fn inline_streams_are_refused_where_there_are_none() {
    let machine = Machine::turn();
    let error = Communicator::<Faulty>::builder(0..2).inline_streams(true).build().unwrap_err();
    let expected = "communicator: the faulty backend has no inline streams; leave inline_streams out";
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, Error::Unsupported { .. }) && machine.calls().is_empty(), "{:?}", machine.calls());
    let device = Faulty::open(0).unwrap();
    let fault = Faulty::create_inline_stream(&device).unwrap_err();
    assert_eq!((fault.call, &*fault.name), ("create_inline_stream", "the faulty backend has no inline streams"));
}

/// A reset that fails leaves a communicator that had no failure refusing work, like any other.
#[test]
fn a_reset_that_fails_poisons_a_communicator_that_was_whole() {
    let machine = Machine::turn();
    let comm = build(2).expect("communicator");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer::<u8>(r, 9).expect("buffer")).collect();
    machine.arm(Some((Method::Copy, Which::Only(1))));
    let error = comm.reset().expect_err("a read of the epochs failed");
    assert!(tells(&error, &machine), "{error}");
    machine.arm(None);
    assert_eq!(comm.failure(), Some(Error::Aborted));
    let next = comm.broadcast_in_place(&mut data, 0).map(drop);
    assert_eq!(next, Err(Error::Poisoned { cause: Box::new(Error::Aborted) }));
    comm.reset().expect("the fault is over");
    assert_eq!(comm.failure(), None);
    works(&comm);
}

/// Every handle hears how the reset went, not only the one that came last and did it.
#[test]
fn every_handle_hears_of_a_reset_that_fails() {
    let machine = Machine::turn();
    let ranks: Vec<_> = build(3).expect("communicator").into_ranks().into_iter().map(std::sync::Mutex::new).collect();
    machine.arm(Some((Method::Copy, Which::Only(1))));
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let all = |rank: &'_ std::sync::Mutex<RankComm<Faulty>>| {
            rank.lock().expect("one thread a rank").reset(Duration::from_secs(10))
        };
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || all(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for outcome in outcomes {
        let error = outcome.expect_err("a read of the epochs failed");
        assert!(tells(&error, &machine), "{error}");
    }
    machine.arm(None);
    reset(&ranks);
    assert!(on_threads(&ranks, Duration::from_secs(10), None).into_iter().all(|o| o == Some(Ok(()))));
}

/// A launch whose end cannot be known: nobody says that nothing runs, the host keeps off its memory, and that stays for
/// good, as does that of the calls in flight beside it.
#[test]
fn memory_of_a_launch_whose_end_is_not_known_is_never_let_go() {
    for raw in [false, true] {
        let machine = Machine::turn();
        let ranks = build(2).expect("communicator").into_ranks();
        let (mut before, mut data) =
            (ranks[0].buffer::<u8>(9).expect("buffer"), ranks[0].buffer::<u8>(9).expect("buffer"));
        let flight = ranks[0].broadcast_in_place(&mut before, 1).expect("launch");
        machine.arm(Some((Method::Record, Which::Only(1))));
        let error = if raw {
            let at = RawRank::new(0, data.address());
            // SAFETY: the buffer is forgotten below.
            unsafe { ranks[0].broadcast_raw(at, ranks[0].stream(), 9, DType::U8, 1) }.map(drop)
        } else {
            ranks[0].broadcast_in_place(&mut data, 1).map(drop)
        };
        let error = error.expect_err("no event");
        assert!(tells(&error, &machine), "{error}");
        machine.arm(None);
        assert_eq!(ranks[1].failure(), Some(error));
        assert!(flight.wait().is_err());
        let stopped = ranks[1].stop();
        assert!(matches!(&stopped, Err(Error::Busy { operation: "stop", .. })), "{stopped:?}");
        if raw {
            std::mem::forget(data);
        } else {
            assert!(matches!(data.write(&[1; 9]), Err(Error::Busy { .. })));
            drop(data);
        }
        drop((ranks, before));
        let kinds = [MemoryKind::Signal, MemoryKind::Host, MemoryKind::Device];
        assert_eq!(kinds.map(|kind| machine.alive_of(kind)), [2, 2, 2], "raw: {raw}");
    }
}

/// With its last handle a communicator ends what waits without limit, and gives back what that used.
#[test]
fn the_last_drop_ends_raw_calls_that_nobody_waits_for() {
    let machine = Machine::turn();
    let comm = Communicator::<Faulty>::builder(0..2).timeout(None).build().expect("communicator");
    let ranks = comm.into_ranks();
    let data = ranks[0].buffer::<u8>(999).expect("buffer");
    let at = RawRank::new(0, data.address());
    // SAFETY: the buffer goes after the communicator, which ends the launch.
    let launched = unsafe { ranks[0].broadcast_raw(at, ranks[0].stream(), 999, DType::U8, 1) }.expect("launch");
    drop((launched, ranks));
    let kinds = [MemoryKind::Signal, MemoryKind::Host, MemoryKind::Device];
    assert_eq!(kinds.map(|kind| machine.alive_of(kind)), [0, 0, 1]);
    drop(data);
    assert_eq!((machine.alive(), machine.wrong()), (NOTHING, Vec::new()));
}

/// Where its last launch cannot end, since other work stands in front of it, what that may touch stays.
#[test]
fn the_last_drop_keeps_what_a_launch_that_cannot_end_may_touch() {
    let machine = Machine::turn();
    let comm = build(2).expect("communicator");
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let builder = Communicator::<Faulty>::builder(0..2).streams(streams).timeout(None);
    let other = builder.build().expect("communicator").into_ranks();
    let (mut in_front, data) = (other[0].buffer::<u8>(9).expect("buffer"), comm.buffer::<u8>(0, 9).expect("buffer"));
    let endless = other[0].broadcast_in_place(&mut in_front, 1).expect("launch");
    let ranks = comm.into_ranks();
    let at = RawRank::new(0, data.address());
    // SAFETY: the buffer is forgotten below.
    let behind = unsafe { ranks[0].broadcast_raw(at, ranks[0].stream(), 9, DType::U8, 1) }.expect("launch");
    std::mem::forget(data);
    drop((behind, ranks));
    assert_eq!([MemoryKind::Signal, MemoryKind::Host].map(|kind| machine.alive_of(kind)), [4, 4]);
    other[0].abort();
    assert_eq!(endless.wait(), Err(Error::Aborted));
    drop((in_front, other));
    assert_eq!([MemoryKind::Signal, MemoryKind::Host].map(|kind| machine.alive_of(kind)), [2, 2]);
    assert_eq!(machine.wrong(), Vec::<String>::new());
}
