//! `crossccl tune`: measures what algorithms and numbers of blocks take on this machine, and writes the best of each size
//! as rows that communicators read.
//!
//! Every point that is measured goes into a file beside the one that will be written, whole each time: a run that was
//! interrupted goes on where it was. The rows are written at the end, and what was measured is deleted.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Parser};
use crossccl::{
    Algorithm, Backend, BackendKind, Communicator, MAX_BLOCKS, MAX_RANKS, Placement, Tuned, Tuning, TuningRow,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::{Clock, Defaults, PerfCommand, cases::Case, job, job::Place, verify};
use super::{
    drive::Caller,
    job::{Bench, BroadcastJob, Job, ReduceScatterJob},
    timing::{Caches, Timing},
};
use crate::{
    backend::{builder, with_backend},
    error::CliError,
    size,
    whole_file::{WholeFile, kind},
};

const HELP: &str = "\
Examples:
  crossccl tune --ranks 4 --output mine.toml
  crossccl tune --backend cuda --ranks 2 --graph --cold --blocks 16,32,64
  CROSSCCL_TUNING=mine.toml crossccl perf broadcast --ranks 4 --explain

Rows are for so many ranks on devices of this name. What is larger than --max-bytes stays the cost model's.";

/// Sizes are those of a broadcast's message, or of each rank's whole input of a reduce-scatter (f32, sum).
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TuneArguments {
    /// What kind of devices: cpu, cuda or rocm
    #[arg(long, default_value = "cpu")]
    backend: BackendKind,
    /// Number of ranks, on devices 0, 1, 2, ...
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=MAX_RANKS as i64))]
    ranks: u32,
    /// Let ranks share devices where there are fewer devices than ranks
    #[arg(long)]
    virtual_ranks: bool,
    /// The smallest size: bytes, or with a suffix K, M or G (powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = size::parse)]
    min_bytes: u64,
    /// The size that is not exceeded
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    max_bytes: u64,
    /// From each size to the next
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// Numbers of blocks to try, like 16,32,64, besides what the device prefers
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MAX_BLOCKS as i64))]
    blocks: Vec<u32>,
    /// Timed calls of each point, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Calls before them that are not timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// What takes the time of a call, as for perf
    #[arg(long, value_name = "HOW")]
    time: Option<Clock>,
    /// As --time graph
    #[arg(long, conflicts_with = "time")]
    graph: bool,
    /// Inputs and outputs lie in no cache when a call begins
    #[arg(long)]
    cold: bool,
    /// By how much another algorithm or number of blocks must be faster than what is chosen now, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    margin: u32,
    /// The file for the rows
    #[arg(long, value_name = "FILE", default_value = "crossccl-tuning.toml")]
    output: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    force: bool,
    /// Measure all of it anew, whatever an interrupted run has left
    #[arg(long)]
    restart: bool,
}

/// What is measured at once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Point {
    collective: String,
    bytes: u64,
    algorithm: String,
    blocks: Option<u32>,
}

/// What a run is about: another one's points are not its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Subject {
    version: String,
    device: String,
    placement: String,
    ranks: u32,
    how: String,
}

/// What was measured so far.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    subject: Subject,
    points: Vec<(Point, f64)>,
}

pub(crate) fn run(arguments: &TuneArguments) -> Result<(), CliError> {
    if !arguments.force && arguments.output.exists() {
        let output = arguments.output.display();
        return Err(CliError::Usage(format!("tune: {output} is there already; give another --output, or --force")));
    }
    // What cannot be written is told before the work; the file is begun when there are rows.
    drop(WholeFile::create("--output", &arguments.output)?);
    with_backend!(arguments.backend, Chosen => tune::<Chosen>(arguments))
}

fn tune<B: Backend>(arguments: &TuneArguments) -> Result<(), CliError> {
    let ranks = arguments.ranks as usize;
    let comm = builder::<B>(ranks, arguments.virtual_ranks)?.build().map_err(CliError::from)?;
    let (device, placement) = devices(&comm)?;
    let clock = if arguments.graph { Some(Clock::Graph) } else { arguments.time };
    let how = format!(
        "time by {}, {} calls after {} to warm up, {}",
        clock.map_or("the backend's own clock", Clock::name),
        arguments.iters,
        arguments.warmup,
        if arguments.cold { "cold" } else { "hot" }
    );
    let subject = Subject {
        version: env!("CARGO_PKG_VERSION").into(),
        device: device.clone(),
        placement: placement.name().into(),
        ranks: arguments.ranks,
        how,
    };
    let points = points(arguments, &comm)?;
    // Before hours of work; and once more before each, since others take memory too.
    let streams: Vec<_> = (0..comm.ranks()).filter_map(|rank| comm.stream(rank)).cloned().collect();
    for collective in [Tuned::Broadcast, Tuned::ReduceScatter] {
        let command = parsed(arguments, collective, &[])?;
        for case in command.cases()? {
            Bench::<B>::new(&streams, &case, 0, 1)?.fits(&command.counts(&case))?;
        }
    }
    let beside = beside(&arguments.output);
    let mut measured = Measured { subject, points: Vec::new() };
    if !arguments.restart {
        measured.points = left(&beside, &measured.subject)?;
    }
    let mut times: BTreeMap<Point, f64> = measured.points.iter().cloned().collect();
    let again = points.iter().filter(|point| times.contains_key(point)).count();
    if again > 0 {
        eprintln!("crossccl: goes on: {again} of {} points are in {}", points.len(), beside.display());
    }

    let bar = ProgressBar::new(points.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (another {eta})") {
        bar.set_style(style);
    }
    bar.set_position(again as u64);
    for point in &points {
        if times.contains_key(point) {
            continue;
        }
        bar.set_message(format!("{} {} {}", point.collective, point.bytes, point.algorithm));
        let time = measure(arguments, &comm, point).map_err(|error| {
            bar.finish_and_clear();
            match measured.points.len() {
                0 => error,
                n => error.and(&format!(
                    " (tune: {n} points are kept in {}; the same command goes on from there, also with a lower \
                     --max-bytes)",
                    beside.display()
                )),
            }
        })?;
        times.insert(point.clone(), time);
        measured.points.push((point.clone(), time));
        keep(&beside, &measured)?;
        bar.inc(1);
    }
    bar.finish_and_clear();

    let rows = rows(arguments, &comm, &points, &times, &device, placement)?;
    let tuning = Tuning::from_rows("the rows measured", rows)?;
    let text = format!("{}{}", subject_line(&measured.subject), tuning.to_toml());
    write("--output", &arguments.output, text.as_bytes())?;
    // Another run shall begin anew.
    let _ = fs::remove_file(&beside);
    say(&format!("{} rows in {}\n", tuning.rows().count(), arguments.output.display()))
}

/// One line of a report, where who reads may have gone.
fn say(text: &str) -> Result<(), CliError> {
    let written = io::stdout().write_all(text.as_bytes());
    written.map_err(|e| CliError::Failure(format!("tune: cannot write to standard output: {e}")))
}

/// A pattern for the names of the ranks' devices, and whether each rank has its own.
fn devices<B: Backend>(comm: &Communicator<B>) -> Result<(String, Placement), CliError> {
    let (mut names, mut devices) = (Vec::new(), Vec::<B::Device>::new());
    for stream in (0..comm.ranks()).filter_map(|rank| comm.stream(rank)) {
        let device = B::device_of(stream);
        let properties = B::properties(&device, comm.ranks(), 1);
        let told = |f: crossccl::Fault| CliError::Failure(format!("tune: {} answered {} ({})", f.call, f.name, f.code));
        names.push(properties.map_err(told)?.name);
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    Ok((pattern(&names), Placement::of(devices.len() == comm.ranks())))
}

/// What names have in common at both ends, a star where they differ.
fn pattern(names: &[String]) -> String {
    let Some((first, others)) = names.split_first() else { return "*".into() };
    if others.iter().all(|name| name == first) {
        return first.clone();
    }
    let same = |a: &mut dyn Iterator<Item = char>, b: &mut dyn Iterator<Item = char>| {
        a.zip(b).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum::<usize>()
    };
    let head = others.iter().map(|name| same(&mut first.chars(), &mut name.chars())).min().unwrap_or(0);
    let rest = &first[head..];
    let tail = |name: &String| same(&mut rest.chars().rev(), &mut name[head..].chars().rev());
    let tail = others.iter().map(tail).min().unwrap_or(0);
    format!("{}*{}", &first[..head], &rest[rest.len() - tail..])
}

fn subject_line(subject: &Subject) -> String {
    let Subject { version, device, placement, ranks, how } = subject;
    format!("# crossccl {version} tune: {ranks} ranks, {placement}, on {device}; {how}\n").replace('\r', " ")
}

/// All that there is to measure, in the order in which it is: what may be chosen for each size.
fn points<B: Backend>(arguments: &TuneArguments, comm: &Communicator<B>) -> Result<Vec<Point>, CliError> {
    let algorithms = [Algorithm::OneStage, Algorithm::LowLatency, Algorithm::TwoStageDirect, Algorithm::TwoStageStaged];
    let mut points = Vec::new();
    for collective in [Tuned::Broadcast, Tuned::ReduceScatter] {
        let range = parsed(arguments, collective, &[])?;
        for case in range.cases()? {
            for algorithm in algorithms {
                for blocks in [None].into_iter().chain(arguments.blocks.iter().copied().map(Some)) {
                    let point = Point {
                        collective: collective.name().into(),
                        bytes: case.bytes,
                        algorithm: algorithm.to_string(),
                        blocks,
                    };
                    let command = command(arguments, &point)?;
                    // What does not fit is no candidate, nor are two stages where there is nobody for the second.
                    let stages = [Algorithm::TwoStageDirect, Algorithm::TwoStageStaged].contains(&algorithm);
                    if plan(comm, &command, &case).is_ok() && !(stages && comm.ranks() < 3) {
                        points.push(point);
                    }
                }
            }
        }
    }
    points.dedup();
    Ok(points)
}

fn plan<B: Backend>(comm: &Communicator<B>, command: &PerfCommand, case: &Case) -> crossccl::Result<crossccl::Plan> {
    match command {
        PerfCommand::Broadcast(a) => comm.plan_broadcast(case.count, case.dtype, a.what(case)),
        PerfCommand::ReduceScatter(a) => comm.plan_reduce_scatter(0, case.count, case.dtype, a.what(case)),
    }
}

/// What `perf` measures with these arguments.
fn parsed(arguments: &TuneArguments, collective: Tuned, more: &[String]) -> Result<PerfCommand, CliError> {
    let mut words: Vec<String> =
        ["perf", collective.name(), "--backend", arguments.backend.name()].map(String::from).into();
    let numbers = [
        ("--ranks", u64::from(arguments.ranks)),
        ("--min-bytes", arguments.min_bytes),
        ("--max-bytes", arguments.max_bytes),
        ("--factor", arguments.factor.into()),
        ("--iters", arguments.iters.into()),
        ("--warmup", arguments.warmup.into()),
    ];
    words.extend(numbers.into_iter().flat_map(|(name, number)| [name.into(), number.to_string()]));
    if let Some(clock) = arguments.time {
        words.extend(["--time".into(), clock.name().into()]);
    }
    let flags =
        [("--graph", arguments.graph), ("--cold", arguments.cold), ("--virtual-ranks", arguments.virtual_ranks)];
    words.extend(flags.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.into()));
    words.extend_from_slice(more);
    Defaults::try_parse_from(words).map(|defaults| defaults.command).map_err(|e| CliError::Usage(e.to_string()))
}

fn command(arguments: &TuneArguments, point: &Point) -> Result<PerfCommand, CliError> {
    let collective = if point.collective == Tuned::Broadcast.name() { Tuned::Broadcast } else { Tuned::ReduceScatter };
    let mut more = vec!["--algorithm".into(), point.algorithm.clone()];
    if let Some(blocks) = point.blocks {
        more.extend(["--max-blocks".into(), blocks.to_string()]);
    }
    parsed(arguments, collective, &more)
}

/// The median, in microseconds, of calls whose results are right.
fn measure<B: Backend>(arguments: &TuneArguments, comm: &Communicator<B>, point: &Point) -> Result<f64, CliError> {
    let command = command(arguments, point)?;
    let common = command.common();
    let cases = command.cases()?;
    let Some(case) = cases.iter().find(|case| case.bytes == point.bytes) else {
        return Err(CliError::Failure(format!("tune: {} bytes are none of the sizes", point.bytes)));
    };
    let streams: Vec<_> = (0..comm.ranks()).filter_map(|rank| comm.stream(rank)).cloned().collect();
    let mut caches = common.cold.then(|| Caches::new(&streams)).transpose()?;
    let timing = Timing::new(common.clock::<B>()?, common, case.bytes, caches.as_ref().map_or(0, |c| c.bytes));
    let bench = Bench::new(&streams, case, 0, timing.places())?;
    bench.fits(&command.counts(case))?;
    // As in the records: a broadcast in place on the root, a reduce-scatter out of place.
    let (mut job, place): (Box<dyn Job<B>>, Place) = match &command {
        PerfCommand::Broadcast(a) => (Box::new(BroadcastJob::new(bench, a.what(case))?), Place::In),
        PerfCommand::ReduceScatter(a) => {
            let job = ReduceScatterJob::new(bench, a.what(case), &a.extents(case.count), 0, a.members())?;
            (Box::new(job), Place::Out)
        }
    };
    job.prepare(place, job::TIMING)?;
    let mut times = timing.samples(Caller::OneCall(comm), &mut *job, place, &mut caches)?;
    let measured = verify(Caller::OneCall(comm), &mut *job, place, &mut times, timing.repeat, case.bytes)?;
    match measured.wrong() {
        0 => Ok(measured.time_us_p50),
        wrong => Err(CliError::Failure(format!(
            "tune: {wrong} elements of a {} of {} bytes by {} are wrong: nothing was written; run `crossccl perf` with that \
             algorithm",
            point.collective, point.bytes, point.algorithm
        ))),
    }
}

/// The best of each size, sizes with the same best together.
fn rows<B: Backend>(
    arguments: &TuneArguments,
    comm: &Communicator<B>,
    points: &[Point],
    times: &BTreeMap<Point, f64>,
    device: &str,
    placement: Placement,
) -> Result<Vec<TuningRow>, CliError> {
    let mut rows: Vec<TuningRow> = Vec::new();
    for collective in [Tuned::Broadcast, Tuned::ReduceScatter] {
        let range = parsed(arguments, collective, &[])?;
        for case in range.cases()? {
            let of = |point: &&Point| point.collective == collective.name() && point.bytes == case.bytes;
            let timed = points.iter().filter(of).filter_map(|point| Some((point, *times.get(point)?)));
            let timed: Vec<(&Point, f64)> = timed.collect();
            let chosen = plan(comm, &range, &case)?.algorithm.to_string();
            let default = timed.iter().find(|(point, _)| point.algorithm == chosen && point.blocks.is_none()).copied();
            let Some(mut best) = timed.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            if let Some(default) = default
                && best.1 * (1.0 + f64::from(arguments.margin) / 100.0) >= default.1
            {
                best = default;
            }
            let mut row = TuningRow::new(device, placement, arguments.ranks as usize, collective);
            row.bytes_up_to = Some(case.bytes);
            row.algorithm = best.0.algorithm.parse().ok();
            row.blocks = best.0.blocks;
            match rows.last_mut() {
                Some(last)
                    if (last.collective, last.algorithm, last.blocks) == (collective, row.algorithm, row.blocks) =>
                {
                    last.bytes_up_to = row.bytes_up_to;
                }
                _ => rows.push(row),
            }
        }
    }
    Ok(rows)
}

/// Where an interrupted run leaves what it has.
fn beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".measured");
    name.into()
}

/// The largest file of points that is read: more than any run leaves.
const MOST: u64 = 64 << 20;

/// What an interrupted run with the same subject has measured.
fn left(path: &Path, subject: &Subject) -> Result<Vec<(Point, f64)>, CliError> {
    let bad =
        |what: String| CliError::Usage(format!("tune: {}: {what}; --restart measures all of it anew", path.display()));
    // Before it is opened: opening a pipe waits for somebody who writes.
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(facts) if !facts.is_file() => return Err(bad(kind(&facts).into())),
        _ => {}
    }
    let file = fs::File::open(path).map_err(|e| bad(format!("cannot open it: {e}")))?;
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).map_err(|e| bad(format!("cannot read it: {e}")))?;
    let measured: Measured = serde_json::from_str(&text).map_err(|e| bad(format!("not what a run leaves: {e}")))?;
    if measured.subject != *subject {
        let what =
            format!("left by another run ({})", subject_line(&measured.subject).trim_start_matches("# ").trim_end());
        return Err(bad(what));
    }
    Ok(measured.points.into_iter().filter(|(_, time)| time.is_finite() && *time >= 0.0).collect())
}

fn keep(path: &Path, measured: &Measured) -> Result<(), CliError> {
    let text = serde_json::to_vec(measured);
    let text = text.map_err(|e| CliError::Failure(format!("tune: cannot write what was measured as JSON: {e}")))?;
    write("tune:", path, &text)
}

fn write(option: &str, path: &Path, content: &[u8]) -> Result<(), CliError> {
    let mut file = WholeFile::create(option, path)?;
    file.write(content)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_common() {
        let of = |names: &[&str]| pattern(&names.iter().map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(of(&["a b", "a b"]), "a b");
        assert_eq!(of(&["device 0 of 2", "device 1 of 2", "device 10 of 2"]), "device * of 2");
        assert_eq!(of(&["a", "b"]), "*");
        assert_eq!(of(&["aa", "a"]), "a*");
        assert_eq!(of(&["é1", "è1"]), "*1");
        assert_eq!(of(&[]), "*");
    }
}
