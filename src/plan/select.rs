//! From a request and the facts of the communicator to a plan.

use std::{fmt, str::FromStr};

use super::{
    chunk::Rounds,
    kernel::{Combine, Kernel},
    request::{Collective, Request},
};

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
    /// Packets into the peers' inboxes, for small messages. Not built yet.
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

/// What all ranks of a communicator know about it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// Blocks that a launch has at most unless the call asks for more: the minimum over the ranks of what their
    /// device prefers.
    pub default_blocks: u32,
    /// Blocks that a launch may have at all.
    pub resident: Resident,
    /// Blocks that the signal buffers have flags for.
    pub max_blocks: u32,
    /// Bytes of one payload half; 0 where no payload was asked for.
    pub payload_half: u64,
    /// Bytes that one block takes at a time.
    pub tile: u64,
    /// Whether the memory of messages is coherent between all devices while kernels run: ordinary memory is, or the
    /// communicator was built for buffers that are.
    pub coherent: bool,
}

/// Blocks of one launch that run at the same time on every device, divided by the ranks that share it (I6): more would
/// wait for each other in turn, for ever. By collective, since kernels differ in what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resident {
    /// Of the broadcast kernels.
    pub broadcast: u32,
    /// Of the reduce-scatter kernels.
    pub reduce_scatter: u32,
}

impl Resident {
    pub(crate) const UNKNOWN: Resident = Resident { broadcast: u32::MAX, reduce_scatter: u32::MAX };

    /// Takes in that `blocks` of `kernel` are resident; at least one always is.
    pub(crate) fn limit(&mut self, kernel: Kernel, blocks: u32) {
        let of =
            if matches!(kernel, Kernel::ReduceScatter(..)) { &mut self.reduce_scatter } else { &mut self.broadcast };
        *of = (*of).min(blocks).max(1);
    }

    fn of(&self, collective: &Collective) -> u32 {
        match collective {
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
    /// Rounds through the payload; 1 where there is none.
    pub rounds: u32,
    /// Bytes of the message per round.
    pub segment: u64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} blocks={} rounds={}", self.kernel.name(), self.algorithm, self.blocks, self.rounds)
    }
}

/// Why there is no plan: an algorithm that does not fit the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoPlan(pub(crate) String);

pub(crate) fn select(
    request: &Request,
    wanted: Algorithm,
    max_blocks: Option<u32>,
    facts: &Facts,
) -> Result<Plan, NoPlan> {
    // One stage is right wherever memory is shared, as on the CPU, and for two ranks. The cost
    // model that knows links comes with the backends that have them.
    let algorithm = match (&request.collective, wanted) {
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
        (Collective::Broadcast { .. }, _) | (_, Algorithm::LowLatency) => {
            return Err(NoPlan(format!("the algorithm {wanted} is not built yet; use auto, one-stage or two-stage")));
        }
        (Collective::ReduceScatter { .. }, _) => {
            return Err(NoPlan(format!("the algorithm {wanted} is for broadcast; use auto or one-stage")));
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
            let share = request.bytes().div_ceil(request.ranks.max(2) as u64 - 1);
            (Kernel::BroadcastTwoStageDirect, Rounds { segment: request.bytes(), rounds: 1 }, share)
        }
        (Collective::Broadcast { .. }, _) => {
            (Kernel::BroadcastOneStage, Rounds { segment: request.bytes(), rounds: 1 }, request.largest_share())
        }
        (Collective::ReduceScatter { op, .. }, _) => (
            Kernel::ReduceScatter(request.dtype, Combine::new(*op, request.ranks)),
            Rounds { segment: request.bytes(), rounds: 1 },
            request.largest_share(),
        ),
    };
    let cap =
        max_blocks.unwrap_or(facts.default_blocks).min(facts.max_blocks).min(facts.resident.of(&request.collective));
    let tiles = share.div_ceil(facts.tile).clamp(1, u64::from(cap.max(1)));
    let Ok(count) = u32::try_from(rounds.rounds) else {
        return Err(NoPlan(format!(
            "{} bytes need {} rounds through a payload of {} bytes, more than a launch can count; \
             set a larger payload_bytes on the builder",
            request.bytes(),
            rounds.rounds,
            2 * facts.payload_half
        )));
    };
    Ok(Plan { algorithm, kernel, blocks: tiles as u32, rounds: count, segment: rounds.segment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const FACTS: Facts = Facts {
        default_blocks: 4,
        resident: Resident { broadcast: 64, reduce_scatter: 64 },
        max_blocks: 64,
        payload_half: 1 << 20,
        tile: 16 << 10,
        coherent: true,
    };

    fn broadcast(ranks: usize, count: u64) -> Request {
        Request { ranks, dtype: DType::U8, count, collective: Collective::Broadcast { root: 0 } }
    }

    #[test]
    fn blocks_follow_the_work_up_to_the_cap() {
        let blocks = |bytes, max| select(&broadcast(2, bytes), Algorithm::Auto, max, &FACTS).unwrap().blocks;
        assert_eq!(blocks(0, None), 1);
        assert_eq!(blocks(1, None), 1);
        assert_eq!(blocks(16 << 10, None), 1);
        assert_eq!(blocks((16 << 10) + 1, None), 2);
        assert_eq!(blocks(1 << 30, None), 4);
        assert_eq!(blocks(1 << 30, Some(64)), 64);
        assert_eq!(blocks(1 << 30, Some(1)), 1);
        let crowded = Facts { resident: Resident { broadcast: 16, reduce_scatter: 8 }, ..FACTS };
        let blocks = |max| select(&broadcast(2, 1 << 30), Algorithm::Auto, max, &crowded).unwrap().blocks;
        assert_eq!((blocks(None), blocks(Some(64))), (4, 16));
    }

    #[test]
    fn rounds_follow_the_payload() {
        let plan = |bytes| select(&broadcast(4, bytes), Algorithm::TwoStageStaged, None, &FACTS).unwrap();
        assert_eq!((plan(0).rounds, plan(4 << 20).rounds, plan((4 << 20) + 1).rounds), (1, 1, 2));
        assert_eq!(plan(1).algorithm, Algorithm::TwoStageStaged);
        let none = Facts { payload_half: 0, ..FACTS };
        assert!(select(&broadcast(4, 1), Algorithm::TwoStageStaged, None, &none).is_err());
    }

    #[test]
    fn what_is_not_built_says_so() {
        let NoPlan(text) = select(&broadcast(4, 1), Algorithm::LowLatency, None, &FACTS).unwrap_err();
        assert!(text.contains("not built yet"), "{text}");
    }

    #[test]
    fn two_stage_takes_the_form_that_the_memory_allows() {
        let chosen = |wanted, facts| select(&broadcast(4, 1), wanted, None, facts).map(|p| p.algorithm);
        let apart = Facts { coherent: false, ..FACTS };
        assert_eq!(chosen(Algorithm::TwoStage, &FACTS), Ok(Algorithm::TwoStageDirect));
        assert_eq!(chosen(Algorithm::TwoStage, &apart), Ok(Algorithm::TwoStageStaged));
        assert!(chosen(Algorithm::TwoStageDirect, &apart).is_err());
    }

    #[test]
    fn a_plan_is_one_line() {
        let plan = select(&broadcast(4, 5 << 20), Algorithm::TwoStageStaged, None, &FACTS).unwrap();
        assert_eq!(plan.to_string(), "broadcast_two_stage_staged two-stage-staged blocks=4 rounds=2");
    }
}
