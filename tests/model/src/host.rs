//! The host's side: what ranks call, with memory that is used again from call to call, and what each
//! call must leave behind.

use crate::{
    packets::{broadcast_low_latency, reduce_scatter_low_latency},
    protocol::{Arguments, Block, World, broadcast_one_stage, broadcast_two_stage_staged, failure, reduce_scatter},
    sync::{Arc, thread},
};

/// Marks an output before a call, and an input after it.
pub const UNTOUCHED: u64 = u64::MAX;

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// From this rank of the domain.
    OneStage(usize),
    /// From this rank of the domain, in that many rounds.
    TwoStage(usize, usize),
    /// A sum.
    ReduceScatter,
    /// From this rank of the domain, by packets.
    Packets(usize),
    /// A sum, by packets.
    ReducePackets,
}

impl What {
    /// Whether every rank has an input, of a part for each.
    fn is_sum(self) -> bool {
        matches!(self, What::ReduceScatter | What::ReducePackets)
    }
}

/// What one rank calls.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which collective.
    pub what: What,
    /// Ranks of a group; domain 1. 0: all ranks, domain 0.
    pub group: usize,
    /// Whatever else must agree.
    pub tag: u64,
    /// Polls of a wait.
    pub limit: Option<u32>,
    /// `Agreement::Strict`.
    pub strict: bool,
}

impl Call {
    /// Of all ranks, without a limit.
    pub fn new(what: What) -> Self {
        Call { what, group: 0, tag: 0, limit: None, strict: false }
    }

    /// In groups.
    pub fn in_groups(self, group: usize) -> Self {
        Call { group, ..self }
    }

    /// With a limit.
    pub fn limit(self, polls: u32) -> Self {
        Call { limit: Some(polls), ..self }
    }

    /// With [`Call::strict`].
    pub fn strict(self) -> Self {
        Call { strict: true, ..self }
    }

    /// With something that must agree.
    pub fn tag(self, tag: u64) -> Self {
        Call { tag, ..self }
    }

    fn fingerprint(&self) -> u64 {
        let (kind, root, rounds) = match self.what {
            What::OneStage(root) => (1, root, 1),
            What::TwoStage(root, rounds) => (2, root, rounds),
            What::ReduceScatter => (3, 0, 1),
            What::Packets(root) => (4, root, 1),
            What::ReducePackets => (5, 0, 1),
        };
        kind | (root as u64) << 4 | (rounds as u64) << 12 | (self.group as u64) << 20 | self.tag << 28
    }

    /// `arguments` of `src/raw.rs`.
    pub fn arguments(&self, w: &World, rank: usize) -> Arguments {
        let all = w.ranks();
        let ranks = if self.group == 0 { all } else { self.group };
        let first = rank / ranks * ranks;
        let me = rank - first;
        let (words, segment, rounds, root) = match self.what {
            What::OneStage(root) => (w.blocks(), w.blocks(), 1, root),
            // The last round is shorter where it can be.
            What::TwoStage(root, rounds) => {
                (ranks * w.half() * rounds - usize::from(rounds > 1 && ranks > 2), ranks * w.half(), rounds, root)
            }
            What::ReduceScatter => (w.blocks(), 0, 1, ranks),
            What::Packets(root) => (w.slot, 0, 1, root),
            What::ReducePackets => (w.slot, 0, 1, ranks),
        };
        // As the library has it: only who is read has an input.
        let has_input = self.what.is_sum() || me == root;
        Arguments {
            rank: me,
            ranks,
            domain: usize::from(self.group != 0),
            first,
            strict: self.strict,
            limit: self.limit,
            input: if has_input { input_of(rank) } else { 0 },
            output: output_of(rank),
            fingerprint: self.fingerprint(),
            words,
            segment,
            rounds,
            root,
        }
    }

    fn kernel(&self) -> fn(&World, Block, &Arguments) {
        match self.what {
            What::OneStage(_) => broadcast_one_stage,
            What::TwoStage(..) => broadcast_two_stage_staged,
            What::ReduceScatter => reduce_scatter,
            What::Packets(_) => broadcast_low_latency,
            What::ReducePackets => reduce_scatter_low_latency,
        }
    }
}

/// Each rank's input, the same memory in every call.
pub fn input_of(rank: usize) -> u64 {
    rank as u64 * 2 + 1
}

/// Each rank's output.
pub fn output_of(rank: usize) -> u64 {
    rank as u64 * 2 + 2
}

/// What stands in an input: different for every call, rank and place.
pub fn value(serial: u64, rank: usize, index: usize) -> u64 {
    serial * 1_000_000 + rank as u64 * 1_000 + index as u64 + 1
}

/// One launch of one rank, all its blocks; returns when it is over.
pub fn launch(w: &Arc<World>, call: &Call, a: &Arguments) {
    let (kernel, blocks) = (call.kernel(), w.blocks());
    let others: Vec<_> = (1..blocks)
        .map(|block| {
            let (w, a) = (w.clone(), a.clone());
            thread::spawn(move || kernel(&w, Block { block, blocks }, &a))
        })
        .collect();
    kernel(w, Block { block: 0, blocks }, a);
    for other in others {
        other.join().unwrap();
    }
}

/// One rank's calls, one after the other, numbered from `serial`. Its input is overwritten as soon as
/// its launch is over. A rank that failed goes on calling (what was enqueued before), but leaves its
/// memory alone.
pub fn calls(w: &Arc<World>, rank: usize, serial: u64, calls: &[Call]) {
    for (serial, call) in (serial..).zip(calls) {
        let a = call.arguments(w, rank);
        let fill = |value: &dyn Fn(usize) -> u64| {
            let words = if call.what.is_sum() { a.words * a.ranks } else { a.words };
            if a.input != 0 && w.state(rank) == failure::NONE {
                (0..words).for_each(|i| w.at(a.input, i).write(value(i)));
            }
        };
        if w.state(rank) == failure::NONE {
            (0..a.words).for_each(|i| w.at(a.output, i).write(UNTOUCHED));
        }
        fill(&|i| value(serial, rank, i));
        launch(w, call, &a);
        if w.state(rank) == failure::NONE {
            right(w, serial, rank, call, &a);
        }
        fill(&|_| UNTOUCHED);
    }
}

/// The output of a call that did not fail.
fn right(w: &World, serial: u64, rank: usize, call: &Call, a: &Arguments) {
    for i in 0..a.words {
        let expected = match call.what {
            What::OneStage(root) | What::TwoStage(root, _) | What::Packets(root) => value(serial, a.first + root, i),
            What::ReduceScatter | What::ReducePackets => {
                (0..a.ranks).map(|p| value(serial, a.first + p, a.rank * a.words + i)).sum::<u64>()
            }
        };
        let got = w.at(a.output, i).read();
        assert!(got == expected, "wrong data: rank {rank}, call {serial}, word {i}: {got}, expected {expected}");
    }
}

/// Threads of ranks; the first of them runs on this one.
pub fn together(
    w: &Arc<World>,
    ranks: impl IntoIterator<Item = usize>,
    serial: u64,
    plan: impl Fn(usize) -> Vec<Call>,
) {
    let mut ranks = ranks.into_iter();
    let Some(mine) = ranks.next() else { return };
    let threads: Vec<_> = ranks
        .map(|rank| {
            let (w, plan) = (w.clone(), plan(rank));
            thread::spawn(move || calls(&w, rank, serial, &plan))
        })
        .collect();
    calls(w, mine, serial, &plan(mine));
    for thread in threads {
        thread.join().unwrap();
    }
}
