//! Two ranks of one block, weak orderings included: every interleaving where `ALL` stands, else those
//! up to a number of preemptions.
#![cfg(loom)]

use crossccl_model::{
    check::{Budget, explore, must_fail},
    host::{Call, UNTOUCHED, What, calls, launch, output_of, together},
    protocol::{Arguments, Arrival, Block, Planted, Rendezvous, Shape, World, broadcast_two_stage_staged, failure},
    sync::{Arc, thread},
};

const RACE: &[&str] = &["Causality violation"];
/// Every interleaving.
const ALL: Budget = Budget { preemptions: None, schedules: 0 };
const ONE: Block = Block { block: 0, blocks: 1 };

fn world(planted: Planted) -> Arc<World> {
    World::new(Shape { planted, ..Shape::new(2) })
}

// (a) Record, pull, credit; the root's memory is written for the second launch as soon as the first is
// over.

fn launches<const N: usize>(planted: Planted, what: [What; N]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(planted);
        together(&w, 0..2, 1, |_| what.map(Call::new).to_vec());
        assert_eq!([w.state(0), w.state(1)], [failure::NONE; 2], "nobody fails");
    }
}

const SAME_ROOT: [What; 2] = [What::OneStage(0); 2];

#[test]
fn one_stage_with_memory_used_again() {
    explore("one-stage, the same root twice", ALL, launches(Planted::None, SAME_ROOT));
}

#[test]
fn one_stage_with_another_root() {
    let roots = [What::OneStage(0), What::OneStage(1)];
    explore("one-stage, roots 0 and 1", ALL, launches(Planted::None, roots));
}

/// The third launch has the first one's slots.
#[test]
fn one_stage_thrice() {
    let what = [What::OneStage(0), What::OneStage(1), What::OneStage(0)];
    explore("one-stage, 3 launches", Budget::preemptions(3), launches(Planted::None, what));
}

#[test]
fn reduce_scatter_with_memory_used_again() {
    explore("reduce-scatter twice", ALL, launches(Planted::None, [What::ReduceScatter; 2]));
}

#[test]
fn planted_in_one_stage() {
    for bug in [Planted::RelaxedRelease, Planted::NoCreditWait] {
        must_fail(&format!("one-stage, {bug:?}"), ALL, RACE, launches(bug, SAME_ROOT));
    }
    // No record yet: memory at address 0. One that releases nothing: what the launch before wrote is not there yet.
    must_fail("one-stage, NoRecordWait", ALL, &["null pointer"], launches(Planted::NoRecordWait, SAME_ROOT));
    must_fail("one-stage, RelaxedRecord", ALL, RACE, launches(Planted::RelaxedRecord, SAME_ROOT));
}

// (b) Staging through two payload halves. The root is a third rank that needs nothing: its memory is
// there from the start and is never written. Chunks of one word.

fn staging(w: &World, rank: usize, rounds: usize, limit: Option<u32>) {
    let a = Arguments {
        rank,
        ranks: 2,
        domain: 0,
        first: 0,
        strict: false,
        limit,
        input: 1,
        output: 2 + rank as u64,
        fingerprint: 7,
        words: 2 * rounds,
        segment: 2,
        rounds,
        root: 2,
    };
    broadcast_two_stage_staged(w, ONE, &a);
    if w.state(rank) == failure::NONE {
        (0..a.words).for_each(|i| assert_eq!(w.at(a.output, i).read(), 100 + i as u64, "wrong data"));
    }
}

fn staged(planted: Planted, rounds: usize, limit: Option<u32>) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(Shape { planted, buffers: (2, 2 * rounds), ..Shape::new(2) });
        // Buffer 1 is the root's input, 2 and 3 are the outputs.
        (0..2 * rounds).for_each(|i| w.at(1, i).write(100 + i as u64));
        let other = w.clone();
        let thread = thread::spawn(move || staging(&other, 1, rounds, limit));
        staging(&w, 0, rounds, None);
        thread.join().unwrap();
        if limit.is_none() {
            assert_eq!([w.state(0), w.state(1)], [failure::NONE; 2], "nobody fails");
        }
    }
}

#[test]
fn two_halves_for_three_rounds() {
    explore("staged, 3 rounds", Budget::preemptions(3), staged(Planted::None, 3, None));
}

#[test]
fn planted_in_staged() {
    for bug in [Planted::OneHalf, Planted::NoStagedWait, Planted::RelaxedRelease] {
        must_fail(&format!("staged, {bug:?}"), Budget::preemptions(2), RACE, staged(bug, 3, None));
    }
}

// (c) Records overwritten by a rank that runs ahead: it sends its records of launches 1, 2, 3 without
// waiting for anybody; 1 and 3 share a slot. The other rank, in launch 1, looks at what has come.

fn ahead(planted: Planted, theirs: [u64; 3], mine: u64, may: [Arrival; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(planted);
        let arguments = |rank: usize, fingerprint: u64| Arguments {
            rank,
            ranks: 2,
            domain: 0,
            first: 0,
            strict: false,
            limit: None,
            input: 1,
            output: 2,
            fingerprint,
            words: 1,
            segment: 1,
            rounds: 1,
            root: 0,
        };
        let runner = w.clone();
        let thread = thread::spawn(move || {
            for call in theirs {
                let a = arguments(1, call);
                let meet = Rendezvous::new(&runner, ONE, &a);
                meet.send_record(0);
                meet.advance();
            }
        });
        let a = arguments(0, mine);
        let meet = Rendezvous::new(&w, ONE, &a);
        let mut last = Arrival::Absent;
        for _ in 0..2 {
            let found = meet.look_at_record(1);
            assert!(found == Arrival::Absent || may.contains(&found), "false verdict: {found:?}");
            // While it is overwritten it may look like none.
            assert!(found != Arrival::Absent || last != Arrival::Gone, "false verdict: a later record went away");
            last = found;
        }
        thread.join().unwrap();
        assert_eq!(meet.look_at_record(1), Arrival::Gone, "false verdict at the end");
    }
}

#[test]
fn records_of_a_rank_that_runs_ahead() {
    use Arrival::{Agrees, Differs, Gone};
    explore("ahead: agrees, then calls other things", ALL, ahead(Planted::None, [7, 8, 9], 7, [Agrees, Gone]));
    explore("ahead: disagrees, then as I", ALL, ahead(Planted::None, [9, 8, 7], 7, [Differs, Gone]));
    explore("ahead: the same thrice", ALL, ahead(Planted::None, [7, 7, 7], 7, [Agrees, Gone]));
}

#[test]
fn planted_in_records() {
    use Arrival::{Agrees, Differs, Gone};
    let found = ["false verdict"];
    must_fail("ahead, NoTag", ALL, &found, ahead(Planted::NoTag, [7, 8, 9], 7, [Agrees, Gone]));
    must_fail("ahead, NoCompare", ALL, &found, ahead(Planted::NoCompare, [9, 8, 7], 7, [Differs, Gone]));
}

// (d) Failure. One rank gives up after a few polls, at whatever step that finds it; the other has no
// limit, so it ends only by data or by poison. Whoever has not failed has the right data: `calls` and
// `staging` assert it.

fn gives_up(what: What, failing: usize, before: usize, polls: u32) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(Planted::None);
        let call = Call::new(what);
        together(&w, 0..2, 1, |rank| {
            let mut plan = vec![call; before + 1];
            if rank == failing {
                plan[before] = call.limit(polls);
            }
            plan
        });
        let (failed, other) = (w.state(failing), w.state(1 - failing));
        assert!(failed == failure::NONE || failed == failure::TIMEOUT, "only a time-out");
        assert!(other == failure::NONE || other == failure::POISONED && failed == failure::TIMEOUT, "only by poison");
        if failed == failure::TIMEOUT && other == failure::NONE {
            refused(&w, 1 - failing, &call);
        }
    }
}

/// With 1 to 3 polls in the first launch, with 2 in the second.
fn explore_giving_up(name: &str, what: What, failing: usize) {
    for polls in 1..=3 {
        explore(&format!("{name}, {polls} polls"), ALL, gives_up(what, failing, 0, polls));
    }
    explore(&format!("{name}, second launch"), Budget::preemptions(4), gives_up(what, failing, 1, 2));
}

fn refused(w: &Arc<World>, rank: usize, call: &Call) {
    let a = call.arguments(w, rank);
    w.at(a.output, 0).write(UNTOUCHED);
    launch(w, call, &a);
    assert_eq!(w.state(rank), failure::POISONED, "a late rank is refused");
    assert_eq!(w.at(a.output, 0).read(), UNTOUCHED, "a late rank writes nothing");
}

/// Rank 1 comes when the root has given up: the record is still there.
fn comes_late(planted: Planted) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(planted);
        let call = Call::new(What::OneStage(0));
        calls(&w, 0, 1, &[call.limit(1)]);
        refused(&w, 1, &call);
    }
}

#[test]
fn a_late_rank_after_a_failure() {
    explore("late after a failure", ALL, comes_late(Planted::None));
}

#[test]
fn the_root_gives_up() {
    explore_giving_up("the root gives up", What::OneStage(0), 0);
}

#[test]
fn another_rank_gives_up() {
    explore_giving_up("a rank that is not the root gives up", What::OneStage(0), 1);
}

#[test]
fn a_rank_of_a_reduce_scatter_gives_up() {
    explore_giving_up("a rank of a reduce-scatter gives up", What::ReduceScatter, 1);
}

/// The one that gives up may never stage; the other must not take its payload for data.
#[test]
fn a_rank_gives_up_while_staging() {
    explore("a rank gives up while staging", Budget::preemptions(3), staged(Planted::None, 2, Some(2)));
}

#[test]
fn planted_in_failures() {
    let found = ["Causality violation", "wrong data"];
    let bug = Planted::SignalAfterFailure;
    must_fail("staging, SignalAfterFailure", Budget::preemptions(2), &found, staged(bug, 2, Some(2)));
    must_fail("late, NoPoisonLook", ALL, &["a late rank is refused"], comes_late(Planted::NoPoisonLook));
}

// (e) Reset: a launch that succeeds, one in which a rank never comes, a reset at rest; then the next is
// right and nothing of before counts.

fn reset(planted: Planted) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(planted);
        let call = Call::new(What::OneStage(0));
        together(&w, 0..2, 1, |_| vec![call]);
        calls(&w, 0, 2, &[call.limit(1)]);
        assert_eq!([w.state(0), w.state(1)], [failure::TIMEOUT, failure::NONE], "the one that came times out");
        assert_eq!(w.failed_peer(0), 1, "and names the other");
        w.reset();
        together(&w, 0..2, 3, |_| vec![call]);
        assert_eq!([w.state(0), w.state(1)], [failure::NONE; 2], "nobody fails after a reset");
    }
}

#[test]
fn reset_raises() {
    explore("reset", ALL, reset(Planted::None));
}

#[test]
fn planted_in_reset() {
    let found = ["Causality violation", "wrong data"];
    must_fail("reset, ResetZeroes", ALL, &found, reset(Planted::ResetZeroes));
}

// (f) Packets: words that carry their flags. Nothing orders one word with another, and nothing has to.

fn packets(shape: Shape, what: &'static [What]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(shape);
        together(&w, 0..2, 1, |_| what.iter().copied().map(Call::new).collect());
        assert_eq!([w.state(0), w.state(1)], [failure::NONE; 2], "nobody fails");
    }
}

const ROOT_0: What = What::Packets(0);
const ROOT_1: What = What::Packets(1);

#[test]
fn packets_in_two_slots() {
    let one = Budget::preemptions(1);
    explore("packets, the same root twice", one, packets(Shape::new(2), &[ROOT_0; 2]));
    explore("packets of 2 words, the same root twice", one, packets(Shape { slot: 2, ..Shape::new(2) }, &[ROOT_0; 2]));
    // The third has the slots of the first.
    explore("packets, 3 launches", one, packets(Shape::new(2), &[ROOT_0, ROOT_0, ROOT_1]));
    explore("packets, reduce-scatter twice", one, packets(Shape::new(2), &[What::ReducePackets; 2]));
}

#[test]
fn packets_both_ways() {
    explore("packets, roots 0 and 1", Budget::preemptions(1), packets(Shape::new(2), &[ROOT_0, ROOT_1]));
}

// Launches by packets and by pulls have numbers of their own.
#[test]
fn packets_and_pulls_in_turns() {
    let what = &[ROOT_0, What::OneStage(1), ROOT_1];
    explore("packets and one-stage", Budget::preemptions(1), packets(Shape::new(2), what));
}

/// Flags repeat after 8 launches here. The root may be in launch 8, which stamps anew what launch 7 has sent, before the
/// other one has read that.
const STAMPS: Shape = Shape {
    ranks: 2,
    blocks: 1,
    domains: 1,
    half: 1,
    buffers: (2, 2),
    slot: 1,
    restamp: 4,
    packets: (6, 0),
    planted: Planted::None,
};

#[test]
fn packets_are_read_before_they_are_stamped_anew() {
    explore("packets, launches 7 and 8", Budget::preemptions(1), packets(STAMPS, &[ROOT_0; 2]));
}

/// Launch 8 stamps anew what was sent in launch 1 and would pass for launch 9's. In between all come together: that
/// 2^30 launches lie there in the product is what orders them, since nothing else does.
fn stamped(planted: Planted, stale: u64) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = World::new(Shape { planted, packets: (7, stale), ..STAMPS });
        together(&w, 0..2, 1, |_| vec![Call::new(ROOT_1)]);
        together(&w, 0..2, 2, |_| vec![Call::new(ROOT_0)]);
        assert_eq!([w.state(0), w.state(1)], [failure::NONE; 2], "nobody fails");
    }
}

#[test]
fn packets_of_long_ago_are_not_taken() {
    explore("packets, flags repeat", Budget::preemptions(1), stamped(Planted::None, 1));
    explore("packets, flags go down", Budget::preemptions(1), stamped(Planted::None, 6));
}

/// Two calls that differ: at least one of the two is told, before it has written anything.
fn packets_differ(planted: Planted) -> impl Fn() + Send + Sync + 'static {
    move || {
        let w = world(planted);
        (0..2).for_each(|r| w.at(output_of(r), 0).write(UNTOUCHED));
        together(&w, 0..2, 1, |rank| vec![Call::new(ROOT_0).tag(rank as u64)]);
        assert!([w.state(0), w.state(1)].contains(&failure::MISMATCH), "nobody is told");
        (0..2).filter(|r| w.state(*r) != failure::NONE).for_each(|r| {
            assert_eq!(w.at(output_of(r), 0).read(), UNTOUCHED, "wrong data: written before the header was compared");
        });
    }
}

#[test]
fn packets_that_differ() {
    explore("packets differ", Budget::preemptions(2), packets_differ(Planted::None));
}

#[test]
fn packets_and_a_rank_that_gives_up() {
    for failing in 0..2 {
        let what = format!("packets, rank {failing} gives up");
        explore(&what, Budget::preemptions(2), gives_up(ROOT_0, failing, 0, 2));
    }
    explore("packets, a rank of a sum gives up", Budget::preemptions(2), gives_up(What::ReducePackets, 1, 0, 2));
}

#[test]
fn planted_in_packets() {
    let wrong = ["wrong data"];
    let (budget, bug) = (Budget::preemptions(2), |planted| Shape { planted, ..STAMPS });
    must_fail("packets, AckOffByOne", budget, &wrong, packets(bug(Planted::AckOffByOne), &[ROOT_0; 2]));
    for bug in [Planted::RestampOneSlot, Planted::NoRestamp] {
        must_fail(&format!("packets, {bug:?}"), budget, &["wrong data"], stamped(bug, 1));
    }
    must_fail("packets, OrderedFlags", budget, &["wrong data"], stamped(Planted::OrderedFlags, 6));
    must_fail("packets, NoHeader", budget, &["nobody is told"], packets_differ(Planted::NoHeader));
}
