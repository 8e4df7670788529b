//! Actors that follow programs, flags that fly between them, and flows that share links.
//!
//! An actor is some blocks of a rank that do the same at the same time. A flow is what they move at a moment; it takes
//! its weight of each link that it goes over. Rates are max-min fair: all flows grow alike, by the number of their blocks,
//! until a link is full or they are as fast as their blocks can.

use std::collections::HashMap;

use crossccl::{Topology, Wiring};

/// Names a flag: from whom, to whom, which one.
pub(crate) type Flag = (usize, usize, u32, u64);

/// What an actor does next.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Something that takes its time.
    Busy(f64),
    /// Sends a flag.
    Tell(Flag),
    /// Waits for one.
    Await(Flag),
    /// Moves bytes, after the latency of the first.
    Move(Flow),
}

/// Bytes on their way.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// How many.
    pub(crate) bytes: f64,
    /// Before the first of them comes.
    pub(crate) latency: f64,
    /// Links, and what a byte of the flow is on each.
    pub(crate) links: Vec<(usize, f64)>,
    /// Blocks at it.
    pub(crate) blocks: f64,
    /// Bytes a nanosecond, at most.
    pub(crate) most: f64,
}

/// Links by number, each with what it carries in a nanosecond.
#[derive(Debug)]
pub(crate) struct Links {
    ranks: usize,
    wiring: Wiring,
    capacity: Vec<f64>,
}

impl Links {
    pub(crate) fn new(ranks: usize, topology: &Topology) -> Self {
        let rate = topology.rate as f64 / 1e9;
        let capacity = match topology.wiring {
            Wiring::Switch => {
                let both = topology.both_ways as f64 / 1e9;
                (0..3 * ranks).map(|link| if link < 2 * ranks { rate } else { both }).collect()
            }
            Wiring::Mesh => vec![rate; ranks * ranks],
            _ => vec![rate],
        };
        Links { ranks, wiring: topology.wiring, capacity }
    }

    /// What `bytes` bytes from one rank to another are on, for each byte of a flow. In shared memory, where `read` of them
    /// are read for each that is written.
    pub(crate) fn between(&self, from: usize, to: usize, bytes: f64, read: f64) -> Vec<(usize, f64)> {
        let n = self.ranks;
        match self.wiring {
            Wiring::Switch => [from, n + to, 2 * n + from, 2 * n + to].map(|link| (link, bytes)).to_vec(),
            Wiring::Mesh => vec![(from * n + to, bytes)],
            Wiring::Bus => vec![(0, bytes)],
            _ => vec![(0, bytes * (1.0 + read))],
        }
    }

    pub(crate) fn is_shared_memory(&self) -> bool {
        matches!(self.wiring, Wiring::Device | Wiring::Host)
    }
}

/// One link twice in a flow is one with both weights.
pub(crate) fn merged(mut links: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    links.sort_by_key(|(link, _)| *link);
    links.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 += next.1;
        }
        same
    });
    links
}

enum State {
    Ready,
    Until(f64),
    For(Flag),
    Moving { left: f64, rate: f64 },
    Done,
}

struct Actor {
    program: Vec<Op>,
    next: usize,
    state: State,
}

/// What belongs to one moment: rounding, in nanoseconds.
const MOMENT: f64 = 1e-6;

/// Plays all programs to their ends: the nanoseconds until the last. `flight` is what a flag takes.
///
/// # Panics
/// Where actors wait for flags that nobody sends.
pub(crate) fn run(links: &Links, flight: f64, programs: Vec<Vec<Op>>) -> f64 {
    let mut actors: Vec<Actor> =
        programs.into_iter().map(|program| Actor { program, next: 0, state: State::Ready }).collect();
    let mut flags: HashMap<Flag, f64> = HashMap::new();
    let mut now = 0.0;
    loop {
        let changed = advance(&mut actors, &mut flags, now, flight);
        if actors.iter().all(|actor| matches!(actor.state, State::Done)) {
            return now;
        }
        if changed {
            share(links, &mut actors);
        }
        let when = |actor: &Actor| match &actor.state {
            State::Until(when) => *when,
            State::For(flag) => flags.get(flag).copied().unwrap_or(f64::INFINITY),
            State::Moving { left, rate } => now + left / rate,
            State::Ready | State::Done => f64::INFINITY,
        };
        let next = actors.iter().map(when).fold(f64::INFINITY, f64::min);
        assert!(next.is_finite(), "at {now} ns nobody can go on");
        for actor in &mut actors {
            match &mut actor.state {
                State::Until(when) if *when <= next + MOMENT => actor.state = State::Ready,
                State::For(flag) if flags.get(flag).is_some_and(|when| *when <= next + MOMENT) => {
                    actor.state = State::Ready;
                }
                State::Moving { left, rate } => {
                    *left -= *rate * (next - now);
                    if *left <= *rate * MOMENT {
                        actor.next += 1;
                        actor.state = State::Ready;
                    }
                }
                _ => {}
            }
        }
        now = next;
    }
}

/// Lets each actor that can go on do so. Whether a flow began or ended.
fn advance(actors: &mut [Actor], flags: &mut HashMap<Flag, f64>, now: f64, flight: f64) -> bool {
    let mut changed = false;
    for actor in actors {
        // Those that ended a flow are ready, too.
        while matches!(actor.state, State::Ready) {
            changed = true;
            let Some(op) = actor.program.get_mut(actor.next) else {
                actor.state = State::Done;
                break;
            };
            match op {
                Op::Busy(time) => {
                    actor.state = State::Until(now + *time);
                    actor.next += 1;
                }
                Op::Tell(flag) => {
                    flags.insert(*flag, now + flight);
                    actor.next += 1;
                }
                Op::Await(flag) => match flags.get(flag) {
                    Some(when) if *when <= now + MOMENT => actor.next += 1,
                    _ => actor.state = State::For(*flag),
                },
                Op::Move(flow) if flow.latency > 0.0 => {
                    actor.state = State::Until(now + flow.latency);
                    flow.latency = 0.0;
                }
                Op::Move(flow) => actor.state = State::Moving { left: flow.bytes, rate: 0.0 },
            }
        }
    }
    changed
}

/// Gives each flow its rate.
fn share(links: &Links, actors: &mut [Actor]) {
    let mut free = links.capacity.clone();
    let mut asked = vec![0.0; free.len()];
    let (mut flows, mut rates) = (Vec::new(), Vec::new());
    for actor in actors {
        if let (State::Moving { rate, .. }, Some(Op::Move(flow))) = (&mut actor.state, actor.program.get(actor.next)) {
            for (link, weight) in &flow.links {
                asked[*link] += flow.blocks * weight;
            }
            flows.push(flow);
            rates.push(rate);
        }
    }
    let mut open: Vec<usize> = (0..flows.len()).collect();
    while !open.is_empty() {
        // What a block can have: the least of any link, or of what blocks of a flow can do.
        let level = |at: &usize| {
            let flow: &Flow = flows[*at];
            let least = flow.links.iter().map(|(link, _)| free[*link] / asked[*link]).fold(f64::INFINITY, f64::min);
            least.min(flow.most / flow.blocks)
        };
        let levels: Vec<f64> = open.iter().map(level).collect();
        let least = levels.iter().copied().fold(f64::INFINITY, f64::min);
        let mut still = Vec::new();
        for (at, level) in open.into_iter().zip(levels) {
            if level > least * (1.0 + 1e-9) {
                still.push(at);
                continue;
            }
            let flow = flows[at];
            *rates[at] = least * flow.blocks;
            for (link, weight) in &flow.links {
                free[*link] = (free[*link] - least * flow.blocks * weight).max(0.0);
                asked[*link] -= flow.blocks * weight;
            }
        }
        open = still;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(links: &Links, from: usize, to: usize, bytes: f64, blocks: f64) -> Vec<Op> {
        let links = links.between(from, to, 1.0, 1.0);
        vec![Op::Move(Flow { bytes, latency: 0.0, links, blocks, most: f64::INFINITY })]
    }

    fn time(links: &Links, programs: Vec<Vec<Op>>) -> u64 {
        run(links, 100.0, programs).round() as u64
    }

    /// 10 bytes a nanosecond each way.
    #[test]
    fn flows_share_fairly_and_give_back_what_they_leave() {
        let links = Links::new(3, &Topology::switch(10_000_000_000));
        assert_eq!(time(&links, vec![pull(&links, 0, 1, 1000.0, 1.0)]), 100);
        // Two out of one device; the shorter one ends at 100, the other has all from then on.
        let two = vec![pull(&links, 0, 1, 500.0, 1.0), pull(&links, 0, 2, 1000.0, 1.0)];
        assert_eq!(time(&links, two), 150);
        // Three blocks against one.
        let two = vec![pull(&links, 0, 1, 750.0, 3.0), pull(&links, 0, 2, 250.0, 1.0)];
        assert_eq!(time(&links, two), 100);
        // Other ways.
        let two = vec![pull(&links, 0, 1, 1000.0, 1.0), pull(&links, 1, 2, 1000.0, 1.0)];
        assert_eq!(time(&links, two), 100);
        // A flow that cannot take its share leaves it.
        let mut slow = pull(&links, 0, 1, 100.0, 1.0);
        if let Op::Move(flow) = &mut slow[0] {
            flow.most = 1.0;
        }
        assert_eq!(time(&links, vec![slow, pull(&links, 0, 2, 900.0, 1.0)]), 100);
    }

    #[test]
    fn both_ways_together_have_a_limit_of_their_own() {
        let mut topology = Topology::switch(10_000_000_000);
        topology.both_ways = 15_000_000_000;
        let links = Links::new(2, &topology);
        let two = vec![pull(&links, 0, 1, 750.0, 1.0), pull(&links, 1, 0, 750.0, 1.0)];
        assert_eq!(time(&links, two), 100);
    }

    #[test]
    fn a_mesh_has_a_link_for_each_pair_and_a_bus_one_for_all() {
        let mesh = Links::new(3, &Topology::mesh(10_000_000_000));
        let two = |links: &Links| vec![pull(links, 0, 1, 1000.0, 1.0), pull(links, 0, 2, 1000.0, 1.0)];
        assert_eq!(time(&mesh, two(&mesh)), 100);
        let bus = Links::new(3, &Topology::bus(10_000_000_000));
        assert_eq!(time(&bus, two(&bus)), 200);
        let memory = Links::new(3, &Topology::device(10_000_000_000));
        assert_eq!(time(&memory, two(&memory)), 400);
    }

    #[test]
    fn flags_fly() {
        let links = Links::new(2, &Topology::switch(1));
        let flag = (0, 1, 0, 0);
        assert_eq!(time(&links, vec![vec![Op::Busy(50.0), Op::Tell(flag)], vec![Op::Await(flag), Op::Busy(7.0)]]), 157);
    }

    #[test]
    #[should_panic(expected = "nobody can go on")]
    fn what_waits_for_nobody_is_told() {
        let links = Links::new(2, &Topology::switch(1));
        run(&links, 1.0, vec![vec![Op::Await((0, 1, 0, 0))]]);
    }

    #[test]
    fn one_link_twice() {
        assert_eq!(merged(vec![(3, 1.0), (1, 2.0), (3, 0.5)]), [(1, 2.0), (3, 1.5)]);
    }
}
