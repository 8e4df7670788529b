//! From a request and the facts of the communicator to a plan.

use std::{fmt, str::FromStr};

use super::{
    chunk::Rounds,
    cost::{self, Movers},
    kernel::{Combine, Kernel},
    request::{Collective, Request},
    topology::{Topology, Wiring},
};
use crate::abi::VECTOR;

/// How a collective is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Algorithm {
    /// The planner chooses.
    #[default]
    Auto = 0,
    /// Every rank pulls what it needs from where it is.
    OneStage = 1,
    /// Broadcast in two stages; the planner picks the form.
    TwoStage = 2,
    /// Broadcast in two stages through the signal buffers' payload, in rounds.
    TwoStageStaged = 3,
    /// Broadcast in two stages from output to output, which needs devices whose memory is coherent between
    /// them while kernels run.
    TwoStageDirect = 4,
    /// Packets into the peers' inboxes, for small messages: see [`low_latency_bytes`](crate::low_latency_bytes).
    LowLatency = 5,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Auto,
        Algorithm::OneStage,
        Algorithm::TwoStage,
        Algorithm::TwoStageStaged,
        Algorithm::TwoStageDirect,
        Algorithm::LowLatency,
    ];

    /// The name, as the command line uses it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::OneStage => "one-stage",
            Algorithm::TwoStage => "two-stage",
            Algorithm::TwoStageStaged => "two-stage-staged",
            Algorithm::TwoStageDirect => "two-stage-direct",
            Algorithm::LowLatency => "low-latency",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Algorithm::ALL.into_iter().find(|a| *a as u8 == code)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Algorithm::ALL.into_iter().find(|a| a.name() == s).ok_or_else(|| {
            let names: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            format!("unknown algorithm `{s}`; the algorithms are {}", names.join(", "))
        })
    }
}

/// How far a rank's launch may overlap with its neighbours in the stream, where devices can start a launch before the
/// one before it is over (programmatic dependent launch; each backend's documentation says which can). Elsewhere a hint that
/// the [`Plan`] records, without effect.
///
/// A launch waits for the one before it, whatever is said here, before it reads or tells anything. What comes behind it
/// may start early, if it was launched to do so itself, and sees the outputs once it has waited in turn, which the
/// kernels of this crate do. Ranks need not agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
#[doc(alias = "PDL")]
pub enum Overlap {
    /// Neither starts early.
    #[default]
    Off = 0,
    /// Starts early; the next may start when this one's work is done.
    AtEnd = 1,
    /// Starts early; the next may start as soon as this one's wait is over. It then waits on the device, where it takes
    /// room from other streams' work.
    AtBeginning = 2,
    /// As [`AtEnd`](Self::AtEnd), and waits all the same: a launch's epoch is the one that the launch before left. Here
    /// for programs that know four levels.
    AtEndWithoutWait = 3,
}

/// What all ranks of a communicator know about it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// Blocks that a launch has at most unless the call asks for more: the minimum over the ranks of what their
    /// device prefers.
    pub default_blocks: Blocks,
    /// Blocks of one launch that run at the same time on every device, divided by the ranks that share it (I6): more
    /// would wait for each other in turn, for ever.
    pub resident: Blocks,
    /// Blocks that the signal buffers have flags for.
    pub max_blocks: u32,
    /// Bytes of one payload half; 0 where no payload was asked for.
    pub payload_half: u64,
    /// Bytes that one block takes at a time.
    pub tile: u64,
    /// Bytes that it takes at least, by the algorithms of one stage.
    pub least_tile: u64,
    /// Bytes of a message, or of each rank's input, below which a rank has one block where no number was asked for: others
    /// would be woken too late to be of use.
    pub one_block: u64,
    /// What the low-latency algorithm takes.
    pub packets: Packets,
    /// Whether the memory of messages is coherent between all devices while kernels run: ordinary memory is, or the
    /// communicator was built for buffers that are.
    pub coherent: bool,
    /// Whether it is because ordinary memory is, so that any output will do.
    pub coherent_as_is: bool,
    /// Whether each rank has a device of its own.
    pub apart: bool,
}

impl Default for Facts {
    /// Those of devices apart, in the tuned range: 64 blocks, packets up to 64 KiB.
    fn default() -> Self {
        let blocks = Blocks { broadcast: 64, reduce_scatter: 64, low_latency: 64 };
        Facts {
            default_blocks: blocks,
            resident: Blocks { broadcast: 128, reduce_scatter: 128, low_latency: 128 },
            max_blocks: 128,
            payload_half: 1 << 20,
            tile: 32 << 10,
            least_tile: 8 << 10,
            one_block: 0,
            packets: Packets { capacity: 64 << 10, broadcast: 64 << 10, reduce_scatter: 64 << 10, tile: 4 << 10 },
            coherent: true,
            coherent_as_is: true,
            apart: true,
        }
    }
}

/// The low-latency algorithm in numbers. By packets each byte is moved as two, and looked at by itself: worth it while
/// the way there and back costs more than the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packets {
    /// Bytes that a slot of an inbox takes: of a broadcast, or of a reduce-scatter's largest part.
    pub capacity: u64,
    /// Bytes of a broadcast up to which [`Algorithm::Auto`] takes it.
    pub broadcast: u64,
    /// Bytes of each rank's whole input up to which a reduce-scatter does.
    pub reduce_scatter: u64,
    /// Bytes that one block takes at a time.
    pub tile: u64,
}

impl Packets {
    /// For devices on which nothing but being asked for it makes it the right one; `tile` is what a block takes at a time.
    pub const fn when_asked(tile: u64) -> Self {
        Packets { capacity: u64::MAX, broadcast: 0, reduce_scatter: 0, tile }
    }

    /// What holds on every device: the smaller of each.
    pub(crate) fn min(self, other: Packets) -> Packets {
        Packets {
            capacity: self.capacity.min(other.capacity),
            broadcast: self.broadcast.min(other.broadcast),
            reduce_scatter: self.reduce_scatter.min(other.reduce_scatter),
            tile: self.tile.min(other.tile).max(1),
        }
    }

    pub(super) fn chosen_for(&self, request: &Request) -> bool {
        let most = match request.collective {
            Collective::Broadcast { .. } => self.broadcast,
            Collective::ReduceScatter { .. } => self.reduce_scatter,
        };
        request.ranks > 1 && most > 0 && request.bytes() <= most && request.largest_share() <= self.capacity
    }
}

/// Numbers of blocks by collective, since their kernels differ in what they take and in who works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocks {
    /// Of the broadcast kernels.
    pub broadcast: u32,
    /// Of the reduce-scatter kernels.
    pub reduce_scatter: u32,
    /// Of the low-latency kernels of either: they take more registers than a broadcast's, of which twice as many fit.
    pub low_latency: u32,
}

impl Blocks {
    pub(crate) const MOST: Blocks = Blocks { broadcast: u32::MAX, reduce_scatter: u32::MAX, low_latency: u32::MAX };

    /// Takes in that `blocks` of `kernel` are resident; at least one always is.
    pub(crate) fn limit(&mut self, kernel: Kernel, blocks: u32) {
        let of = match kernel {
            Kernel::BroadcastLowLatency | Kernel::ReduceScatterLowLatency(..) => &mut self.low_latency,
            Kernel::ReduceScatter(..) => &mut self.reduce_scatter,
            _ => &mut self.broadcast,
        };
        *of = (*of).min(blocks).max(1);
    }

    /// The smaller of each, and one at least.
    pub(crate) fn min(self, other: Blocks) -> Blocks {
        Blocks {
            broadcast: self.broadcast.min(other.broadcast).max(1),
            reduce_scatter: self.reduce_scatter.min(other.reduce_scatter).max(1),
            low_latency: self.low_latency.min(other.low_latency).max(1),
        }
    }

    fn of(&self, collective: &Collective, algorithm: Algorithm) -> u32 {
        match collective {
            _ if algorithm == Algorithm::LowLatency => self.low_latency,
            Collective::Broadcast { .. } => self.broadcast,
            Collective::ReduceScatter { .. } => self.reduce_scatter,
        }
    }
}

/// How one collective will be done: the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Never `Auto` or `TwoStage`.
    pub algorithm: Algorithm,
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks of every rank's launch.
    pub blocks: u32,
    /// Rounds through the payload, or slices of a direct broadcast; 1 elsewhere.
    pub rounds: u32,
    /// Bytes of the message per round or slice.
    pub segment: u64,
    /// Off, whatever was asked for, where two launches of a rank would not fit on its device at the same time or ranks
    /// share one: a launch that started early would take the place of one that a peer waits for.
    pub overlap: Overlap,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} blocks={} rounds={}", self.kernel.name(), self.algorithm, self.blocks, self.rounds)
    }
}

/// Why there is no plan: an algorithm that does not fit the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoPlan(pub(crate) String);

/// Slices of a direct broadcast, at most.
const MOST_SLICES: u64 = 64;

/// What a caller may ask for beside the collective itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) algorithm: Algorithm,
    pub(crate) max_blocks: Option<u32>,
    pub(crate) overlap: Overlap,
}

/// The plan by the algorithm that `wishes` names; where it leaves the choice, by one stage.
pub(super) fn plan_by(request: &Request, wishes: Wishes, facts: &Facts, topology: &Topology) -> Result<Plan, NoPlan> {
    let Wishes { algorithm: wanted, max_blocks, overlap } = wishes;
    let algorithm = match (&request.collective, wanted) {
        (_, Algorithm::LowLatency) if request.largest_share() <= facts.packets.capacity => Algorithm::LowLatency,
        (_, Algorithm::LowLatency) => {
            let what = match request.collective {
                Collective::Broadcast { .. } => "this broadcast",
                Collective::ReduceScatter { .. } => "the largest part here",
            };
            return Err(NoPlan(format!(
                "the algorithm low-latency moves at most {} bytes from rank to rank in this communicator, and {what} has \
                 {}; use auto or one-stage",
                facts.packets.capacity,
                request.largest_share()
            )));
        }
        (_, Algorithm::Auto | Algorithm::OneStage) => Algorithm::OneStage,
        (Collective::Broadcast { .. }, Algorithm::TwoStage) if facts.coherent => Algorithm::TwoStageDirect,
        (Collective::Broadcast { .. }, Algorithm::TwoStage | Algorithm::TwoStageStaged) => Algorithm::TwoStageStaged,
        (Collective::Broadcast { .. }, Algorithm::TwoStageDirect) if facts.coherent => Algorithm::TwoStageDirect,
        (Collective::Broadcast { .. }, Algorithm::TwoStageDirect) => {
            return Err(NoPlan(
                "the algorithm two-stage-direct needs memory that is coherent between the devices while kernels run; \
                 use two-stage-staged, or coherent_buffers on the builder"
                    .into(),
            ));
        }
        (Collective::ReduceScatter { .. }, _) => {
            return Err(NoPlan(format!("the algorithm {wanted} is for broadcast; use auto, one-stage or low-latency")));
        }
    };
    let (kernel, rounds, share) = match (&request.collective, algorithm) {
        (Collective::Broadcast { .. }, Algorithm::TwoStageStaged) => {
            if facts.payload_half == 0 {
                return Err(NoPlan(
                    "the algorithm two-stage-staged needs payload in the signal buffers, and the \
                     communicator was built with none; set payload_bytes on the builder"
                        .into(),
                ));
            }
            let rounds = Rounds::new(request.bytes(), request.ranks as u64, facts.payload_half);
            let share = request.bytes().min(rounds.segment).div_ceil(request.ranks as u64);
            (Kernel::BroadcastTwoStageStaged, rounds, share)
        }
        (Collective::Broadcast { .. }, Algorithm::TwoStageDirect) => {
            // Slices follow the blocks.
            let share = request.bytes().div_ceil(request.ranks.max(2) as u64 - 1);
            (Kernel::BroadcastTwoStageDirect, Rounds { segment: request.bytes(), rounds: 1 }, share)
        }
        (Collective::Broadcast { .. }, Algorithm::LowLatency) => {
            (Kernel::BroadcastLowLatency, Rounds { segment: request.bytes(), rounds: 1 }, request.largest_share())
        }
        (Collective::ReduceScatter { op, .. }, Algorithm::LowLatency) => (
            Kernel::ReduceScatterLowLatency(request.dtype, Combine::of_any(*op)),
            Rounds { segment: request.largest_share(), rounds: 1 },
            request.largest_share(),
        ),
        (Collective::Broadcast { .. }, _) => {
            (Kernel::BroadcastOneStage, Rounds { segment: request.bytes(), rounds: 1 }, request.largest_share())
        }
        (Collective::ReduceScatter { op, .. }, _) => (
            Kernel::ReduceScatter(request.dtype, Combine::new(*op, request.ranks)),
            Rounds { segment: request.bytes(), rounds: 1 },
            request.largest_share(),
        ),
    };
    let resident = facts.resident.of(&request.collective, algorithm);
    let usual = match facts.default_blocks.of(&request.collective, algorithm) {
        _ if request.bytes() < facts.one_block => 1,
        usual => usual,
    };
    let cap = max_blocks.unwrap_or(usual).min(facts.max_blocks).min(resident);
    let tile = match algorithm {
        Algorithm::LowLatency => facts.packets.tile,
        Algorithm::TwoStageStaged | Algorithm::TwoStageDirect => facts.tile,
        _ => facts.least_tile,
    };
    let tiles = share.div_ceil(tile).clamp(1, u64::from(cap.max(1)));
    let (tiles, rounds) = match algorithm {
        Algorithm::TwoStageDirect => in_slices(request, tiles as u32, facts, topology),
        _ => (tiles, rounds),
    };
    let overlap = if facts.apart && tiles * 2 <= u64::from(resident) { overlap } else { Overlap::Off };
    let Ok(count) = u32::try_from(rounds.rounds) else {
        return Err(NoPlan(format!(
            "{} bytes need {} rounds through a payload of {} bytes, more than a launch can count; \
             set a larger payload_bytes on the builder",
            request.bytes(),
            rounds.rounds,
            2 * facts.payload_half
        )));
    };
    Ok(Plan { algorithm, kernel, blocks: tiles as u32, rounds: count, segment: rounds.segment, overlap })
}

/// How a direct broadcast is cut in slices, and by how many blocks: near what the cost model has best. Each block has as many
/// tiles of each chunk as the others (links would wait for the few that have one more), so that fewer blocks can take
/// smaller slices.
fn in_slices(request: &Request, most: u32, facts: &Facts, topology: &Topology) -> (u64, Rounds) {
    let (bytes, ranks) = (request.bytes(), request.ranks);
    let readers = ranks.max(2) as u64 - 1;
    let movers = |blocks| Movers { blocks, tile: facts.tile };
    // As many blocks at each link of a mesh, of which each block uses one at a time.
    let even = |blocks: u32| match topology.wiring {
        Wiring::Mesh if u64::from(blocks) > readers => blocks - blocks % readers as u32,
        _ => blocks,
    };
    let most = even(most);
    let mut best = (most, Rounds { segment: bytes, rounds: 1 });
    if ranks < 3 || cost::slices(bytes, ranks, movers(most), topology) < 1.5 {
        return (most.into(), best.1);
    }
    let mut least = cost::direct_ns(bytes, ranks, movers(most), bytes, 1, topology);
    for blocks in [most, even(most / 2), even(most / 4), even(most / 8)] {
        let step = readers.saturating_mul(facts.tile.max(VECTOR)).saturating_mul(blocks.into());
        if step == 0 {
            break;
        }
        // To the nearest.
        let wanted = (cost::slices(bytes, ranks, movers(blocks), topology) + 0.5) as u64;
        let tiles = (bytes / wanted.clamp(1, MOST_SLICES)).saturating_add(step / 2) / step;
        let segment = tiles.max(bytes.div_ceil(MOST_SLICES).div_ceil(step)).max(1).saturating_mul(step);
        if segment >= bytes {
            continue;
        }
        let rounds = bytes.div_ceil(segment);
        let time = cost::direct_ns(bytes, ranks, movers(blocks), segment, rounds as u32, topology);
        if time < least {
            (least, best) = (time, (blocks, Rounds { segment, rounds }));
        }
    }
    (best.0.into(), best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dtype::DType, plan::Planner};

    fn select(request: &Request, wishes: Wishes, facts: &Facts) -> Result<Plan, NoPlan> {
        Planner::new(*facts, Topology::device(1_000_000_000_000)).select(request, wishes)
    }

    const FACTS: Facts = Facts {
        default_blocks: Blocks { broadcast: 4, reduce_scatter: 2, low_latency: 4 },
        resident: Blocks { broadcast: 64, reduce_scatter: 64, low_latency: 64 },
        max_blocks: 64,
        payload_half: 1 << 20,
        tile: 16 << 10,
        least_tile: 16 << 10,
        one_block: 0,
        packets: Packets { capacity: 64 << 10, broadcast: 0, reduce_scatter: 0, tile: 4 << 10 },
        coherent: true,
        coherent_as_is: true,
        apart: true,
    };

    fn broadcast(ranks: usize, count: u64) -> Request {
        Request { ranks, dtype: DType::U8, count, collective: Collective::Broadcast { root: 0 } }
    }

    fn by(algorithm: Algorithm) -> Wishes {
        Wishes { algorithm, ..Wishes::default() }
    }

    fn blocks_of(max_blocks: Option<u32>) -> Wishes {
        Wishes { max_blocks, ..Wishes::default() }
    }

    /// Launches overlap only where there is room for two of a rank's, and nobody else's peers are kept out.
    #[test]
    fn overlap_needs_room_and_a_device_a_rank() {
        let chosen = |blocks, facts| {
            let wishes = Wishes { max_blocks: Some(blocks), overlap: Overlap::AtBeginning, ..Wishes::default() };
            select(&broadcast(2, 1 << 30), wishes, facts).unwrap().overlap
        };
        assert_eq!(chosen(32, &FACTS), Overlap::AtBeginning);
        assert_eq!(chosen(33, &FACTS), Overlap::Off);
        assert_eq!(chosen(32, &Facts { apart: false, ..FACTS }), Overlap::Off);
        assert_eq!(select(&broadcast(2, 1), Wishes::default(), &FACTS).unwrap().overlap, Overlap::Off);
    }

    #[test]
    fn blocks_follow_the_work_up_to_the_cap() {
        let blocks = |bytes, max| select(&broadcast(2, bytes), blocks_of(max), &FACTS).unwrap().blocks;
        assert_eq!(blocks(0, None), 1);
        assert_eq!(blocks(1, None), 1);
        assert_eq!(blocks(16 << 10, None), 1);
        assert_eq!(blocks((16 << 10) + 1, None), 2);
        assert_eq!(blocks(1 << 30, None), 4);
        assert_eq!(blocks(1 << 30, Some(64)), 64);
        assert_eq!(blocks(1 << 30, Some(1)), 1);
        let late = Facts { one_block: 512 << 10, ..FACTS };
        let blocks = |bytes, max| select(&broadcast(2, bytes), blocks_of(max), &late).unwrap().blocks;
        assert_eq!((blocks((512 << 10) - 1, None), blocks(512 << 10, None), blocks(64 << 10, Some(4))), (1, 4, 4));
        let part = Request {
            collective: Collective::ReduceScatter {
                op: crate::op::ReduceOp::Sum,
                partition: crate::plan::Partition::new(&[1 << 30], 0, 2).unwrap(),
                shape: [1 << 30].into_iter().collect(),
                axis: 0,
                output: DType::U8,
                factor: 1.0,
            },
            ..broadcast(2, 1 << 30)
        };
        assert_eq!(select(&part, Wishes::default(), &FACTS).unwrap().blocks, 2);
        let crowded = Facts { resident: Blocks { broadcast: 16, reduce_scatter: 8, low_latency: 8 }, ..FACTS };
        let blocks = |max| select(&broadcast(2, 1 << 30), blocks_of(max), &crowded).unwrap().blocks;
        assert_eq!((blocks(None), blocks(Some(64))), (4, 16));
    }

    /// Of a direct broadcast it is what a reader gathers that is shared out: the message by one rank fewer.
    #[test]
    fn blocks_of_a_direct_broadcast_follow_a_readers_part() {
        let wishes = Wishes { max_blocks: Some(64), ..by(Algorithm::TwoStageDirect) };
        let blocks = |ranks, tiles: u64| select(&broadcast(ranks, tiles * FACTS.tile), wishes, &FACTS).unwrap().blocks;
        assert_eq!((blocks(5, 40), blocks(5, 41), blocks(2, 40), blocks(1, 40)), (10, 11, 40, 40));
    }

    /// Each kind of kernel has a number of its own, and one block at least.
    #[test]
    fn blocks_by_kernel() {
        let mut blocks = Blocks::MOST;
        let scatter = (Kernel::ReduceScatter(DType::F32, Combine::Sum2), 3);
        let packets = (Kernel::ReduceScatterLowLatency(DType::F32, Combine::SumN), 6);
        let others =
            [(Kernel::BroadcastOneStage, 9), (Kernel::BroadcastTwoStageDirect, 7), (Kernel::BroadcastLowLatency, 5)];
        for (kernel, resident) in others.into_iter().chain([scatter, packets]) {
            blocks.limit(kernel, resident);
        }
        assert_eq!(blocks, Blocks { broadcast: 7, reduce_scatter: 3, low_latency: 5 });
        blocks.limit(Kernel::ReduceScatter(DType::U8, Combine::MaxN), 0);
        assert_eq!(blocks.reduce_scatter, 1);
        let facts = Facts { default_blocks: Blocks { broadcast: 4, reduce_scatter: 2, low_latency: 3 }, ..FACTS };
        let of = |algorithm| select(&broadcast(4, 64 << 10), by(algorithm), &facts).unwrap().blocks;
        assert_eq!((of(Algorithm::LowLatency), of(Algorithm::OneStage)), (3, 4));
    }

    #[test]
    fn rounds_follow_the_payload() {
        let plan = |bytes| select(&broadcast(4, bytes), by(Algorithm::TwoStageStaged), &FACTS).unwrap();
        assert_eq!((plan(0).rounds, plan(4 << 20).rounds, plan((4 << 20) + 1).rounds), (1, 1, 2));
        assert_eq!(plan(1).algorithm, Algorithm::TwoStageStaged);
        let none = Facts { payload_half: 0, ..FACTS };
        assert!(select(&broadcast(4, 1), by(Algorithm::TwoStageStaged), &none).is_err());
    }

    /// Up to what an inbox takes where it is asked for, up to the device's number where nothing is.
    #[test]
    fn packets_have_two_borders() {
        let plan = |bytes| select(&broadcast(4, bytes), by(Algorithm::LowLatency), &FACTS);
        assert_eq!(plan(64 << 10).map(|p| (p.algorithm, p.blocks)), Ok((Algorithm::LowLatency, 4)));
        let NoPlan(text) = plan((64 << 10) + 1).unwrap_err();
        assert!(text.contains("at most 65536 bytes") && text.contains("has 65537"), "{text}");
        let quick = Facts { packets: Packets { broadcast: 1000, reduce_scatter: 8000, ..FACTS.packets }, ..FACTS };
        let chosen = |request: &Request| select(request, Wishes::default(), &quick).unwrap().algorithm;
        assert_eq!(chosen(&broadcast(4, 1000)), Algorithm::LowLatency);
        assert_eq!(chosen(&broadcast(4, 1001)), Algorithm::OneStage);
        assert_eq!(chosen(&broadcast(1, 1000)), Algorithm::OneStage);
        assert_eq!(select(&broadcast(4, 0), Wishes::default(), &FACTS).unwrap().algorithm, Algorithm::OneStage);
        let part = |count: u64| Request {
            collective: Collective::ReduceScatter {
                op: crate::op::ReduceOp::Average,
                partition: crate::plan::Partition::new(&[count], 0, 2).unwrap(),
                shape: [count].into_iter().collect(),
                axis: 0,
                output: DType::U8,
                factor: 1.0,
            },
            ..broadcast(2, count)
        };
        assert_eq!(chosen(&part(8000)), Algorithm::LowLatency);
        assert_eq!(chosen(&part(8001)), Algorithm::OneStage);
        let plan = select(&part(8001), by(Algorithm::LowLatency), &quick).unwrap();
        assert_eq!((plan.kernel, plan.segment), (Kernel::ReduceScatterLowLatency(DType::U8, Combine::SumN), 4001));
    }

    #[test]
    fn two_stage_takes_the_form_that_the_memory_allows() {
        let chosen = |wanted, facts| select(&broadcast(4, 1), by(wanted), facts).map(|p| p.algorithm);
        let apart = Facts { coherent: false, ..FACTS };
        assert_eq!(chosen(Algorithm::TwoStage, &FACTS), Ok(Algorithm::TwoStageDirect));
        assert_eq!(chosen(Algorithm::TwoStage, &apart), Ok(Algorithm::TwoStageStaged));
        assert!(chosen(Algorithm::TwoStageDirect, &apart).is_err());
    }

    #[test]
    fn a_plan_is_one_line() {
        let plan = select(&broadcast(4, 5 << 20), by(Algorithm::TwoStageStaged), &FACTS).unwrap();
        assert_eq!(plan.to_string(), "broadcast_two_stage_staged two-stage-staged blocks=4 rounds=2");
    }
}
