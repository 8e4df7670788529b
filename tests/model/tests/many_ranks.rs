//! Three to eight ranks, schedules at random and by priority. Sequentially consistent: what a missing
//! release breaks is for `two_ranks.rs`.
#![cfg(not(loom))]

use crossccl_model::{
    check::{Budget, explore, must_fail},
    host::{Call, UNTOUCHED, What, calls, launch, output_of, together},
    protocol::{Planted, Shape, World, failure},
    sync::{Arc, thread},
};

type Plan = Vec<Call>;

fn shape(ranks: usize, blocks: usize) -> Shape {
    // Two words a chunk, so that rounds have something to overwrite; room for four rounds.
    let half = 2 * blocks;
    Shape { blocks, domains: 2, half, buffers: (2, ranks * half * 4), ..Shape::new(ranks) }
}

fn nobody_failed(w: &World) {
    (0..w.ranks()).for_each(|r| assert_eq!(w.state(r), failure::NONE, "rank {r} fails"));
}

/// Everybody calls the same; all is right.
fn right(shape: Shape, plan: Plan) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(shape);
        together(&w, 0..shape.ranks, 1, |_| plan.clone());
        nobody_failed(&w);
    }
}

/// Both broadcasts and the reduce-scatter, with roots that change: whoever is not needed runs ahead.
fn mixed(ranks: usize) -> Plan {
    let one = |root: usize| Call::new(What::OneStage(root % ranks));
    vec![
        one(0),
        one(1),
        one(2),
        Call::new(What::TwoStage(1, 3)),
        one(3),
        one(0),
        Call::new(What::ReduceScatter),
        Call::new(What::TwoStage(ranks - 1, 2)),
        one(1),
        Call::new(What::ReduceScatter),
    ]
}

#[test]
fn launches_with_changing_roots() {
    for (ranks, blocks, schedules) in [(3, 1, 400), (4, 1, 400), (5, 1, 300), (8, 1, 150), (3, 2, 200), (4, 2, 100)] {
        let name = format!("mixed, {ranks} ranks, {blocks} blocks");
        explore(&name, Budget::schedules(schedules), right(shape(ranks, blocks), mixed(ranks)));
    }
}

/// Ranks that are not roots do not wait for each other: with a root a launch they run as far ahead as it
/// goes, and records of ranks that are late are overwritten.
#[test]
fn ranks_that_run_ahead() {
    for ranks in [4, 6, 8] {
        let plan: Plan = (0..2 * ranks).map(|i| Call::new(What::OneStage(i % ranks)).tag(i as u64)).collect();
        explore(&format!("a root a launch, {ranks} ranks"), Budget::schedules(300), right(shape(ranks, 1), plan));
    }
}

#[test]
fn groups_and_the_world_in_turns() {
    for (ranks, group, blocks) in [(4, 2, 1), (6, 3, 1), (8, 4, 1), (6, 2, 2)] {
        let plan = vec![
            Call::new(What::ReduceScatter).in_groups(group),
            Call::new(What::OneStage(1)),
            Call::new(What::TwoStage(0, 2)).in_groups(group),
            Call::new(What::OneStage(1)).in_groups(group),
            Call::new(What::TwoStage(ranks - 1, 2)),
            Call::new(What::ReduceScatter),
            Call::new(What::OneStage(0)).in_groups(group),
        ];
        let name = format!("groups of {group} of {ranks} ranks, {blocks} blocks");
        explore(&name, Budget::schedules(200), right(shape(ranks, blocks), plan));
    }
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_where_nobody_fails() {
    let wrong = ["wrong data", "null pointer"];
    let plans = [
        (Planted::NoRecordWait, 3, 1, mixed(3)),
        (Planted::NoStagedWait, 3, 1, vec![Call::new(What::TwoStage(0, 3))]),
        (Planted::NoCreditWait, 3, 1, mixed(3)),
        (Planted::OneHalf, 3, 1, vec![Call::new(What::TwoStage(0, 3))]),
        (Planted::OneHalf, 8, 1, vec![Call::new(What::TwoStage(0, 3))]),
    ];
    for (planted, ranks, blocks, plan) in plans {
        let shape = Shape { planted, ..shape(ranks, blocks) };
        must_fail(&format!("{planted:?}, {ranks} ranks"), Budget::schedules(2_000), &wrong, right(shape, plan));
    }
    // A false verdict of a rank that fell behind, and a rank whose blocks are in different launches.
    let plan: Plan = (0..8).map(|i| Call::new(What::OneStage(i % 4)).tag(i as u64)).collect();
    let torn = Shape { planted: Planted::NoTag, ..shape(4, 1) };
    must_fail("NoTag, 4 ranks", Budget::schedules(20_000), &["fails"], right(torn, plan));
    // An input that is the last launch's, or none.
    let torn = Shape { planted: Planted::FirstWordAlone, ..shape(4, 1) };
    let found = ["wrong data", "null pointer"];
    must_fail("FirstWordAlone, 4 ranks", Budget::schedules(20_000), &found, right(torn, mixed(4)));
    let early = Shape { planted: Planted::EarlyEpoch, ..shape(3, 2) };
    let ends = ["exceeded max_steps", "wrong data", "fails"];
    must_fail("EarlyEpoch, 3 ranks, 2 blocks", Budget::schedules(2_000), &ends, right(early, mixed(3)));
}

// A rank that is missing: all who depend on it fail by the limit or by poison, and if somebody fails
// everybody is refused from then on, the missing rank too when it comes.

fn missing(call: Call, ranks: usize, absent: usize, planted: Planted) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(Shape { planted, ..shape(ranks, 1) });
        together(&w, 0..ranks, 1, |_| vec![call]);
        nobody_failed(&w);
        let present = move || (0..ranks).filter(move |r| *r != absent);
        together(&w, present(), 2, |r| vec![if r == (absent + 1) % ranks { call.limit(20) } else { call.limit(60) }]);
        let mut timed_out = 0;
        for r in present() {
            let depends = match call.what {
                What::OneStage(root) | What::Packets(root) => r == root || absent == root || call.strict,
                _ => true,
            };
            assert!(!depends || w.state(r) != failure::NONE, "rank {r} depends on the missing one and does not fail");
            timed_out += usize::from(w.state(r) == failure::TIMEOUT);
            assert!(w.state(r) != failure::MISMATCH, "a false mismatch");
        }
        assert!(timed_out > 0, "nobody names the missing rank");
        for r in 0..ranks {
            if w.state(r) == failure::NONE {
                refused(&w, r, &call);
            }
        }
    }
}

fn refused(w: &Arc<World>, rank: usize, call: &Call) {
    let a = call.arguments(w, rank);
    w.at(a.output, 0).write(UNTOUCHED);
    launch(w, call, &a);
    assert_eq!(w.state(rank), failure::POISONED, "a late rank is refused");
    assert_eq!(w.at(a.output, 0).read(), UNTOUCHED, "a late rank writes nothing");
}

#[test]
fn a_missing_rank() {
    for ranks in [3, 5, 8] {
        let last = ranks - 1;
        for (what, absent) in [
            (What::OneStage(0), 0),
            (What::OneStage(0), last),
            (What::TwoStage(0, 2), 0),
            (What::TwoStage(0, 2), last),
            (What::ReduceScatter, 1),
            (What::Packets(0), 0),
            (What::Packets(0), last),
            (What::ReducePackets, 1),
        ] {
            let name = format!("rank {absent} of {ranks} missing in {what:?}");
            explore(&name, Budget::schedules(100), missing(Call::new(what), ranks, absent, Planted::None));
        }
        let strict = Call::new(What::OneStage(0)).strict();
        let name = format!("rank {last} of {ranks} missing, strict");
        explore(&name, Budget::schedules(100), missing(strict, ranks, last, Planted::None));
    }
}

// The last rank loses patience, about when the others come; they have no limit, so they end by data or by
// its poison. Whoever does not fail has the right data, and after a reset all is well.

fn late(what: What, ranks: usize, planted: Planted) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(Shape { planted, ..shape(ranks, 1) });
        let call = Call::new(what);
        together(&w, 0..ranks, 1, |rank| vec![if rank == ranks - 1 { call.limit(8) } else { call }; 3]);
        let failed = (0..ranks).filter(|r| w.state(*r) != failure::NONE).count();
        let origins = (0..ranks).filter(|r| w.state(*r) == failure::TIMEOUT).count();
        assert!(failed == 0 || origins > 0, "poison from nowhere");
        w.reset();
        together(&w, 0..ranks, 4, |_| {
            vec![
                Call::new(what),
                Call::new(What::OneStage(1)),
                Call::new(What::ReduceScatter),
                Call::new(What::Packets(0)),
            ]
        });
        nobody_failed(&w);
    }
}

#[test]
fn late_ranks_and_resets() {
    for ranks in [3, 4, 8] {
        for what in
            [What::OneStage(0), What::TwoStage(1, 2), What::ReduceScatter, What::Packets(0), What::ReducePackets]
        {
            explore(
                &format!("late, {ranks} ranks, {what:?}"),
                Budget::schedules(200),
                late(what, ranks, Planted::None),
            );
        }
    }
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_where_ranks_fail() {
    let schedules = Budget::schedules(4_000);
    let wrong = ["wrong data", "null pointer"];
    for what in [What::TwoStage(1, 2), What::OneStage(0)] {
        let bug = Planted::ResetZeroes;
        let found = ["wrong data", "null pointer", "fails"];
        must_fail(&format!("{bug:?}, {what:?}"), schedules, &found, late(what, 3, bug));
    }
    let bug = Planted::SignalAfterFailure;
    must_fail(&format!("{bug:?}"), schedules, &wrong, late(What::TwoStage(1, 2), 3, bug));
    let bug = Planted::NoPoisonLook;
    let found = ["a late rank is refused", "wrong data"];
    must_fail(&format!("{bug:?}"), schedules, &found, missing(Call::new(What::OneStage(0)), 3, 2, bug));
}

// Disagreement: rank 1 calls something else once. Nobody takes wrong data for good; with no limit at
// all everybody who depends on what differs still ends.

fn disagrees(shape: Shape, plan: Plan, other: Call) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(shape);
        (0..shape.ranks).for_each(|r| w.at(output_of(r), 0).write(UNTOUCHED));
        together(&w, 0..shape.ranks, 1, |rank| {
            let mut plan = plan.clone();
            if rank == 1 {
                plan[0] = other;
            }
            plan
        });
        (0..shape.ranks).for_each(|r| assert_ne!(w.state(r), failure::NONE, "rank {r} is told nothing"));
        let seen = (0..shape.ranks).filter(|r| w.state(*r) == failure::MISMATCH).count();
        assert!(seen > 0, "nobody sees the mismatch");
    }
}

#[test]
fn a_rank_that_calls_something_else() {
    for ranks in [3, 4, 8] {
        let all = |what| vec![Call::new(what), Call::new(What::ReduceScatter)];
        for (what, other) in [
            (What::ReduceScatter, Call::new(What::ReduceScatter).tag(1)),
            (What::TwoStage(0, 2), Call::new(What::TwoStage(0, 3))),
            (What::TwoStage(0, 2), Call::new(What::TwoStage(2, 2))),
            (What::OneStage(0), Call::new(What::ReduceScatter)),
            (What::OneStage(0), Call::new(What::OneStage(0)).tag(1)),
            (What::OneStage(0), Call::new(What::OneStage(1))),
        ] {
            let name = format!("{ranks} ranks call {what:?}, rank 1 {:?} {}", other.what, other.tag);
            explore(&name, Budget::schedules(100), disagrees(shape(ranks, 1), all(what), other));
        }
    }
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_where_ranks_disagree() {
    let bug = Shape { planted: Planted::NoCompare, ..shape(3, 1) };
    let plan = vec![Call::new(What::OneStage(0)); 2];
    let found = ["wrong data", "null pointer", "told nothing", "exceeded max_steps"];
    must_fail("NoCompare", Budget::schedules(100), &found, disagrees(bug, plan, Call::new(What::OneStage(2))));
}

// The broadcast's non-roots depend on the root alone. Rank 1 takes rank 3 for the root of the first
// launch; it is rank 2. Rank 3 waits for nobody but roots, so it may be two launches on when rank 1
// comes: its record of the first launch is gone, and the slot has another address, or none.

fn another_root(planted: Planted, third: usize) -> impl Fn() + Send + Sync + 'static {
    let plan = [2, 0, third].map(|root| Call::new(What::OneStage(root))).to_vec();
    disagrees(Shape { planted, ..shape(4, 1) }, plan, Call::new(What::OneStage(3)))
}

#[test]
fn a_record_that_is_gone_is_no_agreement() {
    for third in [3, 0] {
        explore("gone is a mismatch where I read", Budget::schedules(20_000), another_root(Planted::None, third));
    }
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_where_a_record_is_gone() {
    let (schedules, bug) = (Budget::schedules(20_000), Planted::GoneAgrees);
    must_fail("gone, rank 3 is root of the third launch", schedules, &["wrong data"], another_root(bug, 3));
    must_fail("gone, rank 3 is not", schedules, &["null pointer"], another_root(bug, 0));
}

/// Ranks that are ahead for good reasons are no mismatch.
#[test]
fn gone_gives_no_false_mismatch() {
    for ranks in [4, 8] {
        let plan: Plan = (0..2 * ranks).map(|i| Call::new(What::OneStage(i % ranks)).tag(i as u64)).collect();
        let schedules = Budget::schedules(300);
        explore(&format!("a root a launch, {ranks} ranks"), schedules, right(shape(ranks, 1), plan));
        explore(&format!("mixed, {ranks} ranks"), Budget::schedules(200), right(shape(ranks, 1), mixed(ranks)));
    }
}

// Ranks 0 and 1 disagree in their group. What all had enqueued next is a call of the world: ranks 2 and
// 3 wait there, without a limit, for two ranks that are refused: these tell them.

fn group_then_world(planted: Planted, limit: Option<u32>) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(Shape { planted, ..shape(4, 1) });
        together(&w, 0..4, 1, |rank| {
            let group = Call::new(What::ReduceScatter).in_groups(2).tag(u64::from(rank == 0));
            vec![group, Call { limit, ..Call::new(What::ReduceScatter) }]
        });
        let states: Vec<u64> = (0..4).map(|r| w.state(r)).collect();
        assert!(!states.contains(&failure::NONE), "everybody is told");
        // With one it may be a short limit that ends the wait, where threads are slow to come.
        if limit.is_none() {
            assert!(states[..2].contains(&failure::MISMATCH), "the group sees its mismatch");
            assert_eq!(states[2..], [failure::POISONED; 2], "by poison");
        }
    }
}

#[test]
fn a_failed_group_tells_the_world() {
    let schedules = Budget::schedules(200);
    explore("group fails, no limit", schedules, group_then_world(Planted::None, None));
    explore("group fails, with a limit", schedules, group_then_world(Planted::None, Some(200)));
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_where_a_group_fails() {
    let found = ["exceeded max_steps"];
    must_fail("PoisonStays", Budget::schedules(200), &found, group_then_world(Planted::PoisonStays, None));
}

/// The host's abort ends every wait.
#[test]
fn abort_ends_every_wait() {
    for what in [What::OneStage(0), What::TwoStage(1, 2), What::ReduceScatter, What::Packets(0)] {
        explore(&format!("abort in {what:?}"), Budget::schedules(200), move || {
            let w = World::new(shape(3, 1));
            let host = w.clone();
            let abort = thread::spawn(move || (0..3).for_each(|r| host.abort(r)));
            together(&w, 0..2, 1, |_| vec![Call::new(what)]);
            abort.join().unwrap();
            if matches!(what, What::OneStage(_) | What::Packets(_)) {
                assert_ne!(w.state(0), failure::NONE, "the root waits for a rank that is missing");
            } else {
                (0..2).for_each(|r| assert_ne!(w.state(r), failure::NONE, "rank {r} waits for the missing one"));
            }
            calls(&w, 2, 1, &[Call::new(what)]);
            assert_ne!(w.state(2), failure::NONE, "the late rank is refused");
        });
    }
}

// Packets. Roots change, so that ranks run ahead of those that nobody depends on in between; flags repeat after a few
// launches, so that words of long ago would pass.

/// Broadcasts from all roots in some order, sums and pulls among them.
fn by_packets(ranks: usize, launches: usize) -> Plan {
    let what = |i: usize| match i % 7 {
        4 => What::ReducePackets,
        6 => What::OneStage(i % ranks),
        _ => What::Packets(i * i % ranks),
    };
    (0..launches).map(|i| Call::new(what(i))).collect()
}

fn packets(ranks: usize, blocks: usize, restamp: u64, planted: Planted) -> Shape {
    Shape { slot: 3, restamp, planted, buffers: (2, 3 * ranks), ..shape(ranks, blocks) }
}

#[test]
fn packets_with_changing_roots() {
    for (ranks, blocks, restamp, schedules) in [
        (3, 1, 4, 300),
        (3, 1, 5, 300),
        (3, 1, 1 << 30, 200),
        (4, 1, 4, 200),
        (8, 1, 4, 40),
        (3, 2, 4, 150),
        (4, 2, 5, 80),
    ] {
        let name = format!("packets, {ranks} ranks, {blocks} blocks, stamped anew each {restamp}");
        let shape = packets(ranks, blocks, restamp, Planted::None);
        explore(&name, Budget::schedules(schedules), right(shape, by_packets(ranks, 20)));
    }
}

#[test]
fn packets_in_groups_and_the_world() {
    let plan = vec![
        Call::new(What::Packets(1)).in_groups(2),
        Call::new(What::Packets(3)),
        Call::new(What::ReducePackets).in_groups(2),
        Call::new(What::ReducePackets),
        Call::new(What::Packets(0)).in_groups(2),
        Call::new(What::OneStage(2)),
        Call::new(What::Packets(2)),
    ];
    let shape = packets(4, 1, 4, Planted::None);
    explore("packets, groups of 2 of 4 ranks", Budget::schedules(300), right(shape, plan));
}

#[test]
#[cfg_attr(model_threads, ignore = "asks for schedules that may not come")]
fn planted_in_packets() {
    let wrong = ["wrong data", "fails", "exceeded max_steps"];
    let roots = |roots: &[usize]| -> Plan { roots.iter().map(|r| Call::new(What::Packets(*r))).collect() };
    // Rank 0 sends to rank 1 in launches 1 and 3, and does not depend on it in launch 2.
    let ack = packets(3, 1, 1 << 30, Planted::AckOffByOne);
    must_fail("packets, AckOffByOne, 3 ranks", Budget::schedules(4_000), &wrong, right(ack, roots(&[0, 2, 0, 2, 0])));
    // What rank 0 sends to rank 1 in launch 1 has the flags of launch 9.
    for bug in [Planted::RestampOneSlot, Planted::NoRestamp] {
        let shape = packets(3, 1, 4, bug);
        let plan = roots(&[0, 1, 1, 2, 1, 2, 1, 2, 0]);
        must_fail(&format!("packets, {bug:?}, 3 ranks"), Budget::schedules(4_000), &wrong, right(shape, plan));
    }
    let ordered = packets(3, 1, 4, Planted::OrderedFlags);
    must_fail("packets, OrderedFlags, 3 ranks", Budget::schedules(100), &wrong, right(ordered, roots(&[0; 10])));
    // Too few launches between a stamp and the flag that it has.
    let often = packets(3, 1, 2, Planted::None);
    must_fail("packets, stamped anew each 2", Budget::schedules(4_000), &wrong, right(often, by_packets(3, 20)));
    let header = packets(3, 1, 1 << 30, Planted::NoHeader);
    let told = ["wrong data", "told nothing", "null pointer"];
    let plan = vec![Call::new(What::Packets(0)), Call::new(What::ReducePackets)];
    let other = Call::new(What::Packets(0)).tag(1);
    must_fail("packets, NoHeader, 3 ranks", Budget::schedules(100), &told, disagrees(header, plan, other));
}

#[test]
fn packets_that_fail() {
    for ranks in [3, 4] {
        let all = |what| vec![Call::new(what), Call::new(What::ReducePackets)];
        for (what, other) in [
            (What::Packets(0), Call::new(What::Packets(0)).tag(1)),
            (What::Packets(0), Call::new(What::Packets(1))),
            (What::Packets(0), Call::new(What::ReducePackets)),
            (What::Packets(0), Call::new(What::OneStage(0))),
            (What::ReduceScatter, Call::new(What::ReducePackets)),
        ] {
            let name = format!("{ranks} ranks call {what:?}, rank 1 {:?} {}", other.what, other.tag);
            explore(&name, Budget::schedules(100), disagrees(packets(ranks, 1, 4, Planted::None), all(what), other));
        }
    }
}
