//! Which plan, and why: the caller's word, a tuning row, or the least of the cost model.

use std::fmt;

use smallvec::SmallVec;

use super::{
    Partition,
    cost::{Cost, estimate},
    request::{Collective, Request},
    select::{Algorithm, Facts, NoPlan, Plan, Wishes, plan_by},
    topology::Topology,
    tuning::{Found, Placement, Rows, Tuning},
};
use crate::{
    dtype::DType,
    error::{Error, Result},
    op::ReduceOp,
};

/// What plans are made of: the facts that all ranks share, how their devices are joined, what was measured there.
///
/// A communicator has one of its own; this is for plans on machines that are not at hand.
///
/// ```
/// use crossccl::{Algorithm, Facts, Planner, Topology};
///
/// # fn main() -> crossccl::Result<()> {
/// let planner = Planner::new(Facts::default(), Topology::switch(374_000_000_000));
/// let best = planner.explain_broadcast(8, 1 << 30, Algorithm::Auto)?;
/// assert_eq!(best.plan.algorithm, Algorithm::TwoStageDirect);
/// println!("{best}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    pub(crate) facts: Facts,
    pub(crate) topology: Topology,
    rows: Rows,
}

/// Why a plan was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The caller named the algorithm.
    Asked,
    /// There is nothing to move between ranks.
    Alone,
    /// A tuning row says so.
    Row {
        /// What the file is called.
        source: String,
        /// Where the row stands, from 1; 0 for a row of the program's own.
        line: usize,
    },
    /// The cost model has it cheapest.
    Model,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Asked => f.write_str("it was asked for"),
            Reason::Alone => f.write_str("there is nothing to move between ranks"),
            Reason::Row { source, line: 0 } => write!(f, "a tuning row of {source} says so"),
            Reason::Row { source, line } => write!(f, "the tuning row in line {line} of {source} says so"),
            Reason::Model => f.write_str("the model has it fastest"),
        }
    }
}

/// A plan that was weighed, and what it should take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// What it should take.
    pub cost: Cost,
}

/// How a collective will be done, why, and what else could have been.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// `broadcast` or `reduce_scatter`.
    pub operation: &'static str,
    /// Ranks of the group.
    pub ranks: usize,
    /// Of the message, or of each rank's whole input.
    pub bytes: u64,
    /// What the model knows of the machine.
    pub topology: Topology,
    /// What will be done.
    pub plan: Plan,
    /// What the model says that it takes.
    pub cost: Cost,
    /// Why.
    pub reason: Reason,
    /// What else there is, the fastest by the model first: that is the runner-up.
    pub others: Vec<Candidate>,
    /// What was not weighed, and why.
    pub left_out: Vec<(Algorithm, String)>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} bytes, {} ranks: {}", self.operation, self.bytes, self.ranks, self.topology)?;
        writeln!(f, "chosen: {}, since {}", Shown(&self.plan), self.reason)?;
        writeln!(f, "  {:<17} {}", self.plan.algorithm.name(), self.cost)?;
        for (at, other) in self.others.iter().enumerate() {
            let runner_up = if at == 0 { "runner-up: " } else { "" };
            writeln!(f, "  {:<17} {}  ({runner_up}{})", other.plan.algorithm.name(), other.cost, Shown(&other.plan))?;
        }
        for (algorithm, why) in &self.left_out {
            writeln!(f, "  {:<17} not weighed: {why}", algorithm.name())?;
        }
        Ok(())
    }
}

/// A plan in words.
struct Shown<'a>(&'a Plan);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { algorithm, blocks, rounds, .. } = self.0;
        write!(f, "{algorithm}, {blocks} block{}", if *blocks == 1 { "" } else { "s" })?;
        match (algorithm, rounds) {
            (Algorithm::TwoStageDirect, 1) => f.write_str(", 1 slice"),
            (Algorithm::TwoStageDirect, n) => write!(f, ", {n} slices"),
            (Algorithm::TwoStageStaged, 1) => f.write_str(", 1 round"),
            (Algorithm::TwoStageStaged, n) => write!(f, ", {n} rounds"),
            _ => Ok(()),
        }
    }
}

/// What `Auto` weighs, in the order in which equal ones are taken.
const WEIGHED: [Algorithm; 4] =
    [Algorithm::OneStage, Algorithm::LowLatency, Algorithm::TwoStageDirect, Algorithm::TwoStageStaged];

type Candidates = SmallVec<[Candidate; 4]>;

impl Planner {
    /// For devices of these facts, joined so, of which nothing was measured.
    pub fn new(facts: Facts, topology: Topology) -> Self {
        Planner { facts, topology, rows: Rows::default() }
    }

    /// With what was measured on devices of these names, one a rank.
    pub fn tuning(mut self, tuning: &Tuning, names: &[String]) -> Self {
        let placement = Placement::of(self.facts.apart);
        tuning.correct(names, placement, &mut self.topology);
        self.rows = tuning.rows_for(names, placement);
        self
    }

    /// How a broadcast of `bytes` bytes to `ranks` ranks would be done.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an algorithm that does not fit; [`Error::InvalidArgument`] for no ranks or too many.
    pub fn explain_broadcast(&self, ranks: usize, bytes: u64, algorithm: Algorithm) -> Result<Explanation> {
        check_ranks("broadcast", ranks)?;
        let request = Request { ranks, dtype: DType::U8, count: bytes, collective: Collective::Broadcast { root: 0 } };
        self.explain_for(&request, Wishes { algorithm, ..Wishes::default() })
    }

    /// How a reduce-scatter of the sums of `count` elements a rank, along their one axis, would be done.
    ///
    /// # Errors
    /// As for [`explain_broadcast`](Self::explain_broadcast).
    pub fn explain_reduce_scatter(
        &self,
        ranks: usize,
        count: u64,
        dtype: DType,
        algorithm: Algorithm,
    ) -> Result<Explanation> {
        check_ranks("reduce_scatter", ranks)?;
        let fits = count.checked_mul(dtype.size() as u64);
        let Some(partition) = fits.and_then(|_| Partition::new(&[count], 0, ranks)) else {
            return Err(Error::InvalidArgument {
                operation: "reduce_scatter",
                rank: None,
                argument: "count",
                expected: format!("elements of {dtype} whose bytes 64 bits can count"),
                got: count.to_string(),
            });
        };
        let collective = Collective::ReduceScatter {
            op: ReduceOp::Sum,
            partition,
            shape: [count].into_iter().collect(),
            axis: 0,
            output: dtype,
            factor: 1.0,
        };
        let request = Request { ranks, dtype, count, collective };
        self.explain_for(&request, Wishes { algorithm, ..Wishes::default() })
    }

    fn explain_for(&self, request: &Request, wishes: Wishes) -> Result<Explanation> {
        self.explain(request, wishes).map_err(|NoPlan(what)| Error::Unsupported { operation: request.name(), what })
    }

    /// The plan for a request: what [`explain`](Self::explain) explains.
    pub(crate) fn select(&self, request: &Request, wishes: Wishes) -> Result<Plan, NoPlan> {
        if wishes.algorithm != Algorithm::Auto {
            return self.plan(request, wishes.algorithm, wishes);
        }
        if request.ranks < 2 {
            return self.plan(request, Algorithm::OneStage, wishes);
        }
        if let Some((plan, _)) = self.by_row(request, wishes) {
            return Ok(plan);
        }
        // One stage fits every request.
        match self.weigh(request, wishes).first() {
            Some(best) => Ok(best.plan),
            None => self.plan(request, Algorithm::OneStage, wishes),
        }
    }

    pub(crate) fn explain(&self, request: &Request, wishes: Wishes) -> Result<Explanation, NoPlan> {
        let plan = self.select(request, wishes)?;
        let reason = match wishes.algorithm {
            Algorithm::Auto if request.ranks < 2 => Reason::Alone,
            Algorithm::Auto => self
                .by_row(request, wishes)
                .map_or(Reason::Model, |(_, found)| Reason::Row { source: found.source.into(), line: found.line }),
            _ => Reason::Asked,
        };
        let mut others = self.weigh(request, wishes).into_vec();
        others.retain(|other| other.plan.algorithm != plan.algorithm);
        let mut left_out = Vec::new();
        for algorithm in WEIGHED {
            if plan.algorithm == algorithm || others.iter().any(|other| other.plan.algorithm == algorithm) {
                continue;
            }
            let why = match self.plan(request, algorithm, wishes) {
                Err(NoPlan(why)) => why,
                Ok(_) => self.unweighed(request, algorithm).unwrap_or_default().into(),
            };
            left_out.push((algorithm, why));
        }
        Ok(Explanation {
            operation: request.name(),
            ranks: request.ranks,
            bytes: request.bytes(),
            topology: self.topology,
            plan,
            cost: self.cost(request, &plan),
            reason,
            others,
            left_out,
        })
    }

    fn plan(&self, request: &Request, algorithm: Algorithm, wishes: Wishes) -> Result<Plan, NoPlan> {
        plan_by(request, Wishes { algorithm, ..wishes }, &self.facts, &self.topology)
    }

    fn cost(&self, request: &Request, plan: &Plan) -> Cost {
        estimate(request, plan, self.facts.tile, &self.topology)
    }

    /// What a row makes of the request, if there is one whose algorithm fits.
    fn by_row(&self, request: &Request, wishes: Wishes) -> Option<(Plan, Found<'_>)> {
        let found = self.rows.find(request)?;
        let algorithm = found.row.algorithm?;
        let max_blocks = wishes.max_blocks.or(found.row.blocks);
        let plan = self.plan(request, algorithm, Wishes { max_blocks, ..wishes }).ok()?;
        Some((plan, found))
    }

    /// Why `Auto` does not weigh an algorithm that could be asked for.
    fn unweighed(&self, request: &Request, algorithm: Algorithm) -> Option<&'static str> {
        match algorithm {
            Algorithm::LowLatency if !self.facts.packets.chosen_for(request) => {
                Some("larger than what these devices were measured to be faster at with it, or never measured")
            }
            Algorithm::TwoStageDirect | Algorithm::TwoStageStaged if request.ranks < 3 => {
                Some("two ranks have one way between them")
            }
            Algorithm::TwoStageDirect if !self.facts.coherent_as_is => {
                Some("outputs may lie in memory that is not coherent between the devices while kernels run")
            }
            _ => None,
        }
    }

    /// What `Auto` chooses from, the cheapest first.
    fn weigh(&self, request: &Request, wishes: Wishes) -> Candidates {
        let of_row = self.rows.find(request).filter(|found| found.row.algorithm.is_none());
        let max_blocks = wishes.max_blocks.or(of_row.and_then(|found| found.row.blocks));
        let wishes = Wishes { max_blocks, ..wishes };
        let mut all = Candidates::new();
        for algorithm in WEIGHED {
            if self.unweighed(request, algorithm).is_some() {
                continue;
            }
            if let Ok(plan) = self.plan(request, algorithm, wishes) {
                all.push(Candidate { plan, cost: self.cost(request, &plan) });
            }
        }
        // Stable: of equal ones the first.
        all.sort_by(|a, b| a.cost.total().total_cmp(&b.cost.total()));
        all
    }
}

fn check_ranks(operation: &'static str, ranks: usize) -> Result<()> {
    if (1..=crate::MAX_RANKS).contains(&ranks) {
        return Ok(());
    }
    let expected = format!("1 to {}", crate::MAX_RANKS);
    Err(Error::InvalidArgument { operation, rank: None, argument: "ranks", expected, got: ranks.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Packets, TuningRow, tuning::Tuned};

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Devices whose packets were measured up to `packets` bytes.
    fn facts(packets: u64) -> Facts {
        let default = Facts::default();
        Facts { packets: Packets { broadcast: packets, reduce_scatter: packets, ..default.packets }, ..default }
    }

    fn chosen(planner: &Planner, ranks: usize, sizes: &[u64]) -> Vec<Algorithm> {
        let broadcast = |bytes: &u64| planner.explain_broadcast(ranks, *bytes, Algorithm::Auto).unwrap().plan.algorithm;
        sizes.iter().map(broadcast).collect()
    }

    fn scattered(planner: &Planner, ranks: usize, bytes: u64) -> Algorithm {
        let why = planner.explain_reduce_scatter(ranks, bytes / 4, DType::F32, Algorithm::Auto);
        why.unwrap().plan.algorithm
    }

    use Algorithm::{LowLatency as Packed, OneStage as One, TwoStageDirect as Direct, TwoStageStaged as Staged};

    /// What was measured on two devices stays: packets up to 64 KiB, then one stage.
    #[test]
    fn a_switch_of_2_4_and_8() {
        let switch = Planner::new(facts(64 * KIB), Topology::switch(374_000_000_000));
        let sizes = [1, KIB, 64 * KIB, 64 * KIB + 1, MIB, GIB];
        assert_eq!(chosen(&switch, 2, &sizes), [Packed, Packed, Packed, One, One, One]);
        assert_eq!(chosen(&switch, 3, &[GIB]), [Direct]);
        for ranks in [4, 8] {
            assert_eq!(chosen(&switch, ranks, &[KIB, 64 * KIB, 64 * KIB + 1]), [Packed, Packed, One], "{ranks}");
            assert_eq!(chosen(&switch, ranks, &[64 * MIB, GIB]), [Direct, Direct], "{ranks}");
        }
        for ranks in [2, 4, 8] {
            assert_eq!(scattered(&switch, ranks, 64 * KIB), Packed);
            assert_eq!(scattered(&switch, ranks, MIB), One);
        }
        // More to hide, more slices; and none where there is nothing to hide.
        let slices = |ranks, bytes| switch.explain_broadcast(ranks, bytes, Direct).unwrap().plan.rounds;
        assert_eq!((slices(8, MIB), slices(2, GIB)), (1, 1));
        assert!((4..=16).contains(&slices(8, 64 * MIB)) && (20..=45).contains(&slices(8, GIB)), "{}", slices(8, GIB));
    }

    /// Whose memory is not coherent while kernels run, so that two stages go by payload. Packets were never measured there.
    #[test]
    fn a_mesh_of_8() {
        let incoherent = Facts { coherent: false, coherent_as_is: false, ..facts(0) };
        let mesh = Planner::new(incoherent, Topology::mesh(48_000_000_000));
        assert_eq!(chosen(&mesh, 8, &[KIB, 64 * KIB, 16 * MIB, GIB]), [One, One, Staged, Staged]);
        assert_eq!(chosen(&mesh, 2, &[KIB, GIB]), [One, One]);
        assert_eq!(scattered(&mesh, 8, KIB), One);
        // In coherent buffers it can be asked for; whether all outputs are such is not known to who chooses.
        let by_option = Facts { coherent: true, ..incoherent };
        let mesh = Planner::new(by_option, Topology::mesh(48_000_000_000));
        let why = mesh.explain_broadcast(8, GIB, Algorithm::Auto).unwrap();
        assert_eq!(why.plan.algorithm, Staged);
        let (_, reason) = why.left_out.iter().find(|(algorithm, _)| *algorithm == Direct).unwrap();
        assert!(reason.contains("not coherent"), "{reason}");
        // Each link has as many blocks.
        assert_eq!(mesh.explain_broadcast(8, GIB, Direct).unwrap().plan.blocks % 7, 0);
    }

    /// Where all share one way, a second stage moves as much and waits once more.
    #[test]
    fn one_stage_where_one_way_or_one_memory_is_shared() {
        let sizes = [KIB, 64 * KIB, MIB, 64 * MIB, GIB];
        for topology in
            [Topology::bus(25_000_000_000), Topology::device(3_500_000_000_000), Topology::host(10_000_000_000)]
        {
            let planner = Planner::new(facts(0), topology);
            for ranks in [2, 4, 8] {
                assert_eq!(chosen(&planner, ranks, &sizes), [One; 5], "{ranks} ranks: {topology}");
                let slices = planner.explain_broadcast(ranks, GIB, Direct).unwrap().plan.rounds;
                assert_eq!(slices, 1, "{ranks} ranks: {topology}");
            }
        }
        // Packets among ranks that share a device, as measured.
        let device = Planner::new(facts(16 * KIB), Topology::device(3_500_000_000_000));
        for ranks in [2, 4, 8] {
            assert_eq!(chosen(&device, ranks, &[KIB, 16 * KIB, 16 * KIB + 1]), [Packed, Packed, One], "{ranks}");
        }
    }

    fn row(ranks: usize, bytes_up_to: u64, algorithm: Option<Algorithm>, blocks: Option<u32>) -> TuningRow {
        TuningRow {
            bytes_up_to: Some(bytes_up_to),
            algorithm,
            blocks,
            ..TuningRow::new("device *", Placement::Apart, ranks, Tuned::Broadcast)
        }
    }

    /// A row overrules the model, for what it is for; the smallest that is large enough.
    #[test]
    fn rows_decide_first() {
        let rows =
            [row(8, MIB, Some(Staged), Some(2)), row(8, 4 * KIB, Some(One), None), row(8, 4 * MIB, None, Some(3))];
        let tuning = Tuning::from_rows("mine", rows).unwrap();
        let names = ["device 0".into(), "device 1".into()];
        let planner = Planner::new(facts(64 * KIB), Topology::switch(374_000_000_000)).tuning(&tuning, &names);
        assert_eq!(chosen(&planner, 8, &[KIB, 64 * KIB, MIB]), [One, Staged, Staged]);
        let why = planner.explain_broadcast(8, MIB, Algorithm::Auto).unwrap();
        assert_eq!((why.plan.blocks, &why.reason), (2, &Reason::Row { source: "mine".into(), line: 0 }));
        assert!(why.others.iter().all(|other| other.plan.algorithm != Staged));
        // One that leaves the algorithm to the model.
        let why = planner.explain_broadcast(8, 2 * MIB, Algorithm::Auto).unwrap();
        assert_eq!((why.plan.blocks, &why.reason), (3, &Reason::Model));
        // Neither for other sizes, ranks or names, nor where the caller says how.
        assert_eq!(planner.explain_broadcast(8, 64 * MIB, Algorithm::Auto).unwrap().plan.algorithm, Direct);
        assert_eq!(planner.explain_broadcast(4, KIB, Algorithm::Auto).unwrap().plan.algorithm, Packed);
        assert_eq!(planner.explain_broadcast(8, MIB, One).unwrap().reason, Reason::Asked);
        let elsewhere = ["device 0".into(), "another".into()];
        let planner = Planner::new(facts(64 * KIB), Topology::switch(374_000_000_000)).tuning(&tuning, &elsewhere);
        assert_eq!(planner.explain_broadcast(8, KIB, Algorithm::Auto).unwrap().plan.algorithm, Packed);
    }

    /// A row whose algorithm cannot be has no say.
    #[test]
    fn a_row_that_does_not_fit_is_passed_over() {
        let tuning = Tuning::from_rows("mine", [row(8, GIB, Some(Packed), None)]).unwrap();
        let planner = Planner::new(facts(0), Topology::switch(374_000_000_000)).tuning(&tuning, &["device 0".into()]);
        assert_eq!(chosen(&planner, 8, &[64 * KIB, GIB]), [Packed, Direct]);
        assert_eq!(planner.explain_broadcast(8, GIB, Algorithm::Auto).unwrap().reason, Reason::Model);
    }

    /// Devices reach what their file says, unless what stands before it knows better.
    #[test]
    fn files_know_what_devices_reach() {
        let read = |text: &str| Tuning::parse(&format!("version = 1\n{text}"), "f").unwrap();
        let measured =
            read("[[device]]\nname = \"d*\"\nplacement = \"apart\"\nrate = 5\n[[device]]\nname = \"x\"\nrate = 6");
        let own = read("[[device]]\nname = \"d1\"\nwiring = \"mesh\"\nflight_ns = 7");
        let found = |tuning: &Tuning| Planner::new(facts(0), Topology::bus(1)).tuning(tuning, &["d1".into()]).topology;
        assert_eq!(found(&measured), Topology { rate: 5, both_ways: 10, ..Topology::bus(1) });
        let both = found(&own.over(measured));
        assert_eq!((both.wiring.name(), both.flight_ns, both.rate), ("mesh", 7, Topology::of(both.wiring).rate));
    }

    #[test]
    fn an_explanation_says_what_why_and_what_else() {
        let planner = Planner::new(facts(64 * KIB), Topology::switch(374_000_000_000));
        let text = planner.explain_broadcast(8, GIB, Algorithm::Auto).unwrap().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "broadcast of 1073741824 bytes, 8 ranks: switch, 374.0 GB/s a device and direction");
        assert!(lines[1].starts_with("chosen: two-stage-direct, 32 blocks, "), "{}", lines[1]);
        assert!(lines[1].ends_with(" slices, since the model has it fastest"), "{}", lines[1]);
        assert!(lines[2].starts_with("  two-stage-direct  30"), "{}", lines[2]);
        assert!(lines[2].contains(" us = launch 2.4 + peers 1.1 + flags "), "{}", lines[2]);
        assert!(lines[3].contains("(runner-up: two-stage-staged, 32 blocks, 128 rounds)"), "{}", lines[3]);
        assert!(lines[5].starts_with("  low-latency       not weighed: "), "{}", lines[5]);
        assert_eq!(planner.explain_broadcast(1, 5, Algorithm::Auto).unwrap().reason, Reason::Alone);
        assert_eq!(planner.explain_broadcast(2, 5, Algorithm::Auto).unwrap().reason, Reason::Model);
        let chosen = |ranks, bytes, algorithm| planner.explain_broadcast(ranks, bytes, algorithm).unwrap().to_string();
        assert!(chosen(2, GIB, Direct).contains(" blocks, 1 slice, since it was asked for"));
        assert!(chosen(3, KIB, Staged).contains("chosen: two-stage-staged, 1 block, 1 round, since it was asked for"));
    }

    #[test]
    fn nonsense_is_refused() {
        let planner = Planner::new(facts(0), Topology::switch(0));
        for ranks in [0, 65] {
            assert!(matches!(planner.explain_broadcast(ranks, 1, Algorithm::Auto), Err(Error::InvalidArgument { .. })));
            let scattered = planner.explain_reduce_scatter(ranks, 1, DType::F32, Algorithm::Auto);
            assert!(matches!(scattered, Err(Error::InvalidArgument { argument: "ranks", .. })));
        }
        let huge = planner.explain_reduce_scatter(2, u64::MAX, DType::F32, Algorithm::Auto);
        assert!(matches!(huge, Err(Error::InvalidArgument { argument: "count", .. })));
        assert!(matches!(planner.explain_reduce_scatter(2, 8, DType::F32, Direct), Err(Error::Unsupported { .. })));
        // No rate, no time, all bytes there are: no panic, and a plan.
        for bytes in [0, 1, u64::MAX] {
            for ranks in [1, 2, 3, 64] {
                planner.explain_broadcast(ranks, bytes, Algorithm::Auto).unwrap();
            }
        }
    }

    /// Slices cover the message, whole tiles each but for the last.
    #[test]
    fn slices_cover_the_message() {
        let planner = Planner::new(
            facts(0),
            Topology { flight_ns: 0, read_ns: 0, release_ns: 1, ..Topology::switch(1_000_000_000) },
        );
        for bytes in [0, 1, MIB, 100 * MIB + 3, GIB, u64::MAX] {
            for ranks in [2, 3, 8, 64] {
                let plan = planner.explain_broadcast(ranks, bytes, Direct).unwrap().plan;
                assert!((1..=64).contains(&plan.rounds), "{plan}");
                assert!(u128::from(plan.segment) * u128::from(plan.rounds) >= u128::from(bytes), "{plan}");
                assert!(
                    plan.rounds == 1
                        || (plan.segment * u64::from(plan.rounds - 1) < bytes && plan.segment.is_multiple_of(16)),
                    "{plan}"
                );
            }
        }
    }
}
