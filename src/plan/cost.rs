//! What a plan should take: latencies that follow each other, and the bytes of the busiest way. `tests/simulator` plays the
//! same plans event by event and holds these formulas to within a tenth.

use std::fmt;

use super::{
    request::{Collective, Request},
    select::{Algorithm, Plan},
    topology::{Topology, Wiring},
};

/// What a plan should take, in microseconds, by what it is spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// The launch itself.
    pub launch: f64,
    /// What each peer adds: its record, its flags.
    pub peers: f64,
    /// Flags that something waits for, and the releases before them.
    pub flags: f64,
    /// The beginnings of reads that nothing else hides.
    pub reads: f64,
    /// Bytes over the busiest way, or by the busiest rank's blocks where those are slower.
    pub transfer: f64,
}

impl Cost {
    /// All of it, in microseconds.
    pub fn total(&self) -> f64 {
        self.launch + self.peers + self.flags + self.reads + self.transfer
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { launch, peers, flags, reads, transfer } = self;
        write!(
            f,
            "{:.1} us = launch {launch:.1} + peers {peers:.1} + flags {flags:.1} + reads {reads:.1} + transfer {transfer:.1}",
            self.total()
        )
    }
}

/// Bytes that go over the ways of a topology at the same time.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Out of the device that sends most.
    out: f64,
    /// Into the one that receives most.
    into: f64,
    /// In and out of the one that moves most.
    both: f64,
    /// Over the busiest link between two devices.
    link: f64,
    /// Between devices, in all.
    all: f64,
    /// Read and written in memory, where all ranks share it; what several read at the same time counts once.
    memory: f64,
    /// By the blocks of the busiest rank.
    mover: f64,
}

/// Blocks that move, and how much of a message each takes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Movers {
    pub(crate) blocks: u32,
    pub(crate) tile: u64,
}

impl Movers {
    /// Those that have something of `bytes` bytes.
    fn of(self, bytes: f64) -> f64 {
        (bytes / self.tile.max(1) as f64).ceil().clamp(1.0, self.blocks.max(1).into())
    }
}

/// Nanoseconds, by so many blocks of the busiest rank.
fn transfer(load: &Load, blocks: f64, t: &Topology) -> f64 {
    let rate = t.rate.max(1) as f64 / 1e9;
    let way = match t.wiring {
        Wiring::Switch => (load.out.max(load.into) / rate).max(load.both / (t.both_ways.max(1) as f64 / 1e9)),
        Wiring::Mesh => load.link / rate,
        Wiring::Bus => load.all / rate,
        Wiring::Device | Wiring::Host => load.memory / rate,
    };
    way.max(load.mover / (blocks * t.block_rate.max(1) as f64 / 1e9))
}

/// What a step of a broadcast in two direct stages takes that pulls a slice of `pulled` bytes while it gathers one of
/// `gathered`.
fn direct_step(pulled: f64, gathered: f64, ranks: f64, movers: Movers, t: &Topology) -> f64 {
    let readers = ranks - 1.0;
    let (chunk, others) = (pulled / readers, gathered * (readers - 1.0) / readers);
    let load = Load {
        out: pulled.max(others),
        into: chunk + others,
        both: pulled.max(chunk + 2.0 * others),
        link: chunk.max(if readers > 1.0 { gathered / readers } else { 0.0 }),
        all: pulled + readers * others,
        memory: 2.0 * (pulled + readers * others),
        mover: chunk + others,
    };
    transfer(&load, movers.of(pulled.max(gathered) / readers), t)
}

/// Slices that a direct broadcast of `bytes` is best cut in: a slice more hides more of the second stage behind the first,
/// and waits once more.
pub(crate) fn slices(bytes: u64, ranks: usize, movers: Movers, t: &Topology) -> f64 {
    let (n, bytes) = (ranks as f64, bytes as f64);
    let step = |pulled, gathered| direct_step(pulled, gathered, n, movers, t);
    // In k slices it takes (first + (k - 1) * both + last) / k, and k times what a step waits: least where both grow alike.
    let hidden = (step(bytes, 0.0) + step(0.0, bytes) - step(bytes, bytes)).max(0.0);
    // With two ranks nobody gathers, so that nobody waits for a flag.
    let flight = if ranks > 2 { t.flight_ns } else { 0 };
    let step_ns = f64::from(t.release_ns) + f64::from(flight) + f64::from(t.read_ns);
    (hidden / step_ns.max(1.0)).sqrt().max(1.0)
}

/// What a broadcast in two direct stages takes after the launch, in so many slices of `segment` bytes: flags, reads, transfer.
fn direct(bytes: u64, ranks: usize, movers: Movers, segment: u64, slices: u32, t: &Topology) -> (f64, f64, f64) {
    let [release, flight, read] = [t.release_ns, t.flight_ns, t.read_ns].map(f64::from);
    let (n, count, slice) = (ranks as f64, f64::from(slices), segment as f64);
    let last = bytes as f64 - (count - 1.0) * slice;
    let step = |pulled, gathered| direct_step(pulled, gathered, n, movers, t);
    // First one that pulls only, at the end one that gathers only.
    let between = match slices {
        0 | 1 => 0.0,
        _ => (count - 2.0) * step(slice, slice) + step(last, slice),
    };
    let first = if slices < 2 { last } else { slice };
    // With two ranks nobody gathers, so that nobody waits for a flag.
    let (staged, gathers) = if ranks > 2 { (flight, read) } else { (0.0, 0.0) };
    (
        release + flight + count * (release + staged) + flight,
        count * read + gathers,
        step(first, 0.0) + between + step(0.0, last),
    )
}

/// All of it, to compare one number of slices and blocks with another.
pub(crate) fn direct_ns(bytes: u64, ranks: usize, movers: Movers, segment: u64, slices: u32, t: &Topology) -> f64 {
    let (flags, reads, transfer) = direct(bytes, ranks, movers, segment, slices, t);
    flags + reads + transfer
}

/// What `plan` should take for `request`.
pub(crate) fn estimate(request: &Request, plan: &Plan, tile: u64, t: &Topology) -> Cost {
    if request.ranks < 2 {
        return Cost::default();
    }
    let (n, bytes) = (request.ranks as f64, request.bytes() as f64);
    let peers = n - 1.0;
    let [launch, release, flight, read, peer] =
        [t.launch_ns, t.release_ns, t.flight_ns, t.read_ns, t.peer_ns].map(f64::from);
    let movers = Movers { blocks: plan.blocks, tile };
    let one = |load: Load| transfer(&load, plan.blocks.max(1).into(), t);
    let last = bytes - (f64::from(plan.rounds) - 1.0) * plan.segment as f64;
    // With two ranks nobody stages for anybody.
    let staged_flight = if request.ranks > 2 { flight } else { 0.0 };
    // The numbers of flights are those that the kernels' heads state.
    let (flags, reads, moved) = match (&request.collective, plan.algorithm) {
        (Collective::Broadcast { .. }, Algorithm::LowLatency) => {
            // Each byte as two; pushed, so the root's blocks do all.
            let sent = 2.0 * bytes * peers;
            let load = Load {
                out: sent,
                into: 2.0 * bytes,
                both: sent,
                link: 2.0 * bytes,
                all: sent,
                // Packets written and read; the message read once and written by each.
                memory: bytes + 2.5 * sent,
                mover: sent,
            };
            (flight, 0.0, one(load))
        }
        (Collective::Broadcast { .. }, Algorithm::TwoStageDirect) => {
            direct(request.bytes(), request.ranks, movers, plan.segment, plan.rounds, t)
        }
        (Collective::Broadcast { .. }, Algorithm::TwoStageStaged) => {
            let rounds = f64::from(plan.rounds);
            let round = |bytes: f64| {
                let chunk = bytes / n;
                let stage = Load {
                    out: peers * chunk,
                    into: chunk,
                    both: peers * chunk,
                    link: chunk,
                    all: peers * chunk,
                    // To both: payload and output.
                    memory: 3.0 * peers * chunk,
                    mover: chunk,
                };
                let gather = Load {
                    out: peers * chunk,
                    into: peers * chunk,
                    both: (2.0 * peers - 1.0) * chunk,
                    link: chunk,
                    all: peers * peers * chunk,
                    memory: 2.0 * peers * peers * chunk,
                    mover: peers * chunk,
                };
                transfer(&stage, movers.of(chunk), t) + transfer(&gather, movers.of(chunk), t)
            };
            (
                release + flight + rounds * (release + staged_flight) + flight,
                2.0 * rounds * read,
                (rounds - 1.0) * round(plan.segment as f64) + round(last),
            )
        }
        (Collective::Broadcast { .. }, _) => {
            let load = Load {
                out: peers * bytes,
                into: bytes,
                both: peers * bytes,
                link: bytes,
                all: peers * bytes,
                memory: n * bytes,
                mover: bytes,
            };
            (release + 2.0 * flight, read, one(load))
        }
        (Collective::ReduceScatter { .. }, algorithm) => {
            // From each peer its share of the largest part.
            let share = request.largest_share() as f64;
            let packed = algorithm == Algorithm::LowLatency;
            let each = if packed { 2.0 * share } else { share };
            let load = Load {
                out: peers * each,
                into: peers * each,
                both: 2.0 * peers * each,
                link: each,
                all: n * peers * each,
                memory: if packed { n * (2.5 * peers + 0.5) * each } else { n * (n + 1.0) * share },
                mover: if packed { peers * each } else { n * each },
            };
            if packed { (flight, 0.0, one(load)) } else { (release + 2.0 * flight, read, one(load)) }
        }
    };
    let micro = |ns: f64| ns / 1000.0;
    Cost {
        launch: micro(launch),
        peers: micro(peers * peer),
        flags: micro(flags),
        reads: micro(reads),
        transfer: micro(moved),
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Algorithm, Facts, Planner, Topology};

    const MIB: u64 = 1 << 20;

    /// Two devices as they were measured (benches/record/2026-11-30-h200.md; above 16 MiB and staged 2026-11-29-h200.md).
    fn two() -> Topology {
        Topology { both_ways: 674_000_000_000, release_ns: 500, ..Topology::switch(374_000_000_000) }
    }

    fn micros(topology: Topology, ranks: usize, bytes: u64, algorithm: Algorithm) -> f64 {
        Planner::new(Facts::default(), topology).explain_broadcast(ranks, bytes, algorithm).unwrap().cost.total()
    }

    fn near(model: f64, measured: f64) {
        assert!((model / measured - 1.0).abs() < 0.2, "model {model:.2} us, measured {measured:.2}");
    }

    /// What was measured, to a fifth.
    #[test]
    fn two_devices_of_a_switch() {
        let by = |algorithm, bytes| micros(two(), 2, bytes, algorithm);
        for (bytes, one_stage) in
            [(1 << 10, 5.57), (64 << 10, 5.76), (MIB, 8.76), (16 * MIB, 51.5), (1024 * MIB, 2865.0)]
        {
            near(by(Algorithm::OneStage, bytes), one_stage);
        }
        for (bytes, staged) in [(1 << 10, 9.2), (MIB, 12.5), (16 * MIB, 61.2), (1024 * MIB, 3632.0)] {
            near(by(Algorithm::TwoStageStaged, bytes), staged);
        }
        for (bytes, packets) in [(1 << 10, 3.5), (16 << 10, 4.15), (64 << 10, 4.28)] {
            near(by(Algorithm::LowLatency, bytes), packets);
        }
        let planner = Planner::new(Facts::default(), two());
        for (bytes, one_stage) in [(1u64 << 10, 6.18), (MIB, 8.18), (16 * MIB, 31.5), (1024 * MIB, 1626.0)] {
            let why = planner.explain_reduce_scatter(2, bytes / 4, crate::DType::F32, Algorithm::OneStage).unwrap();
            near(why.cost.total(), one_stage);
        }
    }

    #[test]
    fn ranks_of_one_device() {
        let device = Topology { launch_ns: 2300, peer_ns: 140, ..Topology::device(3_500_000_000_000) };
        for (ranks, bytes, one_stage) in
            [(2, 1 << 10, 4.42), (8, 1 << 10, 5.31), (2, 1024 * MIB, 553.0), (8, 1024 * MIB, 2520.0)]
        {
            near(micros(device, ranks, bytes, Algorithm::OneStage), one_stage);
        }
    }

    /// The bounds of the table in the design: (1 + 1/k) S/B, S/((n-1)b), 2 (n-1)/n S/B, (n-1) S/B.
    #[test]
    fn links_bound_large_messages() {
        let (bytes, rate, link) = (1024 * MIB, 374_000_000_000, 48_000_000_000);
        let least = |rate: u64| bytes as f64 / rate as f64 * 1e6;
        let ratio = |topology, algorithm, rate| micros(topology, 8, bytes, algorithm) / least(rate);
        let (switch, mesh) = (Topology::switch(rate), Topology::mesh(link));
        assert!((1.0..1.1).contains(&ratio(switch, Algorithm::TwoStageDirect, rate)));
        assert!((1.0..1.1).contains(&ratio(mesh, Algorithm::TwoStageDirect, 7 * link)));
        assert!((7.0..7.1).contains(&ratio(switch, Algorithm::OneStage, rate)));
        assert!((1.0..1.1).contains(&ratio(mesh, Algorithm::OneStage, link)));
        // Rounds through 2 MiB of payload cost a third more than the links.
        assert!((1.75..2.4).contains(&ratio(switch, Algorithm::TwoStageStaged, rate)));
    }

    /// What large messages take of the way that decides, in units of the message over its rate: bytes on the bus, and read
    /// and written in the memory that all share, where packets count twice.
    #[test]
    fn shared_ways_bound_large_messages() {
        let (bytes, rate) = (1024 * MIB, 10_000_000_000);
        let mut facts = Facts::default();
        facts.packets.capacity = u64::MAX;
        let [bus, device, mesh] = [Topology::bus(rate), Topology::device(rate), Topology::mesh(rate)];
        let ratio = |topology, scatter: bool, algorithm| {
            let planner = Planner::new(facts, topology);
            let why = match scatter {
                true => planner.explain_reduce_scatter(8, bytes / 4, crate::DType::F32, algorithm),
                false => planner.explain_broadcast(8, bytes, algorithm),
            };
            why.unwrap().cost.total() / (bytes as f64 / rate as f64 * 1e6)
        };
        use Algorithm::{LowLatency as Packed, OneStage as One, TwoStageStaged as Staged};
        for (topology, scatter, algorithm, expected) in [
            (bus, false, One, 7.0),
            (device, false, One, 8.0),
            (bus, false, Packed, 14.0),
            (device, false, Packed, 1.0 + 2.5 * 14.0),
            (mesh, false, Packed, 2.0),
            // Staged is 7/8 of it, gathered 7 times 7/8: each read and written, staged to payload and output.
            (bus, false, Staged, 7.0),
            (device, false, Staged, (3.0 * 7.0 + 2.0 * 49.0) / 8.0),
            (mesh, false, Staged, 2.0 / 8.0),
            (bus, true, One, 7.0),
            (device, true, One, 9.0),
            (mesh, true, One, 1.0 / 8.0),
            (bus, true, Packed, 14.0),
            (device, true, Packed, 2.0 * (2.5 * 7.0 + 0.5)),
            (mesh, true, Packed, 2.0 / 8.0),
        ] {
            let ratio = ratio(topology, scatter, algorithm);
            assert!((expected..1.02 * expected).contains(&ratio), "{topology}, {algorithm}: {ratio}, not {expected}");
        }
    }

    /// A switch is bound by a device's way out or in, or by both together.
    #[test]
    fn both_ways_of_a_switch_have_a_limit() {
        let scattered = |both_ways| {
            let topology = Topology { both_ways, ..Topology::switch(10_000_000_000) };
            let planner = Planner::new(Facts::default(), topology);
            let why = planner.explain_reduce_scatter(2, 256 * MIB, crate::DType::F32, Algorithm::OneStage);
            why.unwrap().cost.transfer
        };
        assert_eq!(scattered(20_000_000_000), scattered(40_000_000_000));
        assert_eq!(2.0 * scattered(20_000_000_000), scattered(10_000_000_000));
    }

    #[test]
    fn one_rank_costs_nothing() {
        assert_eq!(micros(two(), 1, MIB, Algorithm::Auto), 0.0);
    }
}
