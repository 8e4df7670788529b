//! Who is missing: from what each rank enqueued and what it still has in flight to the ranks that all others wait for.
//!
//! A device knows only whose record did not come. That rank may have made the very call and stand behind another one, in which
//! it waits itself: naming it beside the rank that never came blamed a good one in half of all runs.

use super::{Called, Gone};

/// What is known of one rank.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// By domain: the launch epoch of the last launch that it enqueued.
    pub(super) launched: Vec<u64>,
    /// The last calls.
    pub(super) history: Vec<Called>,
    /// Those of them that are not over, or the one in which it failed.
    pub(super) in_flight: Vec<Called>,
    /// Its work runs only while its own thread waits for it.
    pub(super) inline: bool,
    pub(super) gone: Option<Gone>,
}

/// What is known of all ranks when one of them has waited too long.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) seats: Vec<Seat>,
    /// Whether `launched` counts everything.
    pub(super) counted: bool,
}

/// Who is missing, and what there is to say of each rank that did not come in time.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) missing: Vec<usize>,
    pub(super) notes: Vec<String>,
}

/// A wait: the rank, and the launch that has not come from it.
#[derive(Clone, Copy)]
struct Wait {
    rank: usize,
    domain: usize,
    epoch: u64,
}

impl Scene {
    /// `rank` failed in launch `epoch` of `domain`, where the records of `absent` had not come.
    pub(super) fn verdict(&self, rank: usize, domain: usize, epoch: u64, absent: &[usize]) -> Verdict {
        let (mut missing, mut stuck) = (Vec::new(), Vec::new());
        let mut behind = Vec::new();
        for &other in absent {
            let wait = Wait { rank: other, domain, epoch };
            let causes = if self.counted { self.causes(wait, &mut vec![rank]) } else { vec![other] };
            if causes != [other] {
                behind.push(other);
                missing.extend(causes);
            } else if self.counted && self.came(wait) {
                stuck.push(other);
            } else {
                missing.push(other);
            }
        }
        if missing.is_empty() {
            missing = std::mem::take(&mut stuck);
        }
        missing.sort_unstable();
        missing.dedup();
        let others = stuck.into_iter().chain(behind).filter(|other| !missing.contains(other));
        let wait = |rank: usize| Wait { rank, domain, epoch };
        let mut notes: Vec<String> = missing.iter().take(4).map(|r| self.doing(wait(*r), absent.contains(r))).collect();
        notes.extend(others.take(4).map(|other| self.waiting(wait(other))));
        Verdict { missing, notes }
    }

    fn came(&self, Wait { rank, domain, epoch }: Wait) -> bool {
        self.seats[rank].launched.get(domain).is_some_and(|launched| *launched >= epoch)
    }

    /// The call in which a rank waits before it can come to `wait`, and for whom.
    fn stands_in(&self, wait: Wait) -> Option<(&Called, Vec<usize>)> {
        let earlier = |called: &&Called| called.domain != wait.domain || called.epoch < wait.epoch;
        self.seats[wait.rank].in_flight.iter().filter(earlier).find_map(|called| {
            let absent = |other: &usize| {
                called.needs(wait.rank, *other)
                    && !self.came(Wait { rank: *other, domain: called.domain, epoch: called.epoch })
            };
            let absent: Vec<usize> = (0..self.seats.len()).filter(absent).collect();
            (!absent.is_empty()).then_some((called, absent))
        })
    }

    /// The ranks that keep the one of `wait` from coming: itself, where it waits for nobody, or for one of those on the way
    /// to it (they disagree on the order of their calls then).
    fn causes(&self, wait: Wait, way: &mut Vec<usize>) -> Vec<usize> {
        let Some((called, absent)) = self.stands_in(wait) else { return vec![wait.rank] };
        if absent.iter().any(|other| way.contains(other)) {
            return vec![wait.rank];
        }
        way.push(wait.rank);
        let mut causes = Vec::new();
        for rank in absent {
            // One that was looked at already has its causes in there.
            if !way.contains(&rank) {
                causes.extend(self.causes(Wait { rank, domain: called.domain, epoch: called.epoch }, way));
            }
        }
        if causes.is_empty() { vec![wait.rank] } else { causes }
    }

    /// What a missing rank was last seen doing.
    fn doing(&self, wait: Wait, absent: bool) -> String {
        let Seat { history, inline, gone, .. } = &self.seats[wait.rank];
        let rank = wait.rank;
        if let Some(gone) = gone {
            return format!("rank {rank} is gone: {}", gone.reason());
        }
        if self.counted && absent && self.came(wait) {
            return match inline {
                true => format!("rank {rank} has made this call, but its stream is inline, and no thread waits for it"),
                false => {
                    format!("rank {rank} has made this call, but was not through with it, or with work in front of it")
                }
            };
        }
        match history.last() {
            None => format!("rank {rank} has called nothing yet"),
            Some(called) => format!("the last call of rank {rank}, its number {}", self.call(called, "was")),
        }
    }

    /// Why a rank that came is not missing.
    fn waiting(&self, wait: Wait) -> String {
        let rank = wait.rank;
        let has = if self.came(wait) { "has made this call" } else { "has not come to this call" };
        match self.stands_in(wait) {
            None => format!("rank {rank} {has}"),
            Some((called, _)) => format!("rank {rank} {has} but waits in its number {}", self.call(called, "")),
        }
    }

    fn call(&self, called: &Called, verb: &str) -> String {
        let scope = match called.group_size {
            all if all == self.seats.len() => "of all ranks".to_owned(),
            size => format!("in groups of {size}"),
        };
        let comma = if verb.is_empty() { "" } else { " " };
        format!("{},{comma}{verb} {} {scope}", called.call, called.request.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dtype::DType,
        plan::request::{Collective, Request},
    };

    const WORLD: usize = 0;
    const PAIRS: usize = 1;

    /// A call that waits for all of its group.
    fn called(call: u64, domain: usize, epoch: u64) -> Called {
        let group_size = [4, 2][domain];
        let collective = Collective::Broadcast { root: 0 };
        let request = Request { ranks: group_size, dtype: DType::F32, count: 1, collective };
        Called { call, group_size, request, domain, epoch, generation: 0, waits_for: None }
    }

    /// Four ranks, each with what it has enqueued in the world and in pairs, and its calls that are not over.
    fn scene(seats: [([u64; 2], Vec<Called>); 4]) -> Scene {
        let seat = |(launched, in_flight): ([u64; 2], Vec<Called>)| Seat {
            launched: launched.to_vec(),
            history: in_flight.clone(),
            in_flight,
            ..Seat::default()
        };
        Scene { seats: seats.map(seat).into(), counted: true }
    }

    fn missing(scene: &Scene, rank: usize, domain: usize, epoch: u64, absent: &[usize]) -> Vec<usize> {
        scene.verdict(rank, domain, epoch, absent).missing
    }

    #[test]
    fn who_waits_behind_an_earlier_call_is_not_missing() {
        // Rank 1 made no call. The others made two; rank 2 is still in the first.
        let both = || vec![called(1, WORLD, 1), called(2, WORLD, 2)];
        let second = || vec![called(2, WORLD, 2)];
        let scene = scene([([2, 0], second()), ([0, 0], vec![]), ([2, 0], both()), ([2, 0], second())]);
        let verdict = scene.verdict(3, WORLD, 2, &[1, 2]);
        assert_eq!(verdict.missing, [1]);
        let waits = "rank 2 has made this call but waits in its number 1, broadcast of all ranks";
        assert_eq!(verdict.notes, ["rank 1 has called nothing yet", waits]);
    }

    #[test]
    fn the_way_to_the_cause_may_be_long() {
        // Ranks 2 and 3 wait for rank 0 in the world, which waits for rank 1 in its pair.
        let scene = scene([
            ([0, 1], vec![called(1, PAIRS, 1)]),
            ([0, 0], vec![]),
            ([1, 0], vec![called(1, WORLD, 1)]),
            ([1, 0], vec![called(1, WORLD, 1)]),
        ]);
        let verdict = scene.verdict(3, WORLD, 1, &[0, 1]);
        assert_eq!(verdict.missing, [1]);
        let waits = "rank 0 has not come to this call but waits in its number 1, broadcast in groups of 2";
        assert_eq!(verdict.notes[1], waits);
        // A cause may be outside of the group that waits.
        assert_eq!(missing(&scene, 2, WORLD, 1, &[0]), [1]);
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_both_to_blame() {
        // Rank 0 called in its pair, rank 1 in the world, and so does nobody else.
        let scene = scene([
            ([0, 1], vec![called(1, PAIRS, 1)]),
            ([1, 0], vec![called(1, WORLD, 1)]),
            ([0, 0], vec![]),
            ([0, 0], vec![]),
        ]);
        assert_eq!(missing(&scene, 0, PAIRS, 1, &[1]), [1]);
        assert_eq!(missing(&scene, 1, WORLD, 1, &[0]), [0]);
    }

    #[test]
    fn where_all_made_the_call_the_ones_that_are_stuck_are_named() {
        let all = || ([1, 0], vec![called(1, WORLD, 1)]);
        let mut scene = scene([all(), all(), all(), all()]);
        scene.seats[2].inline = true;
        let verdict = scene.verdict(0, WORLD, 1, &[1, 2]);
        assert_eq!(verdict.missing, [1, 2]);
        assert!(verdict.notes[0].starts_with("rank 1 has made this call, but was not through"), "{verdict:?}");
        assert!(verdict.notes[1].contains("its stream is inline, and no thread waits for it"), "{verdict:?}");
        // Beside one that did not come they are not.
        scene.seats[3] = Seat { launched: vec![0, 0], ..Seat::default() };
        let verdict = scene.verdict(0, WORLD, 1, &[1, 3]);
        assert_eq!(verdict.missing, [3]);
        assert_eq!(verdict.notes, ["rank 3 has called nothing yet", "rank 1 has made this call"]);
        scene.seats[3].gone = Some(Gone::Panicked);
        let note = &scene.verdict(0, WORLD, 1, &[3]).notes[0];
        assert_eq!(note, "rank 3 is gone: its handle was dropped by a panic of its thread");
    }

    #[test]
    fn what_cannot_be_counted_is_told_as_it_was_seen() {
        let both = vec![called(1, WORLD, 1), called(2, WORLD, 2)];
        let mut scene = scene([([2, 0], vec![]), ([0, 0], vec![]), ([2, 0], both), ([2, 0], vec![])]);
        scene.counted = false;
        let verdict = scene.verdict(3, WORLD, 2, &[1, 2]);
        assert_eq!(verdict.missing, [1, 2]);
        assert_eq!(verdict.notes[1], "the last call of rank 2, its number 2, was broadcast of all ranks");
    }
}
