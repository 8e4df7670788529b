//! `kernels-common/rendezvous.h`, `broadcast.h` and `reduce_scatter.h`, step by step; names are theirs. What goes by packets
//! stands in [`packets`].
//!
//! What is left out: threads of a block (one a block, as on the CPU), vectors and tiles (a tile is one
//! word), the fields of a record and of a failure that only error messages use, clocks (a deadline is
//! a number of polls, and every poll is a slow look). A field of a record is one word of flag and data, not two. An
//! address is the number of a buffer of the world's memory; 0 is null.

use crate::{
    packets,
    sync::{Arc, AtomicU64, Ordering, Plain, thread},
};

/// `kRecordSlots`.
pub const RECORD_SLOTS: u64 = 2;

/// `planted.h` and more of the kind: one bug at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The protocol as it is.
    None,
    /// Flags are stored without release.
    RelaxedRelease,
    /// Records release nothing.
    RelaxedRecord,
    /// Nobody waits for records.
    NoRecordWait,
    /// Chunks are gathered before they are staged.
    NoStagedWait,
    /// Nobody waits for credits.
    NoCreditWait,
    /// One payload half instead of two.
    OneHalf,
    /// The first block to finish advances the epoch.
    EarlyEpoch,
    /// A late rank does not look at the poison words.
    NoPoisonLook,
    /// Records are not compared.
    NoCompare,
    /// A record is judged by the flag of its last word alone.
    NoTag,
    /// A record is judged by the flag of its first word alone.
    FirstWordAlone,
    /// A rank that failed signals all the same.
    SignalAfterFailure,
    /// Reset sets epochs and sequences to zero.
    ResetZeroes,
    /// A later record of a rank that I read from passes for this launch's.
    GoneAgrees,
    /// A failure in a group does not reach the world.
    PoisonStays,
    /// Packets are sent when those of three launches ago are read, instead of two; one that stamps anew likewise.
    AckOffByOne,
    /// Headers of packets are not compared.
    NoHeader,
    /// A packet is taken when its flag is this launch's or a higher one.
    OrderedFlags,
    /// Words are not stamped anew.
    NoRestamp,
    /// Words are stamped anew in the slot of the launch alone.
    RestampOneSlot,
}

/// `FailureKind`.
pub mod failure {
    #![allow(missing_docs)]
    pub const NONE: u64 = 0;
    pub const TIMEOUT: u64 = 1;
    pub const MISMATCH: u64 = 2;
    pub const ABORTED: u64 = 3;
    pub const POISONED: u64 = 4;
}

/// `Phase`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// "My payload half holds the chunk of this round."
    Staged = 0,
    /// "I have finished reading your memory."
    Done = 1,
}

/// `Look`: what a wait found of one peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    There,
    NotYet,
    Failed,
}

/// `Record`, as far as peers act on it.
#[derive(Debug)]
pub(crate) struct Record {
    fingerprint: AtomicU64,
    input: AtomicU64,
}

/// `packet_flag`, above 32 bits of data.
fn flagged(epoch: u64, data: u64) -> u64 {
    (epoch | 1 << 31) << 32 | data & 0xffff_ffff
}
/// `launch_of`, for the few launches of a model.
fn launch_of(word: u64) -> u64 {
    word >> 32 & 0x7fff_ffff
}

/// One domain of a signal buffer.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Owner only. `Plain`, so that loom sees if anybody else comes near.
    epoch: Plain,
    sequence: Plain,
    ticket: AtomicU64,
    pub(crate) packets: Plain,
    pub(crate) acks: Vec<AtomicU64>,
    records: Vec<Record>,
    flags: Vec<AtomicU64>,
    /// Two slots a peer.
    pub(crate) inbox: Vec<AtomicU64>,
}

/// `Signal`: what one rank owns and its peers write.
#[derive(Debug)]
pub struct Signal {
    pub(crate) poison: Vec<AtomicU64>,
    pub(crate) domains: Vec<Domain>,
    payload: Vec<Plain>,
}

/// `Control`.
#[derive(Debug)]
pub struct Control {
    state: Plain,
    peer: Plain,
    abort: AtomicU64,
}

/// The memory of all ranks.
#[derive(Debug)]
pub struct World {
    signal: Vec<Signal>,
    control: Vec<Control>,
    memory: Vec<Vec<Plain>>,
    blocks: usize,
    half: usize,
    pub(crate) slot: usize,
    pub(crate) restamp: u64,
    planted: Planted,
}

/// What a model is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks of the communicator.
    pub ranks: usize,
    /// Blocks of a launch.
    pub blocks: usize,
    /// Domains: 1 for the world alone.
    pub domains: usize,
    /// Words of a payload half.
    pub half: usize,
    /// Buffers a rank, and their words.
    pub buffers: (usize, usize),
    /// Words of data of a slot of an inbox.
    pub slot: usize,
    /// `kRestamp`: flags of packets repeat after twice as many launches. At least 4: a rank's words of restamping launch m
    /// have the flag of m - 1, which is that of m - 1 + 2 restamp; who is there knows that all have finished what was
    /// three launches before (it has the data of a root that had waited for their acknowledgements of the launch before
    /// the last), which must be past m + restamp, where they were stamped anew. With 2 the model finds a word that was not.
    pub restamp: u64,
    /// Launches by packets that there were, all read, and what number the flags of the data in the inboxes are of; 0
    /// for none.
    pub packets: (u64, u64),
    /// The bug.
    pub planted: Planted,
}

impl Shape {
    /// One domain, one block, one word everywhere.
    pub fn new(ranks: usize) -> Self {
        Shape {
            ranks,
            blocks: 1,
            domains: 1,
            half: 1,
            buffers: (2, ranks),
            slot: 1,
            restamp: 1 << 30,
            packets: (0, 0),
            planted: Planted::None,
        }
    }
}

impl World {
    /// As the builder leaves it: zeros.
    pub fn new(s: Shape) -> Arc<Self> {
        let zeros = |n: usize| (0..n).map(|_| Plain::new(0)).collect::<Vec<_>>();
        let words = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let record = || Record { fingerprint: AtomicU64::new(0), input: AtomicU64::new(0) };
        let stale = if s.packets.1 == 0 { 0 } else { packets::flag(s.packets.1, s.restamp) | 0xbad };
        let inbox = s.ranks * packets::INBOX_SLOTS * (packets::HEADER + s.slot);
        let domain = || Domain {
            epoch: Plain::new(0),
            sequence: Plain::new(0),
            ticket: AtomicU64::new(0),
            packets: Plain::new(s.packets.0),
            acks: (0..s.ranks).map(|_| AtomicU64::new(s.packets.0)).collect(),
            // Headers have been written since.
            inbox: (0..inbox)
                .map(|at| AtomicU64::new(if at % (packets::HEADER + s.slot) < packets::HEADER { 0 } else { stale }))
                .collect(),
            records: (0..s.ranks * RECORD_SLOTS as usize).map(|_| record()).collect(),
            flags: words(2 * s.blocks * s.ranks),
        };
        Arc::new(World {
            signal: (0..s.ranks)
                .map(|_| Signal {
                    poison: words(s.ranks),
                    domains: (0..s.domains).map(|_| domain()).collect(),
                    payload: zeros(2 * s.half),
                })
                .collect(),
            control: (0..s.ranks)
                .map(|_| Control { state: Plain::new(0), peer: Plain::new(0), abort: AtomicU64::new(0) })
                .collect(),
            memory: (0..s.ranks * s.buffers.0).map(|_| zeros(s.buffers.1)).collect(),
            blocks: s.blocks,
            half: s.half,
            slot: s.slot,
            restamp: s.restamp,
            planted: s.planted,
        })
    }

    /// Ranks of the communicator.
    pub fn ranks(&self) -> usize {
        self.signal.len()
    }
    /// Blocks of a launch.
    pub fn blocks(&self) -> usize {
        self.blocks
    }
    /// Words of a payload half.
    pub fn half(&self) -> usize {
        self.half
    }

    pub(crate) fn planted(&self, bug: Planted) -> bool {
        self.planted == bug
    }

    /// The status record: how `rank` failed, 0 if it did not. For the rank's own thread, or at rest.
    pub fn state(&self, rank: usize) -> u64 {
        self.control[rank].state.read()
    }

    /// Whom `rank` names.
    pub fn failed_peer(&self, rank: usize) -> u64 {
        self.control[rank].peer.read()
    }

    /// The host's abort word of `rank`.
    pub fn abort(&self, rank: usize) {
        self.control[rank].abort.store(1, Ordering::Release);
    }

    /// A word of a buffer.
    pub fn at(&self, address: u64, index: usize) -> &Plain {
        assert!(address != 0, "null pointer");
        &self.memory[address as usize - 1][index]
    }

    /// `Shared::raise_epochs` and the clearing around it. Nothing is in flight.
    pub fn reset(&self) {
        let ranks = || self.signal.iter();
        for d in 0..self.signal[0].domains.len() {
            let common = |word: fn(&Domain) -> &Plain| {
                let base = ranks().map(|s| word(&s.domains[d]).read()).max().unwrap_or(0) + 1;
                let base = if self.planted(Planted::ResetZeroes) { 0 } else { base };
                ranks().for_each(|s| word(&s.domains[d]).write(base));
            };
            common(|d| &d.epoch);
            common(|d| &d.sequence);
            common(|d| &d.packets);
            for domain in ranks().map(|s| &s.domains[d]) {
                domain.acks.iter().for_each(|ack| ack.store(domain.packets.read(), Ordering::Relaxed));
                domain.inbox.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            ranks().for_each(|s| s.domains[d].ticket.store(0, Ordering::Relaxed));
        }
        for s in ranks() {
            s.poison.iter().for_each(|p| p.store(failure::NONE, Ordering::Relaxed));
        }
        for c in &self.control {
            c.state.write(failure::NONE);
            c.abort.store(0, Ordering::Relaxed);
        }
    }
}

/// `Arguments`.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// In the domain.
    pub rank: usize,
    /// Of the domain.
    pub ranks: usize,
    /// Its number.
    pub domain: usize,
    /// Rank of the communicator that is rank 0 of the domain.
    pub first: usize,
    /// Wait for all records before anything else.
    pub strict: bool,
    /// Polls of one wait; `None` waits for ever.
    pub limit: Option<u32>,
    /// Buffer, or null.
    pub input: u64,
    /// Buffer, or null.
    pub output: u64,
    /// What must agree, in 48 bits.
    pub fingerprint: u64,
    /// Words of the message (broadcast) or of one part (reduce-scatter).
    pub words: usize,
    /// Words of one round over all chunks.
    pub segment: usize,
    /// Flags that the launch consumes.
    pub rounds: usize,
    /// In the domain. In the model also `ranks`: a root that needs nothing, whose memory is `input` of
    /// everybody.
    pub root: usize,
}

/// `Block`.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Which.
    pub block: usize,
    /// Of how many.
    pub blocks: usize,
}

/// `Arrival`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Not yet.
    Absent,
    /// This launch, the same call.
    Agrees,
    /// This launch, another call.
    Differs,
    /// A later launch has overwritten it.
    Gone,
}

/// `Rendezvous`.
#[derive(Debug)]
pub struct Rendezvous<'w> {
    pub(crate) w: &'w World,
    pub(crate) a: &'w Arguments,
    pub(crate) b: Block,
    pub(crate) epoch: u64,
    sequence: u64,
    /// Of this launch among those by packets; 0: it is none.
    pub(crate) number: u64,
    pub(crate) ok: bool,
}

impl<'w> Rendezvous<'w> {
    /// Reads epoch and sequence.
    pub fn new(w: &'w World, b: Block, a: &'w Arguments) -> Self {
        let own = &w.signal[a.first + a.rank].domains[a.domain];
        Rendezvous { w, a, b, epoch: own.epoch.read() + 1, sequence: own.sequence.read(), number: 0, ok: true }
    }

    pub(crate) fn world_rank(&self) -> usize {
        self.a.first + self.a.rank
    }
    pub(crate) fn own(&self) -> &'w Signal {
        &self.w.signal[self.world_rank()]
    }
    pub(crate) fn peer(&self, p: usize) -> &'w Signal {
        &self.w.signal[self.a.first + p]
    }
    /// `Signal::record`.
    pub(crate) fn record(&self, of: &'w Signal, peer: usize) -> &'w Record {
        &of.domains[self.a.domain].records[peer * RECORD_SLOTS as usize + (self.epoch % RECORD_SLOTS) as usize]
    }
    /// `Signal::flag`.
    fn flag(&self, of: &'w Signal, phase: Phase, peer: usize) -> &'w AtomicU64 {
        &of.domains[self.a.domain].flags[(phase as usize * self.w.blocks + self.b.block) * self.w.signal.len() + peer]
    }

    /// Step 1: `start`.
    pub fn start(&mut self) {
        for r in 0..self.w.signal.len() {
            if !self.w.planted(Planted::NoPoisonLook) && self.own().poison[r].load(Ordering::Relaxed) != failure::NONE {
                self.ok = false;
                self.fail(failure::POISONED, r);
            }
        }
        if !self.ok && self.b.block == 0 {
            self.hand_on();
        }
        if self.ok && self.b.block == 0 {
            for p in (0..self.a.ranks).filter(|p| *p != self.a.rank) {
                self.send_record(p);
            }
        }
        self.advance();
    }

    pub(crate) fn join(&mut self, good: bool) -> bool {
        self.ok = good && self.ok;
        self.ok
    }

    /// Step 2: `expect`. I am going to read the memory of `p`.
    pub fn expect(&mut self, p: usize) -> bool {
        self.await_records(|q| q == p, true)
    }

    /// `expect_all`. With `sources`, I am going to read the memory of all of them.
    pub fn expect_all(&mut self, sources: bool) -> bool {
        self.await_records(|_| true, sources)
    }

    /// `input_of`.
    pub(crate) fn input_of(&self, p: usize) -> u64 {
        if p == self.a.rank || p >= self.a.ranks {
            return self.a.input;
        }
        self.record(self.own(), p).input.load(Ordering::Relaxed) & 0xffff_ffff
    }

    /// Step 3: `signal`.
    fn signal(&self, phase: Phase, round: usize, who: impl Fn(usize) -> bool) {
        if !self.ok && !self.w.planted(Planted::SignalAfterFailure) {
            return;
        }
        let order = if self.w.planted(Planted::RelaxedRelease) { Ordering::Relaxed } else { Ordering::Release };
        for p in (0..self.a.ranks).filter(|p| *p != self.a.rank && who(*p)) {
            self.flag(self.peer(p), phase, self.a.rank).store(self.sequence + round as u64 + 1, order);
        }
    }

    /// `await`.
    fn await_flags(&mut self, phase: Phase, round: usize, who: impl Fn(usize) -> bool) -> bool {
        if phase == Phase::Staged && self.w.planted(Planted::NoStagedWait)
            || phase == Phase::Done && self.w.planted(Planted::NoCreditWait)
        {
            return self.join(true);
        }
        let wanted = self.sequence + round as u64 + 1;
        self.wait_for(who, |me, p| {
            if me.flag(me.own(), phase, p).load(Ordering::Acquire) >= wanted {
                return Look::There;
            }
            if me.glance_at_record(p) == Arrival::Differs {
                me.fail(failure::MISMATCH, p);
                return Look::Failed;
            }
            Look::NotYet
        })
    }

    /// `advance`.
    pub fn advance(&self) {
        let own = &self.own().domains[self.a.domain];
        let others = if self.b.blocks > 1 { own.ticket.fetch_add(1, Ordering::AcqRel) } else { 0 };
        if self.w.planted(Planted::EarlyEpoch) && others == 0 {
            own.epoch.write(self.epoch);
        }
        if others + 1 != self.b.blocks as u64 {
            return;
        }
        own.ticket.store(0, Ordering::Relaxed);
        if self.number != 0 {
            own.packets.write(self.number);
            for p in (0..self.a.ranks).filter(|p| self.ok && *p != self.a.rank) {
                self.peer(p).domains[self.a.domain].acks[self.a.rank].store(self.number, Ordering::Relaxed);
            }
        } else {
            own.sequence.write(self.sequence + self.a.rounds as u64);
        }
        own.epoch.write(self.epoch);
    }

    /// `stamped_fingerprint`.
    pub(crate) fn stamped_fingerprint(&self) -> u64 {
        self.epoch << 48 | self.a.fingerprint & 0xffff_ffff_ffff
    }

    /// `send_record`.
    pub fn send_record(&self, p: usize) {
        let r = self.record(self.peer(p), self.a.rank);
        let order = if self.w.planted(Planted::RelaxedRecord) { Ordering::Relaxed } else { Ordering::Release };
        // The kernel's stores are in no order: either here, but for loom, which has less to explore by one.
        let input_last = !cfg!(loom) && (self.epoch as usize + p) % 2 == 1;
        if !input_last {
            r.input.store(flagged(self.epoch, self.a.input), order);
        }
        r.fingerprint.store(flagged(self.epoch, self.a.fingerprint), order);
        if input_last {
            r.input.store(flagged(self.epoch, self.a.input), order);
        }
    }

    /// `glance_at_record`.
    pub(crate) fn glance_at_record(&self, p: usize) -> Arrival {
        let word = self.record(self.own(), p).fingerprint.load(Ordering::Relaxed);
        match launch_of(word) {
            epoch if epoch > self.epoch => Arrival::Gone,
            epoch if epoch < self.epoch => Arrival::Absent,
            _ if word as u32 == self.a.fingerprint as u32 || self.w.planted(Planted::NoCompare) => Arrival::Agrees,
            _ => Arrival::Differs,
        }
    }

    /// `look_at_record`.
    pub fn look_at_record(&self, p: usize) -> Arrival {
        let r = self.record(self.own(), p);
        // The kernel's loads are in no order; in this one there is less to explore while it has not come.
        let first = r.fingerprint.load(Ordering::Acquire);
        let other = |word: u64| launch_of(word) != self.epoch;
        let last = || !self.w.planted(Planted::FirstWordAlone) && other(r.input.load(Ordering::Acquire));
        if other(first) && !self.w.planted(Planted::NoTag) || last() {
            return if launch_of(first) > self.epoch { Arrival::Gone } else { Arrival::Absent };
        }
        let differs = first as u32 != self.a.fingerprint as u32;
        if differs && !self.w.planted(Planted::NoCompare) { Arrival::Differs } else { Arrival::Agrees }
    }

    /// `await_records`.
    fn await_records(&mut self, who: impl Fn(usize) -> bool, sources: bool) -> bool {
        if self.w.planted(Planted::NoRecordWait) {
            return self.join(true);
        }
        // Strict: for everybody's first.
        for strict in [true, false] {
            if strict && !self.a.strict {
                continue;
            }
            let sources = sources && !strict;
            self.wait_for(
                |p| strict || who(p),
                |me, p| match me.look_at_record(p) {
                    Arrival::Absent => Look::NotYet,
                    Arrival::Agrees => Look::There,
                    Arrival::Gone if !sources || me.w.planted(Planted::GoneAgrees) => Look::There,
                    Arrival::Gone | Arrival::Differs => {
                        me.fail(failure::MISMATCH, p);
                        Look::Failed
                    }
                },
            );
        }
        self.ok
    }

    /// `wait_for`: all at once, whatever the order in which they come.
    fn wait_for(&mut self, who: impl Fn(usize) -> bool, look: impl Fn(&Self, usize) -> Look) -> bool {
        let mut pending: Vec<usize> = (0..self.a.ranks).filter(|p| self.ok && *p != self.a.rank && who(*p)).collect();
        let (mut polls, mut last) = (0, false);
        loop {
            let mut failed = false;
            pending.retain(|p| {
                let found = if failed { Look::NotYet } else { look(self, *p) };
                failed |= found == Look::Failed;
                found != Look::There
            });
            if failed {
                return self.join(false);
            }
            if pending.is_empty() {
                return self.join(true);
            }
            if last {
                self.give_up(pending[0]);
                return self.join(false);
            }
            thread::yield_now();
            polls += 1;
            last = self.must_end(polls);
        }
    }

    /// `must_end`.
    pub(crate) fn must_end(&self, polls: u32) -> bool {
        self.a.limit.is_some_and(|limit| polls >= limit)
            || self.w.control[self.world_rank()].abort.load(Ordering::Relaxed) != 0
            || self.own().poison.iter().any(|p| p.load(Ordering::Relaxed) != failure::NONE)
    }

    /// `give_up`.
    pub(crate) fn give_up(&self, p: usize) {
        for (k, poison) in self.own().poison.iter().enumerate() {
            if k != self.world_rank() && poison.load(Ordering::Acquire) != failure::NONE {
                self.fail(failure::POISONED, k);
                self.hand_on();
                return;
            }
        }
        let aborted = self.w.control[self.world_rank()].abort.load(Ordering::Relaxed) != 0;
        self.fail(if aborted { failure::ABORTED } else { failure::TIMEOUT }, p);
    }

    /// `fail`.
    pub(crate) fn fail(&self, kind: u64, p: usize) {
        let word = &self.own().poison[self.world_rank()];
        if word.compare_exchange(failure::NONE, kind, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let control = &self.w.control[self.world_rank()];
        control.peer.write(p as u64);
        control.state.write(kind);
        if kind != failure::POISONED {
            self.tell(kind);
        }
    }

    /// `hand_on`.
    pub(crate) fn hand_on(&self) {
        if self.w.planted(Planted::PoisonStays) {
            return;
        }
        for q in (0..self.a.ranks).filter(|q| *q != self.a.rank) {
            let word = &self.peer(q).poison[self.world_rank()];
            if word.load(Ordering::Relaxed) == failure::NONE {
                word.store(failure::POISONED, Ordering::Release);
            }
        }
    }

    fn tell(&self, kind: u64) {
        for q in (0..self.a.ranks).filter(|q| *q != self.a.rank) {
            self.peer(q).poison[self.world_rank()].store(kind, Ordering::Release);
        }
    }

    /// `copy.h`: tiles of one word, dealt to the blocks.
    pub(crate) fn tiles(&self, words: usize) -> impl Iterator<Item = usize> + use<> {
        (self.b.block..words).step_by(self.b.blocks)
    }
    pub(crate) fn copy(&self, to: (u64, usize), from: (u64, usize), words: usize) {
        for t in self.tiles(words) {
            self.w.at(to.0, to.1 + t).write(self.w.at(from.0, from.1 + t).read());
        }
    }
}

/// `balanced` of `copy.h`: begin and words of a chunk.
fn chunk(words: usize, parts: usize, index: usize) -> (usize, usize) {
    let (each, more) = (words / parts, words % parts);
    (index * each + index.min(more), each + usize::from(index < more))
}

/// `broadcast_one_stage`.
pub fn broadcast_one_stage(w: &World, b: Block, a: &Arguments) {
    let mut meet = Rendezvous::new(w, b, a);
    meet.start();
    if a.rank == a.root {
        if meet.expect_all(false) && a.output != 0 && a.output != a.input {
            meet.copy((a.output, 0), (a.input, 0), a.words);
        }
        meet.await_flags(Phase::Done, 0, |_| true);
    } else {
        if meet.expect(a.root) {
            meet.copy((a.output, 0), (meet.input_of(a.root), 0), a.words);
        }
        meet.signal(Phase::Done, 0, |p| p == a.root);
    }
}

/// `broadcast_two_stage_staged`.
pub fn broadcast_two_stage_staged(w: &World, b: Block, a: &Arguments) {
    let mut meet = Rendezvous::new(w, b, a);
    let (me, n, root) = (a.rank, a.ranks, a.root);
    let other_readers = |p: usize| p != root;
    meet.start();
    meet.expect_all(me != root);
    let input = if meet.ok { meet.input_of(root) } else { 0 };
    for round in 0..a.rounds {
        let at = round * a.segment;
        let words = (a.words - at).min(a.segment);
        let half = if w.planted(Planted::OneHalf) { 0 } else { round % 2 * w.half };
        if me == root {
            if meet.ok && a.output != 0 && a.output != input {
                meet.copy((a.output, at), (input, at), words);
            }
            continue;
        }
        if meet.ok {
            let (begin, count) = chunk(words, n, me);
            for t in meet.tiles(count) {
                let word = w.at(input, at + begin + t).read();
                meet.own().payload[half + t].write(word);
                w.at(a.output, at + begin + t).write(word);
            }
        }
        meet.signal(Phase::Staged, round, other_readers);
        meet.await_flags(Phase::Staged, round, other_readers);
        if !meet.ok {
            continue;
        }
        for p in (1..n).map(|k| (me + k) % n) {
            let (begin, count) = chunk(words, n, p);
            if p == root {
                meet.copy((a.output, at + begin), (input, at + begin), count);
            } else {
                for t in meet.tiles(count) {
                    w.at(a.output, at + begin + t).write(meet.peer(p).payload[half + t].read());
                }
            }
        }
    }
    if me != root {
        meet.signal(Phase::Done, a.rounds - 1, |_| true);
    }
    meet.await_flags(Phase::Done, a.rounds - 1, other_readers);
}

/// `reduce_scatter`: a sum along axis 0.
pub fn reduce_scatter(w: &World, b: Block, a: &Arguments) {
    let mut meet = Rendezvous::new(w, b, a);
    meet.start();
    if meet.expect_all(true) {
        for t in meet.tiles(a.words) {
            let from = a.rank * a.words + t;
            let sum = (0..a.ranks).map(|p| w.at(meet.input_of(p), from).read()).fold(0u64, u64::wrapping_add);
            w.at(a.output, t).write(sum);
        }
    }
    meet.signal(Phase::Done, 0, |_| true);
    meet.await_flags(Phase::Done, 0, |_| true);
}
