//! From a status record to an error that names the rank and what differed.

use std::{sync::MutexGuard, time::Instant};

use super::{
    Called, RankState, Shared,
    blame::{Scene, Seat, Verdict},
    lock,
};
use crate::{
    abi::{ABORTED, MISMATCH, POISONED, Packed, TIMEOUT, control},
    backend::Backend,
    dtype::DType,
    error::Error,
    op::ReduceOp,
    plan::{Algorithm, request::Collective, request::collective_name},
    rank::Rank,
};

/// A peer's record at the time of the failure.
#[derive(Clone, Copy)]
struct Seen {
    rank: usize,
    stamp: u64,
    count: u64,
    shape_hash: u64,
    packed: Packed,
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl<B: Backend> Shared<B> {
    /// Why `rank` failed. Its status record says that it did.
    pub(super) fn diagnose(&self, rank: usize) -> Error {
        self.diagnose_with(rank, |r| self.seat(r, &lock(&self.ranks[r].state)))
    }

    /// As [`diagnose`](Self::diagnose), for who holds all the states.
    pub(super) fn diagnose_locked(&self, rank: usize, states: &[MutexGuard<'_, RankState<B>>]) -> Error {
        self.diagnose_with(rank, |r| self.seat(r, &states[r]))
    }

    /// What is known of a rank, under the lock of its state.
    fn seat(&self, rank: usize, state: &RankState<B>) -> Seat {
        let me = &self.ranks[rank];
        let now = state.history.iter().filter(|called| called.generation == self.generation());
        let is_over = |(_, event): &(B::Stream, B::Event)| B::wait(event, Some(Instant::now())).unwrap_or(false);
        // In this order: one that fails meanwhile would be taken for one that is through.
        let over = state.last.as_ref().is_none_or(is_over);
        // A rank that failed says in which call. One that did not is in any of those that are not over.
        let failed = (me.load(control::STATE) != 0).then(|| me.load(control::CALL));
        let mut in_flight: Vec<Called> = match failed {
            Some(call) => now.clone().filter(|called| called.call == call).cloned().collect(),
            None => Vec::new(),
        };
        if in_flight.is_empty() && (failed.is_some() || !over) {
            in_flight = now.cloned().collect();
        }
        Seat {
            launched: (0..self.domains.len()).map(|domain| me.launched(domain)).collect(),
            history: state.history.iter().cloned().collect(),
            in_flight,
            inline: state.last.as_ref().is_some_and(|(stream, _)| B::is_inline(stream)),
            gone: me.gone(),
        }
    }

    fn diagnose_with(&self, rank: usize, seat: impl Fn(usize) -> Seat) -> Error {
        let me = &self.ranks[rank];
        let (kind, peer) = halves(me.load(control::KIND_PEER));
        match u64::from(kind) {
            // Who poisoned me may have been poisoned itself: the rank that failed first knows why.
            POISONED => match self.origin(peer as usize) {
                Some(origin) => self.diagnose_with(origin, seat),
                None => Error::Aborted,
            },
            ABORTED => lock(&self.poison).clone().unwrap_or(Error::Aborted),
            TIMEOUT => self.timeout(rank, &seat),
            MISMATCH => self.mismatch(rank, &seat),
            _ => Error::Aborted,
        }
    }

    /// Who failed first, on the way from a rank that poisoned another.
    fn origin(&self, mut rank: usize) -> Option<usize> {
        for _ in 0..self.ranks.len() {
            let (kind, peer) = halves(self.ranks.get(rank)?.load(control::KIND_PEER));
            match u64::from(kind) {
                0 => return None,
                POISONED => rank = peer as usize,
                _ => return Some(rank),
            }
        }
        None
    }

    /// The ranks of the domain in which `rank` failed: the first, and how many.
    fn domain(&self, rank: usize) -> (usize, usize) {
        let (_, domain) = halves(self.ranks[rank].load(control::PHASE_DOMAIN));
        let size = self.domains.get(domain as usize).copied().unwrap_or(1);
        (rank / size * size, size)
    }

    fn seen(&self, rank: usize) -> Vec<Seen> {
        let (first, size) = self.domain(rank);
        let me = &self.ranks[rank];
        (0..size)
            .map(|q| {
                let at = control::OBSERVED + q as u64 * control::OBSERVED_BYTES;
                Seen {
                    rank: first + q,
                    stamp: me.load(at),
                    count: me.load(at + 8),
                    shape_hash: me.load(at + 16),
                    packed: Packed::from_word(me.load(at + 24)),
                }
            })
            .collect()
    }

    fn operation(&self, rank: usize, seen: &[Seen]) -> &'static str {
        seen.iter().find(|s| s.rank == rank).map_or("collective", |s| collective_name(s.packed.collective))
    }

    fn timeout(&self, rank: usize, seat: &impl Fn(usize) -> Seat) -> Error {
        let me = &self.ranks[rank];
        let (first, size) = self.domain(rank);
        let mask = me.load(control::MISSING);
        let absent: Vec<usize> = (0..size).filter(|q| mask >> q & 1 == 1).map(|q| first + q).collect();
        let (_, domain) = halves(me.load(control::PHASE_DOMAIN));
        let scene = Scene { seats: (0..self.ranks.len()).map(seat).collect(), counted: self.is_counted() };
        let Verdict { missing, notes } = scene.verdict(rank, domain as usize, me.load(control::EPOCH), &absent);
        Error::Timeout {
            operation: self.operation(rank, &self.seen(rank)),
            rank: Rank::from_index(rank),
            sequence: me.load(control::EPOCH),
            missing: missing.into_iter().map(Rank::from_index).collect(),
            waited: me.duration(me.load(control::TICKS)),
            note: notes.join("; "),
        }
    }

    fn mismatch(&self, rank: usize, seat: &impl Fn(usize) -> Seat) -> Error {
        let epoch = self.ranks[rank].load(control::EPOCH);
        let all = self.seen(rank);
        let operation = self.operation(rank, &all);
        // A rank that should have waited for me in this launch is at a later one: it called something else.
        let ahead: Vec<_> = (all.iter().filter(|s| s.stamp > epoch))
            .map(|s| (Rank::from_index(s.rank), format!("gone on to number {}", s.stamp)))
            .collect();
        let seen: Vec<Seen> = all.into_iter().filter(|s| s.stamp == epoch).collect();
        let code = |value: Option<String>, code: u8| value.unwrap_or_else(|| format!("code {code}"));
        // What each rank called, for what the record holds as a hash only.
        let shape = |s: &Seen| {
            seat(s.rank).history.into_iter().rev().find_map(|called| match called.request.collective {
                Collective::ReduceScatter { ref shape, axis, ref partition, output, .. }
                    if called.request.shape_hash() == s.shape_hash =>
                {
                    let parts = partition.lengths().map_or("an even split".to_owned(), |l| format!("{l:?}"));
                    Some((format!("{shape:?}"), axis, parts, output))
                }
                _ => None,
            })
        };
        type Value<'a> = Box<dyn Fn(&Seen) -> String + 'a>;
        let fields: [(&'static str, Value<'_>); 11] = [
            ("collective", Box::new(|s| collective_name(s.packed.collective).into())),
            ("dtype", Box::new(move |s| code(DType::from_code(s.packed.dtype).map(|d| d.to_string()), s.packed.dtype))),
            ("op", Box::new(move |s| code(ReduceOp::from_code(s.packed.op).map(|o| o.to_string()), s.packed.op))),
            ("root", Box::new(|s| s.packed.root.to_string())),
            ("axis", Box::new(|s| shape(s).map_or_else(String::new, |(_, axis, ..)| axis.to_string()))),
            ("count", Box::new(|s| s.count.to_string())),
            (
                "shape",
                Box::new(|s| {
                    shape(s).map_or_else(|| format!("a shape with hash {:x}", s.shape_hash), |(shape, ..)| shape)
                }),
            ),
            ("parts", Box::new(|s| shape(s).map_or_else(String::new, |(_, _, parts, _)| parts))),
            ("output dtype", Box::new(|s| shape(s).map_or_else(String::new, |(.., output)| output.to_string()))),
            (
                "algorithm",
                Box::new(move |s| {
                    code(Algorithm::from_code(s.packed.algorithm).map(|a| a.to_string()), s.packed.algorithm)
                }),
            ),
            ("blocks", Box::new(|s| s.packed.blocks.to_string())),
        ];
        let values = |value: &Value<'_>| seen.iter().map(|s| (Rank::from_index(s.rank), value(s))).collect::<Vec<_>>();
        let differing = fields.iter().find_map(|(field, value)| {
            let values = values(value);
            values.iter().any(|(_, v)| *v != values[0].1).then_some((*field, values))
        });
        let (field, values) = differing.unwrap_or_else(|| {
            if !ahead.is_empty() {
                let mine = (Rank::from_index(rank), format!("number {epoch}"));
                return ("order", [mine].into_iter().chain(ahead).collect());
            }
            let plan: Value<'_> = Box::new(|s: &Seen| format!("{} slices of another plan", s.packed.slices));
            ("plan", values(&plan))
        });
        Error::Mismatch { operation, field, values }
    }
}
