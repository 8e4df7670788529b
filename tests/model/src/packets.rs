//! `kernels-common/packets.h` and the kernels by packets, step by step; names are theirs.
//!
//! A word is 32 bits of data under a flag of 32, as there; a header is one unit (the fingerprint in two words), of which the
//! product has four. Flags repeat after twice [`Shape::restamp`](crate::protocol::Shape) launches.

use crate::{
    protocol::{Arguments, Arrival, Block, Look, Planted, Rendezvous, World},
    sync::{AtomicU64, Ordering, thread},
};

/// `kInboxSlots`.
pub const INBOX_SLOTS: usize = 2;
/// Words of a header.
pub const HEADER: usize = 2;

/// `packet_flag`: never 0.
pub fn flag(number: u64, restamp: u64) -> u64 {
    (number % (2 * restamp) + (1 << 31)) << 32
}

/// `Lost`: a wait that failed.
#[derive(Clone, Copy, Debug)]
struct Lost {
    pending: usize,
    differs: Option<usize>,
}

/// `Packets`.
#[derive(Debug)]
pub struct Packets<'w> {
    meet: Rendezvous<'w>,
    lost: Option<Lost>,
    announced: bool,
}

impl<'w> Packets<'w> {
    fn new(w: &'w World, b: Block, a: &'w Arguments) -> Self {
        let mut meet = Rendezvous::new(w, b, a);
        meet.number = meet.own().domains[a.domain].packets.read() + 1;
        Packets { meet, lost: None, announced: false }
    }

    fn flag(&self, number: u64) -> u64 {
        flag(number, self.meet.w.restamp)
    }

    fn restamps(&self) -> bool {
        self.meet.number.is_multiple_of(self.meet.w.restamp) && !self.meet.w.planted(Planted::NoRestamp)
    }

    /// `Signal::slot`: of rank `of`, for what `from` sends.
    fn slot(&self, of: usize, from: usize, number: u64) -> &'w [AtomicU64] {
        let words = HEADER + self.meet.w.slot;
        let at = (from * INBOX_SLOTS + number as usize % INBOX_SLOTS) * words;
        &self.meet.peer(of).domains[self.meet.a.domain].inbox[at..at + words]
    }

    /// The ranks but mine.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, ranks) = (self.meet.a.rank, self.meet.a.ranks);
        (1..ranks).map(move |k| (me + k) % ranks)
    }

    /// Step 1: `start`. `to`: whom I send something.
    fn start(&mut self, to: impl Fn(usize) -> bool) {
        let everybody = self.restamps();
        let slots = if everybody { 1 } else { INBOX_SLOTS as u64 };
        let slots = slots + u64::from(self.meet.w.planted(Planted::AckOffByOne));
        let (number, domain) = (self.meet.number, &self.meet.own().domains[self.meet.a.domain]);
        let is_read = |p: usize| domain.acks[p].load(Ordering::Relaxed) + slots >= number;
        let whom = |p: usize| everybody || to(p);
        let poisoned = self.meet.own().poison.iter().any(|p| p.load(Ordering::Relaxed) != 0);
        if poisoned && !self.meet.w.planted(Planted::NoPoisonLook) {
            self.meet.ok = false;
            self.lost = Some(Lost { pending: 0, differs: None });
            if self.meet.b.block == 0 {
                self.meet.hand_on();
            }
            return;
        }
        let late = self.others().any(|p| whom(p) && !is_read(p));
        if !late && !self.meet.a.strict {
            return;
        }
        // Nobody is quick any more.
        self.announce();
        if self.meet.a.strict {
            let found = self.watch(
                |_| true,
                |p| match self.meet.glance_at_record(p) {
                    Arrival::Absent => Look::NotYet,
                    Arrival::Differs => Look::Failed,
                    Arrival::Agrees | Arrival::Gone => Look::There,
                },
            );
            self.hold(found);
        }
        let found = self.watch(whom, |p| match () {
            () if is_read(p) => Look::There,
            () if self.meet.glance_at_record(p) == Arrival::Differs => Look::Failed,
            () => Look::NotYet,
        });
        self.hold(found);
    }

    fn hold(&mut self, found: Option<Lost>) {
        self.lost = found.or(self.lost);
        self.meet.join(found.is_none());
    }

    /// `watch`: all at once; nobody is told.
    fn watch(&self, who: impl Fn(usize) -> bool, look: impl Fn(usize) -> Look) -> Option<Lost> {
        let mut pending: Vec<usize> = self.others().filter(|p| self.meet.ok && who(*p)).collect();
        let (mut polls, mut last) = (0, false);
        loop {
            let mut differs = None;
            pending.retain(|p| {
                let found = if differs.is_some() { Look::NotYet } else { look(*p) };
                differs = differs.or((found == Look::Failed).then_some(*p));
                found != Look::There
            });
            let first = *pending.first()?;
            if differs.is_some() || last {
                return Some(Lost { pending: first, differs });
            }
            thread::yield_now();
            polls += 1;
            last = self.meet.must_end(polls);
        }
    }

    /// Step 2: `put`.
    fn put(&self, p: usize, word: usize, data: u64) {
        let to = &self.slot(p, self.meet.a.rank, self.meet.number)[word];
        to.store((data & 0xffff_ffff) | self.flag(self.meet.number), Ordering::Relaxed);
    }

    /// `header`.
    fn header(&self, word: usize) -> u64 {
        (self.meet.stamped_fingerprint() >> (32 * word)) & 0xffff_ffff
    }

    /// `restamp`. `pushed(p)`: words that this launch sends to p.
    fn restamp(&self, pushed: impl Fn(usize) -> usize) {
        if !self.restamps() || !self.meet.ok {
            return;
        }
        let old = self.flag(self.meet.number - 1);
        let slots = if self.meet.w.planted(Planted::RestampOneSlot) { 1 } else { INBOX_SLOTS as u64 };
        for p in self.others() {
            for back in 0..slots {
                let slot = self.slot(p, self.meet.a.rank, self.meet.number - back);
                for word in self.meet.tiles(slot.len()).filter(|word| back > 0 || *word >= pushed(p)) {
                    slot[word].store(old, Ordering::Relaxed);
                }
            }
        }
    }

    /// Step 3: `announce`.
    fn announce(&mut self) {
        if self.announced || !self.meet.ok {
            return;
        }
        self.announced = true;
        if self.meet.b.block == 0 {
            self.others().for_each(|p| self.meet.send_record(p));
        }
    }

    /// Step 4: `expect_headers`.
    fn expect_headers(&mut self, from: impl Fn(usize) -> bool) -> bool {
        let found = self.watch_headers(from);
        self.hold(found);
        self.meet.ok
    }

    fn watch_headers(&self, from: impl Fn(usize) -> bool) -> Option<Lost> {
        self.watch(from, |p| {
            // Before the header: one that has gone on without a header for me, which would be there, called something else.
            let elsewhere = matches!(self.meet.glance_at_record(p), Arrival::Gone | Arrival::Differs);
            let words: Vec<_> = (0..HEADER).map(|word| self.take(p, word)).collect();
            let same = |(word, found): (usize, &Option<u64>)| *found == Some(self.header(word));
            match words.iter().all(Option::is_some) {
                false if elsewhere => Look::Failed,
                false => Look::NotYet,
                true if self.meet.w.planted(Planted::NoHeader) || words.iter().enumerate().all(same) => Look::There,
                true => Look::Failed,
            }
        })
    }

    /// `is_there` and `data_of`: a word of what `p` sent, if it is this launch's.
    fn take(&self, p: usize, word: usize) -> Option<u64> {
        let found = self.slot(self.meet.a.rank, p, self.meet.number)[word].load(Ordering::Relaxed);
        let (theirs, mine) = (found >> 32, self.flag(self.meet.number) >> 32);
        let same = theirs == mine || theirs > mine && self.meet.w.planted(Planted::OrderedFlags);
        same.then_some(found & 0xffff_ffff)
    }

    /// Step 4: `collect`, the headers of `from` with it. `wanted` are words of ranks; what they hold, or nothing after a
    /// failure.
    fn collect(&mut self, from: impl Fn(usize) -> bool, wanted: &[(usize, usize)]) -> Option<Vec<u64>> {
        if !self.meet.ok {
            return None;
        }
        let poll = |me: &Self, data: &mut Vec<Option<u64>>| {
            for (data, (p, word)) in data.iter_mut().zip(wanted) {
                *data = me.take(*p, *word);
            }
            data.iter().position(Option::is_none)
        };
        let mut data = vec![None; wanted.len()];
        let mut missing = poll(self, &mut data);
        let (mut polls, mut last, mut with_headers) = (0, false, true);
        loop {
            if with_headers {
                if let Some(lost) = self.watch_headers(&from) {
                    self.lost = Some(lost);
                    break;
                }
                with_headers = false;
            }
            let Some(at) = missing else { return data.into_iter().collect() };
            if last {
                self.lost = Some(Lost { pending: wanted[at].0, differs: None });
                break;
            }
            thread::yield_now();
            polls += 1;
            last = self.meet.must_end(polls);
            missing = poll(self, &mut data);
        }
        self.meet.ok = false;
        None
    }

    /// Step 5: `finish`. A failure is told once, here.
    fn finish(self) {
        match self.lost {
            Some(Lost { differs: Some(p), .. }) => self.meet.fail(crate::protocol::failure::MISMATCH, p),
            Some(Lost { pending, .. }) => self.meet.give_up(pending),
            None => {}
        }
        self.meet.advance();
    }
}

/// `broadcast_low_latency`.
pub fn broadcast_low_latency(w: &World, b: Block, a: &Arguments) {
    let mut meet = Packets::new(w, b, a);
    let (root, is_root, words) = (a.root, a.rank == a.root, HEADER + a.words);
    let others = |p: usize| is_root || p == root;
    let pushed = |p: usize| match () {
        () if is_root => words,
        () if p == root => HEADER,
        () => 0,
    };
    meet.start(others);
    meet.restamp(pushed);
    if meet.meet.ok {
        for word in meet.meet.tiles(if is_root { words } else { HEADER }) {
            let data = if word < HEADER { meet.header(word) } else { w.at(a.input, word - HEADER).read() };
            meet.others().filter(|p| others(*p)).for_each(|p| meet.put(p, word, data));
        }
    }
    meet.announce();
    if is_root {
        if meet.expect_headers(others) && a.output != 0 && a.output != a.input {
            meet.meet.copy((a.output, 0), (a.input, 0), a.words);
        }
    } else {
        let wanted: Vec<_> = meet.meet.tiles(words).filter(|word| *word >= HEADER).map(|word| (root, word)).collect();
        if let Some(data) = meet.collect(others, &wanted) {
            wanted.iter().zip(data).for_each(|((_, word), data)| w.at(a.output, word - HEADER).write(data));
        }
    }
    meet.finish();
}

/// `reduce_scatter_low_latency`: a sum along axis 0.
pub fn reduce_scatter_low_latency(w: &World, b: Block, a: &Arguments) {
    let mut meet = Packets::new(w, b, a);
    let words = HEADER + a.words;
    meet.start(|_| true);
    meet.restamp(|_| words);
    if meet.meet.ok {
        for p in meet.others() {
            for word in meet.meet.tiles(words) {
                let own = || w.at(a.input, p * a.words + word - HEADER).read();
                meet.put(p, word, if word < HEADER { meet.header(word) } else { own() });
            }
        }
    }
    meet.announce();
    let mine: Vec<_> = meet.meet.tiles(words).filter(|word| *word >= HEADER).collect();
    let peers: Vec<_> = meet.others().collect();
    let wanted: Vec<_> = mine.iter().flat_map(|word| peers.iter().map(move |p| (*p, *word))).collect();
    if let Some(data) = meet.collect(|_| true, &wanted) {
        for word in mine {
            let own = w.at(a.input, a.rank * a.words + word - HEADER).read();
            let theirs = wanted.iter().zip(&data).filter(|((_, at), _)| *at == word).map(|(_, data)| *data);
            w.at(a.output, word - HEADER).write(theirs.fold(own, u64::wrapping_add));
        }
    }
    meet.finish();
}
