//! `crossccl perf`: time a collective over a range of sizes, and verify every element of its results.
//! Columns and definitions are those of nccl-tests.

// Without a backend, nothing of this is reached.
#![cfg_attr(not(feature = "cpu"), allow(dead_code, unused_variables))]

mod cases;
mod check;
mod drive;
mod explain;
mod job;
mod plot;
mod repeat;
mod report;
mod timing;
pub(crate) mod tune;
mod values;

use std::{io::Write as _, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Parser, Subcommand};
use crossccl::{Algorithm, Backend, BackendKind, Broadcast, DType, MAX_RANKS, ReduceOp, ReduceScatter};

use crate::{
    backend::{builder, with_backend},
    error::CliError,
    size, whole_file,
};
use cases::Case;
use check::{Part, Tally};
use drive::{Caller, Drive, Ranks};
use job::{Bench, BroadcastJob, Job, Place, ReduceScatterJob};
use plot::Plot;
use repeat::Repeat;
use report::{Document, Measured, Outcome, Report, Row};
use timing::{Caches, Timing};

const BROADCAST_HELP: &str = "\
Examples:
  crossccl perf broadcast
  crossccl perf broadcast --ranks 8 --root all --min-bytes 8 --max-bytes 1G --factor 2
  crossccl perf broadcast --algorithm two-stage --dtype all --min-bytes 1M --max-bytes 1M --json broadcast.json";

const REDUCE_SCATTER_HELP: &str = "\
Examples:
  crossccl perf reduce-scatter
  crossccl perf reduce-scatter --dtype bf16 --op average --ranks 8 --group-size 4
  crossccl perf reduce-scatter --dtype all --op all --min-bytes 1000 --max-bytes 1000 --unalign 1
  crossccl perf reduce-scatter --shape 1024x513 --axis 1 --out-of-place

The size is that of one rank's whole input.";

#[derive(Debug, Args)]
pub(crate) struct PerfArguments {
    #[command(subcommand)]
    command: Option<PerfCommand>,
    /// Draw time (p50) and bus bandwidth over size into this file, too. A run for a picture has up to 8
    /// series: combinations of dtype, op, root, algorithm and place
    #[arg(long, value_name = "FILE.svg", global = true)]
    plot: Option<PathBuf>,
}

/// For the defaults of each command, which clap knows.
#[derive(Debug, Parser)]
struct Defaults {
    #[command(subcommand)]
    command: PerfCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Measure broadcast
    #[command(after_help = BROADCAST_HELP)]
    Broadcast(BroadcastArguments),
    /// Measure reduce-scatter
    #[command(after_help = REDUCE_SCATTER_HELP)]
    ReduceScatter(ReduceScatterArguments),
}

#[derive(Debug, Args)]
pub(crate) struct BroadcastArguments {
    /// The rank whose data goes to all: a number, or `all` for each in turn
    #[arg(long, value_name = "RANK", default_value = "0", value_parser = parse_root)]
    root: Choice<usize>,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ReduceScatterArguments {
    /// How to combine: sum, average (or avg), min, max, product (or prod), or `all` for each in turn
    #[arg(long, default_value = "sum", value_parser = parse_choice::<ReduceOp>)]
    op: Choice<ReduceOp>,
    /// Ranks of a group; must divide the number of ranks [default: all ranks are one group]
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
    /// The shape of each rank's input, like 1024x512: one size only [default: one axis]
    #[arg(long, value_parser = parse_shape, conflicts_with_all = ["min_bytes", "max_bytes", "factor"])]
    shape: Option<Shape>,
    /// The axis to cut, counted from 0
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    axis: i64,
    #[command(flatten)]
    common: CommonArguments,
}

/// What both collectives have.
#[derive(Debug, Args)]
pub(crate) struct CommonArguments {
    /// What kind of devices: cpu, cuda or rocm
    #[arg(long, default_value = "cpu")]
    backend: BackendKind,
    /// Number of ranks, on devices 0, 1, 2, ...
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64))]
    ranks: u32,
    /// Element type: f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64, or `all` for each in turn
    #[arg(long, default_value = "f32", value_parser = parse_choice::<DType>)]
    dtype: Choice<DType>,
    /// auto, one-stage, two-stage, two-stage-staged, two-stage-direct or low-latency
    #[arg(long, default_value = "auto")]
    algorithm: Algorithm,
    /// The smallest size: bytes, or with a suffix K, M or G (powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = size::parse)]
    min_bytes: u64,
    /// The size that is not exceeded
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    max_bytes: u64,
    /// From each size to the next
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// Timed calls of each size [default: at least 20, until the median is stable]. The table's p50 is their median: half
    /// of them took at most this long; p99 is what 99 of 100 took at most, so with fewer than 100 calls the longest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// The median is stable when its 95 % confidence interval lies within so many percent of it on both sides
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = parse_percent, conflicts_with = "iters")]
    within: f64,
    /// Seconds of calls of each size, or 10000 calls, after which the median counts as it is; below the table stands which
    /// were not stable. 20 calls are made in any case
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = parse_timeout, conflicts_with = "iters")]
    max_time: Duration,
    /// Calls before them that are not timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// What takes the time of a call: the host, from the call to the end of its wait; events on the devices, the
    /// slowest rank's; or graphs of many calls and of few, whose difference has no launch in it [default: events on
    /// backends that have them, host on the others]
    #[arg(long, value_name = "HOW")]
    time: Option<Clock>,
    /// As --time graph
    #[arg(long, conflicts_with = "time")]
    graph: bool,
    /// Who calls: one thread for all ranks in one call; a thread a rank, each at its own pace; or inline, a thread a rank
    /// that runs the rank's blocks itself, where the backend has such streams (cpu). Of threads, up to 40 calls in a row
    /// are timed by the host, from the first rank to begin to the last to end, and divided
    #[arg(long, value_name = "HOW", default_value = "one-call")]
    drive: Drive,
    /// Inputs and outputs lie in no cache when a call begins [default: they are what the call before used]
    #[arg(long)]
    cold: bool,
    /// Measure in place only [default: both]
    #[arg(long)]
    in_place: bool,
    /// Measure out of place only [default: both]
    #[arg(long)]
    out_of_place: bool,
    /// Elements between the start of each allocation and the data
    #[arg(long, value_name = "N", default_value_t = 0)]
    unalign: usize,
    /// The most blocks of each rank's launch [default: the library chooses]
    #[arg(long, value_name = "N")]
    max_blocks: Option<u32>,
    /// Let ranks share devices where there are fewer devices than ranks
    #[arg(long)]
    virtual_ranks: bool,
    /// Seconds that a rank waits for another before the call fails
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_timeout)]
    timeout: Duration,
    /// Write configuration and results to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure nothing: print for each size what would be done, why (a tuning row, or what the cost model says that it
    /// takes, in microseconds), and what else there is, the runner-up first
    #[arg(long, conflicts_with = "json")]
    explain: bool,
}

/// What takes the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Clock {
    Host,
    Events,
    Graph,
}

impl Clock {
    /// What the head of the table and the JSON document call it.
    fn name(self) -> &'static str {
        match self {
            Clock::Host => "host",
            Clock::Events => "events",
            Clock::Graph => "graph",
        }
    }
}

/// One value, or every one in turn.
#[derive(Clone, Copy, Debug)]
enum Choice<T> {
    One(T),
    All,
}

impl<T: Copy> Choice<T> {
    fn values(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        match self {
            Choice::One(value) => vec![value],
            Choice::All => all.into_iter().collect(),
        }
    }
}

fn parse_choice<T: FromStr<Err = String>>(text: &str) -> Result<Choice<T>, String> {
    match text {
        "all" => Ok(Choice::All),
        _ => text.parse().map(Choice::One).map_err(|e| format!("{e}, or all")),
    }
}

fn parse_root(text: &str) -> Result<Choice<usize>, String> {
    match text {
        "all" => Ok(Choice::All),
        _ => text.parse().map(Choice::One).map_err(|_| format!("`{text}` is not a rank; give a number from 0, or all")),
    }
}

/// The extents of a tensor.
#[derive(Clone, Debug)]
struct Shape(Vec<usize>);

fn parse_shape(text: &str) -> Result<Shape, String> {
    let extents = text.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
    extents.map(Shape).map_err(|_| format!("`{text}` is not a shape; give extents joined by x, like 1024x512"))
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|p: &f64| p.is_finite() && *p > 0.0);
    percent.ok_or_else(|| format!("`{text}` is not a part of the median; give percent above 0, like 2.5"))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let limit = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|d| !d.is_zero());
    limit.ok_or_else(|| format!("`{text}` is not a time limit; give seconds above 0, like 2.5"))
}

impl CommonArguments {
    fn clock<B: Backend>(&self) -> Result<Clock, CliError> {
        let asked = if self.graph { Some(Clock::Graph) } else { self.time };
        if self.drive != Drive::OneCall {
            let drive = self.drive.name();
            return match asked {
                _ if self.drive == Drive::Inline && !B::INLINE => Err(CliError::Usage(format!(
                    "perf: the {} backend has no inline streams; use --drive thread-a-rank",
                    B::NAME
                ))),
                None | Some(Clock::Host) => Ok(Clock::Host),
                Some(_) => Err(CliError::Usage(format!(
                    "perf: --drive {drive} is timed by the host; leave out --time and --graph, or --drive"
                ))),
            };
        }
        let has = |clock| match clock {
            Clock::Host => true,
            Clock::Events => B::TIMED,
            Clock::Graph => B::GRAPHS,
        };
        match asked {
            None => Ok(if B::TIMED { Clock::Events } else { Clock::Host }),
            Some(clock) if has(clock) => Ok(clock),
            Some(clock) => Err(CliError::Usage(format!(
                "perf: the {} backend has no {}; leave it to the host (--time host)",
                B::NAME,
                if clock == Clock::Events { "events that take the time" } else { "graphs" },
            ))),
        }
    }

    fn repeat(&self) -> Repeat {
        match self.iters {
            Some(times) => Repeat::Times(times),
            None => Repeat::UntilStable { within: self.within, most: self.max_time },
        }
    }

    /// Out of place and in place, as asked for.
    fn places(&self) -> [bool; 2] {
        [self.out_of_place || !self.in_place, self.in_place || !self.out_of_place]
    }
}

impl PerfCommand {
    fn name(&self) -> &'static str {
        match self {
            PerfCommand::Broadcast(_) => "broadcast",
            PerfCommand::ReduceScatter(_) => "reduce-scatter",
        }
    }

    fn common(&self) -> &CommonArguments {
        match self {
            PerfCommand::Broadcast(a) => &a.common,
            PerfCommand::ReduceScatter(a) => &a.common,
        }
    }

    /// Elements of each buffer of a case, of which a plan was made.
    fn counts(&self, case: &Case) -> Vec<usize> {
        let ranks = self.common().ranks as usize;
        match self {
            PerfCommand::Broadcast(_) => vec![case.count; ranks + 1],
            PerfCommand::ReduceScatter(a) => {
                let (shape, axis, members) = (a.extents(case.count), a.axis as usize, a.members());
                let parts = (0..ranks).map(|rank| Part::new(&shape, axis, members, rank % members).count());
                std::iter::repeat_n(case.count, ranks).chain(parts).collect()
            }
        }
    }

    /// Everything that will be measured, in order.
    fn cases(&self) -> Result<Vec<Case>, CliError> {
        let common = self.common();
        let ranks = common.ranks as usize;
        let (ops, roots, shape) = match self {
            PerfCommand::Broadcast(a) => (vec![None], a.root.values(0..ranks).into_iter().map(Some).collect(), None),
            PerfCommand::ReduceScatter(a) => {
                (a.op.values(ReduceOp::ALL).into_iter().map(Some).collect(), vec![None], a.shape.as_ref())
            }
        };
        let sizes = match shape {
            Some(shape) => cases::Sizes::Elements(cases::elements(&shape.0)?),
            None => cases::Sizes::bytes(common.min_bytes, common.max_bytes, common.factor.into())?,
        };
        cases::all(&common.dtype.values(DType::ALL), &ops, &roots, &sizes)
    }
}

impl BroadcastArguments {
    fn what(&self, case: &Case) -> Broadcast {
        let what = Broadcast::from_root(case.root.unwrap_or(0)).algorithm(self.common.algorithm);
        match self.common.max_blocks {
            Some(blocks) => what.max_blocks(blocks),
            None => what,
        }
    }
}

impl ReduceScatterArguments {
    fn what(&self, case: &Case) -> ReduceScatter {
        let mut what = ReduceScatter::new(case.op.unwrap_or(ReduceOp::Sum))
            .algorithm(self.common.algorithm)
            .shape(self.extents(case.count))
            .axis(self.axis)
            .group_size(self.members());
        if let Some(blocks) = self.common.max_blocks {
            what = what.max_blocks(blocks);
        }
        what
    }

    fn extents(&self, count: usize) -> Vec<usize> {
        self.shape.as_ref().map_or_else(|| vec![count], |s| s.0.clone())
    }

    fn members(&self) -> usize {
        self.group_size.unwrap_or(self.common.ranks as usize)
    }
}

pub(crate) fn run(arguments: &PerfArguments) -> Result<(), CliError> {
    let both = match &arguments.command {
        Some(_) => Vec::new(),
        None => ["broadcast", "reduce-scatter"]
            .into_iter()
            .map(|name| Defaults::try_parse_from(["perf", name]).map(|defaults| defaults.command))
            .collect::<Result<_, _>>()
            .map_err(|e| CliError::Usage(e.to_string()))?,
    };
    let commands = arguments.command.iter().chain(&both);
    let json = arguments.command.as_ref().and_then(|command| command.common().json.as_deref());
    if let (Some(json), Some(plot)) = (json, arguments.plot.as_deref())
        && whole_file::same_name(json, plot)
    {
        return Err(CliError::Usage(format!(
            "perf: --json {} and --plot {} are one file; give another name to one of them",
            json.display(),
            plot.display()
        )));
    }
    if arguments.plot.is_some() && arguments.command.as_ref().is_some_and(|command| command.common().explain) {
        return Err(CliError::Usage("perf: --explain measures nothing to draw; leave out --plot".into()));
    }
    let plot = arguments.plot.as_deref().map(Plot::create).transpose()?;
    let (mut documents, mut failure): (Vec<Document>, _) = (Vec::new(), None);
    for command in commands {
        match run_one(command, plot.is_some()) {
            Ok(Some(outcome)) => {
                documents.push(outcome.document);
                failure = outcome.failure;
            }
            Ok(None) => {}
            Err(error) => failure = Some(error),
        }
        if failure.is_some() {
            break;
        }
    }
    // Nobody shall show a picture of wrong results around, nor one of nothing.
    documents.retain(|document| !document.rows.is_empty());
    let right = documents.iter().all(|document| document.wrong == 0);
    let drawn = match plot {
        Some(plot) if right && !documents.is_empty() => plot.write(&documents),
        _ => Ok(()),
    };
    failure.map_or(drawn, Err)
}

/// Nothing where nothing was to be measured.
fn run_one(command: &PerfCommand, plotted: bool) -> Result<Option<Outcome>, CliError> {
    with_backend!(command.common().backend, Chosen => measure::<Chosen>(command, plotted))
}

/// A failure before anything is measured is an error, a later one a part of the outcome.
fn measure<B: Backend>(command: &PerfCommand, plotted: bool) -> Result<Option<Outcome>, CliError> {
    let common = command.common();
    let cases = command.cases()?;
    let clock = common.clock::<B>()?;
    let comm = builder::<B>(common.ranks as usize, common.virtual_ranks)?
        .timeout(common.timeout)
        .inline_streams(common.drive == Drive::Inline)
        .build()
        .map_err(CliError::from)?;
    if common.explain {
        let text = explain::explain(&comm, command, &cases)?;
        let written = std::io::stdout().write_all(text.as_bytes());
        return written
            .map(|()| None)
            .map_err(|e| CliError::Failure(format!("perf: cannot write to standard output: {e}")));
    }

    // What the library refuses, it refuses before anything is measured.
    let plans = (cases.iter())
        .map(|case| match command {
            PerfCommand::Broadcast(a) => comm.plan_broadcast(case.count, case.dtype, a.what(case)),
            PerfCommand::ReduceScatter(a) => comm.plan_reduce_scatter(0, case.count, case.dtype, a.what(case)),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let [out_of_place, mut in_place] = common.places();
    if let PerfCommand::ReduceScatter(a) = command
        && a.axis != 0
    {
        if !out_of_place {
            return Err(CliError::Usage(format!(
                "perf reduce-scatter: in place is offered along axis 0 only, not along axis {}; leave out --in-place",
                a.axis
            )));
        }
        if in_place {
            eprintln!("crossccl: in place is offered along axis 0 only: its columns show `-`");
        }
        in_place = false;
    }

    let rows: Vec<Row> = cases.iter().zip(&plans).map(|(case, plan)| Row::new(case, plan)).collect();
    if plotted {
        Plot::check(command.name(), &rows, [out_of_place, in_place])?;
    }
    let mut report = Report::start::<B>(command, clock, &rows)?;
    let streams: Vec<_> = (0..comm.ranks()).filter_map(|rank| comm.stream(rank)).cloned().collect();
    let mut ranks = Ranks::new(comm, common.drive);
    let mut caches = common.cold.then(|| Caches::new(&streams)).transpose()?;
    let (mut refused, mut failure) = (Vec::new(), None);
    for (case, mut row) in cases.iter().zip(rows) {
        let timing = Timing::new(clock, common, case.bytes, caches.as_ref().map_or(0, |c| c.bytes));
        let bench = Bench::new(&streams, case, common.unalign, timing.places())?;
        // Others may fit: nothing was taken for this one.
        if let Err(error) = bench.fits(&command.counts(case)) {
            refused.push(error);
            continue;
        }
        let measured = measure_case(command, case, bench, &timing, &mut ranks, &mut caches, [out_of_place, in_place]);
        let (measured, ended) = measured;
        [row.out_of_place, row.in_place] = measured;
        // One place is worth a row.
        let told = if measured.iter().any(Option::is_some) { report.row(row) } else { Ok(()) };
        if let Some(error) = ended.or(told.err()) {
            let more = format!(
                " (perf {} of {} bytes of {}; {} rows before it are kept)",
                command.name(),
                case.bytes,
                case.dtype,
                report.rows()
            );
            failure = Some(error.and(&more));
            break;
        }
    }
    if failure.is_none() && !refused.is_empty() {
        let more =
            format!(" ({} of {} sizes of perf {} were not measured)", refused.len(), cases.len(), command.name());
        failure = refused.into_iter().next().map(|first| first.and(&more));
    }
    Ok(Some(report.finish(failure)))
}

/// What was measured of a case, out of place and in place, and what ended it early.
fn measure_case<B: Backend>(
    command: &PerfCommand,
    case: &Case,
    bench: Bench<'_, B>,
    timing: &Timing,
    ranks: &mut Ranks<B>,
    caches: &mut Option<Caches<B>>,
    wanted: [bool; 2],
) -> ([Option<Measured>; 2], Option<CliError>) {
    let mut measured = [None; 2];
    let all = || {
        let mut job: Box<dyn Job<B>> = match command {
            PerfCommand::Broadcast(a) => Box::new(BroadcastJob::new(bench, a.what(case))?),
            PerfCommand::ReduceScatter(a) => {
                // The plan was made: the axis is one of the shape.
                let (shape, axis) = (a.extents(case.count), a.axis as usize);
                Box::new(ReduceScatterJob::new(bench, a.what(case), &shape, axis, a.members())?)
            }
        };
        for (measured, (place, wanted)) in measured.iter_mut().zip([Place::Out, Place::In].into_iter().zip(wanted)) {
            if wanted {
                job.prepare(place, job::TIMING)?;
                let mut times = timing.samples(ranks.caller(), &mut *job, place, caches)?;
                *measured = Some(verify(ranks.caller(), &mut *job, place, &mut times, timing.repeat, case.bytes)?);
            }
        }
        Ok(())
    };
    let ended = all().err();
    (measured, ended)
}

/// Verifies one more call, on new inputs.
fn verify<B: Backend>(
    caller: Caller<'_, B>,
    job: &mut dyn Job<B>,
    place: Place,
    times: &mut [Duration],
    repeat: Repeat,
    bytes: u64,
) -> Result<Measured, CliError> {
    let source = job::verifying(place);
    job.prepare(place, source)?;
    match caller {
        Caller::OneCall(comm) => job.call(comm, place, 0)?.wait()?,
        Caller::Threads(ranks) => {
            drive::timed(ranks, job.calls(place), (0, 1), Repeat::Times(1), || Ok(()))?;
        }
    }
    let tally: Tally = job.verify(place, source)?;
    Ok(Measured::new(times, repeat, bytes, job.bus_factor(), tally))
}
