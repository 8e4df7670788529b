//! From a plan to what each block does, as `kernels-common/broadcast.h` and `reduce_scatter.h` have it.

use std::ops::Range;

use crossccl::{Algorithm, Facts, Plan, Topology, VECTOR};

use crate::engine::{Flag, Flow, Links, Op, merged, run};

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Of so many bytes, from rank 0.
    Broadcast(u64),
    /// Of inputs of so many bytes a rank, in even parts.
    ReduceScatter(u64),
}

const RECORD: u64 = 0;
const DONE: u64 = 1;
const DATA: u64 = 2;
/// And the round.
const STAGED: u64 = 3;

/// How closely it is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All blocks of a rank are one: where they take tiles from several sources in turn, they take from all at the same
    /// time.
    Ranks,
    /// Each block by itself, tile by tile. For broadcasts in two stages.
    Tiles,
}

/// Blocks of a launch that are played as one.
struct Group {
    number: u32,
    blocks: Range<u64>,
}

/// Bytes from a rank.
struct Source {
    rank: usize,
    bytes: u64,
    /// How often each byte is written.
    written: f64,
}

struct Stage<'a> {
    plan: &'a Plan,
    topology: &'a Topology,
    links: Links,
    ranks: usize,
    tile: u64,
    detail: Detail,
}

/// Nanoseconds from the launch on all `ranks` ranks to the end of the last; what blocks take at a time, `facts` say.
pub fn play(
    plan: &Plan,
    collective: Collective,
    ranks: usize,
    topology: &Topology,
    facts: &Facts,
    detail: Detail,
) -> f64 {
    let tile = match plan.algorithm {
        Algorithm::OneStage => facts.least_tile,
        _ => facts.tile,
    };
    let stage = Stage { plan, topology, links: Links::new(ranks, topology), ranks, tile, detail };
    let blocks = u64::from(plan.blocks);
    let groups: Vec<Group> = match detail {
        Detail::Ranks => vec![Group { number: 0, blocks: 0..blocks }],
        Detail::Tiles => (0..blocks).map(|b| Group { number: b as u32, blocks: b..b + 1 }).collect(),
    };
    let mut programs = Vec::new();
    for rank in 0..ranks {
        for group in &groups {
            programs.push(match (collective, plan.algorithm) {
                (Collective::Broadcast(bytes), Algorithm::OneStage) => stage.one_stage(rank, group, bytes),
                (Collective::Broadcast(bytes), Algorithm::TwoStageStaged) => stage.staged(rank, group, bytes),
                (Collective::Broadcast(bytes), Algorithm::TwoStageDirect) => stage.direct(rank, group, bytes),
                (Collective::Broadcast(bytes), _) => stage.packets(rank, bytes, rank == 0),
                (Collective::ReduceScatter(bytes), Algorithm::LowLatency) => {
                    stage.packets(rank, bytes.div_ceil(ranks as u64), true)
                }
                (Collective::ReduceScatter(bytes), _) => stage.reduce_scatter(rank, bytes.div_ceil(ranks as u64)),
            });
        }
    }
    run(&stage.links, f64::from(topology.flight_ns), programs)
}

/// Bytes of chunk `index` of `chunks`, in whole vectors.
fn chunk(bytes: u64, chunks: u64, index: u64) -> u64 {
    let vectors = bytes.div_ceil(VECTOR);
    let begin = |index: u64| ((vectors / chunks * index + index.min(vectors % chunks)) * VECTOR).min(bytes);
    begin(index + 1) - begin(index)
}

impl Stage<'_> {
    fn peers(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.ranks).filter(move |peer| *peer != rank)
    }

    fn release(&self) -> Op {
        Op::Busy(f64::from(self.topology.release_ns))
    }

    fn launch(&self) -> Op {
        let t = self.topology;
        Op::Busy(f64::from(t.launch_ns) + f64::from(t.peer_ns) * (self.ranks as f64 - 1.0))
    }

    /// The launch, and a record to each peer.
    fn start(&self, rank: usize, group: &Group) -> Vec<Op> {
        let mut program = vec![self.launch(), self.release()];
        program.extend(self.peers(rank).map(|peer| Op::Tell(flag(rank, peer, group, RECORD))));
        program
    }

    fn await_all(
        &self,
        program: &mut Vec<Op>,
        rank: usize,
        from: impl Iterator<Item = usize>,
        group: &Group,
        which: u64,
    ) {
        program.extend(from.map(|peer| Op::Await(flag(peer, rank, group, which))));
    }

    /// Bytes of tile `tile` of `bytes`.
    fn tile_of(&self, bytes: u64, tile: u64) -> u64 {
        bytes.saturating_sub(tile * self.tile).min(self.tile)
    }

    /// Tiles from each source in turn. Of what `readers` ranks read at the same time, memory sees one read.
    fn copy(&self, program: &mut Vec<Op>, group: &Group, to: usize, sources: &[Source], readers: f64) {
        let longest = sources.iter().map(|source| source.bytes).max().unwrap_or(0).div_ceil(self.tile);
        let most = self.topology.block_rate as f64 / 1e9;
        let links = |source: &Source, bytes: f64| match self.links.is_shared_memory() {
            true => vec![(0, bytes * (source.written + 1.0 / readers))],
            false => self.links.between(source.rank, to, bytes, 0.0),
        };
        let mut latency = f64::from(self.topology.read_ns);
        if self.detail == Detail::Tiles {
            for tile in (group.blocks.start..longest).step_by(self.plan.blocks as usize) {
                for k in 0..sources.len() {
                    let source = &sources[(tile as usize + k) % sources.len()];
                    let bytes = self.tile_of(source.bytes, tile) as f64;
                    if bytes > 0.0 {
                        program.push(Op::Move(Flow { bytes, latency, links: links(source, 1.0), blocks: 1.0, most }));
                        latency = 0.0;
                    }
                }
            }
            return;
        }
        let bytes: f64 = sources.iter().map(|source| source.bytes as f64).sum();
        if bytes > 0.0 {
            // Those that have a tile at all.
            let blocks = longest.min(self.plan.blocks.into()) as f64;
            let links = sources.iter().flat_map(|source| links(source, source.bytes as f64 / bytes)).collect();
            program.push(Op::Move(Flow { bytes, latency, links: merged(links), blocks, most: blocks * most }));
        }
    }

    fn one_stage(&self, rank: usize, group: &Group, bytes: u64) -> Vec<Op> {
        let mut program = self.start(rank, group);
        if rank == 0 {
            self.await_all(&mut program, rank, self.peers(rank), group, RECORD);
            self.await_all(&mut program, rank, self.peers(rank), group, DONE);
        } else {
            program.push(Op::Await(flag(0, rank, group, RECORD)));
            self.copy(&mut program, group, rank, &[Source { rank: 0, bytes, written: 1.0 }], self.ranks as f64 - 1.0);
            program.push(Op::Tell(flag(rank, 0, group, DONE)));
        }
        program
    }

    fn staged(&self, rank: usize, group: &Group, bytes: u64) -> Vec<Op> {
        let n = self.ranks;
        let mut program = self.start(rank, group);
        self.await_all(&mut program, rank, self.peers(rank), group, RECORD);
        let others = |rank: usize| self.peers(rank).filter(|peer| *peer != 0);
        if rank != 0 {
            for round in 0..u64::from(self.plan.rounds) {
                let left = bytes - round * self.plan.segment;
                let of = |index: usize| chunk(left.min(self.plan.segment), n as u64, index as u64);
                self.copy(&mut program, group, rank, &[Source { rank: 0, bytes: of(rank), written: 2.0 }], 1.0);
                program.push(self.release());
                program.extend(others(rank).map(|peer| Op::Tell(flag(rank, peer, group, STAGED + round))));
                self.await_all(&mut program, rank, others(rank), group, STAGED + round);
                let source = |k: usize| (rank + 1 + k) % n;
                let sources: Vec<Source> =
                    (0..n - 1).map(|k| Source { rank: source(k), bytes: of(source(k)), written: 1.0 }).collect();
                self.copy(&mut program, group, rank, &sources, 1.0);
            }
            program.extend(self.peers(rank).map(|peer| Op::Tell(flag(rank, peer, group, DONE))));
        }
        self.await_all(&mut program, rank, others(rank), group, DONE);
        program
    }

    fn direct(&self, rank: usize, group: &Group, bytes: u64) -> Vec<Op> {
        let n = self.ranks;
        let rounds = u64::from(self.plan.rounds);
        let mut program = self.start(rank, group);
        self.await_all(&mut program, rank, self.peers(rank), group, RECORD);
        let others = |rank: usize| self.peers(rank).filter(|peer| *peer != 0);
        if rank != 0 {
            for round in 0..=rounds {
                let (pulls, gathers) = (round < rounds, round > 0);
                if gathers {
                    self.await_all(&mut program, rank, others(rank), group, STAGED + round - 1);
                }
                let source = |k: usize| {
                    // The root being 0, rank p has chunk p - 1.
                    let index = (rank - 1 + k) % (n - 1);
                    let (slice, from) = if k == 0 { (round, 0) } else { (round - 1, index + 1) };
                    let left = (bytes - slice * self.plan.segment).min(self.plan.segment);
                    Source { rank: from, bytes: chunk(left, n as u64 - 1, index as u64), written: 1.0 }
                };
                let which = usize::from(!pulls)..if gathers { n - 1 } else { 1 };
                let sources: Vec<Source> = which.map(source).collect();
                self.copy(&mut program, group, rank, &sources, 1.0);
                if pulls {
                    program.push(self.release());
                    program.extend(others(rank).map(|peer| Op::Tell(flag(rank, peer, group, STAGED + round))));
                }
            }
            program.extend(self.peers(rank).map(|peer| Op::Tell(flag(rank, peer, group, DONE))));
        }
        self.await_all(&mut program, rank, others(rank), group, DONE);
        program
    }

    /// Each byte as two, to all peers at the same time, the flags in them.
    fn packets(&self, rank: usize, bytes: u64, sends: bool) -> Vec<Op> {
        let peers = self.ranks as f64 - 1.0;
        let group = Group { number: 0, blocks: 0..0 };
        let mut program = vec![self.launch()];
        if sends {
            let mut links: Vec<_> =
                self.peers(rank).flat_map(|peer| self.links.between(rank, peer, 1.0, 0.0)).collect();
            if self.links.is_shared_memory() {
                // Packets are written and read; what they are of is half of that, read by each sender once and written by
                // each receiver.
                links = vec![(0, 2.5 * peers + 0.5)];
            }
            program.push(Op::Move(Flow {
                bytes: 2.0 * bytes as f64,
                latency: 0.0,
                links: merged(links),
                blocks: f64::from(self.plan.blocks),
                most: f64::from(self.plan.blocks) * self.topology.block_rate as f64 / 1e9 / peers,
            }));
        }
        // Who sends nothing else sends a header.
        program.extend(self.peers(rank).map(|peer| Op::Tell(flag(rank, peer, &group, DATA))));
        self.await_all(&mut program, rank, self.peers(rank), &group, DATA);
        program
    }

    fn reduce_scatter(&self, rank: usize, share: u64) -> Vec<Op> {
        let n = self.ranks as f64;
        let group = Group { number: 0, blocks: 0..0 };
        let mut program = self.start(rank, &group);
        self.await_all(&mut program, rank, self.peers(rank), &group, RECORD);
        let mut links: Vec<_> = self.peers(rank).flat_map(|peer| self.links.between(peer, rank, 1.0, 0.0)).collect();
        if self.links.is_shared_memory() {
            // Each input is read, and one result written.
            links = vec![(0, n + 1.0)];
        }
        program.push(Op::Move(Flow {
            bytes: share as f64,
            latency: f64::from(self.topology.read_ns),
            links: merged(links),
            blocks: f64::from(self.plan.blocks),
            most: f64::from(self.plan.blocks) * self.topology.block_rate as f64 / 1e9 / n,
        }));
        program.extend(self.peers(rank).map(|peer| Op::Tell(flag(rank, peer, &group, DONE))));
        self.await_all(&mut program, rank, self.peers(rank), &group, DONE);
        program
    }
}

fn flag(from: usize, to: usize, group: &Group, which: u64) -> Flag {
    (from, to, group.number, which)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_message() {
        for (bytes, chunks) in [(0, 3), (1, 3), (47, 3), (1 << 20, 7), (1000, 1)] {
            assert_eq!((0..chunks).map(|index| chunk(bytes, chunks, index)).sum::<u64>(), bytes, "{bytes}, {chunks}");
        }
    }
}
