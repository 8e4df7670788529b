//! The table, row by row as it comes, and the JSON document.

use std::{
    io::{self, Write},
    num::NonZero,
    thread::available_parallelism,
    time::Duration,
};

use crossccl::{Backend, Plan};
use serde::Serialize;

use super::{
    Clock, PerfCommand,
    cases::Case,
    check::Tally,
    drive::Drive,
    repeat::{self, Repeat},
};
use crate::{error::CliError, whole_file::WholeFile};

/// One place of one row.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    /// Timed calls.
    pub(crate) calls: usize,
    /// Whether the median is as stable as was asked for. `None` where a number of calls was.
    pub(crate) stable: Option<bool>,
    pub(crate) time_us_p50: f64,
    /// The 95 % confidence interval of the median; too few calls have none.
    time_us_p50_interval: Option<(f64, f64)>,
    /// How far from the median it reaches.
    p50_within_percent: Option<f64>,
    time_us_p99: f64,
    time_us_min: f64,
    time_us_max: f64,
    /// 10^9 bytes a second, at the median.
    algbw_gb_per_s: f64,
    pub(crate) busbw_gb_per_s: f64,
    wrong: u64,
    checked: u64,
}

impl Measured {
    pub(crate) fn new(times: &mut [Duration], repeat: Repeat, bytes: u64, bus_factor: f64, tally: Tally) -> Self {
        times.sort_unstable();
        let in_us = |time: Duration| time.as_nanos() as f64 / 1e3;
        let us = |percent| in_us(percentile(times, percent));
        let median = us(50);
        let algbw = if median > 0.0 { bytes as f64 / median / 1e3 } else { 0.0 };
        Measured {
            calls: times.len(),
            stable: repeat.is_stable(times),
            time_us_p50: median,
            time_us_p50_interval: repeat::interval(times).map(|(low, high)| (in_us(low), in_us(high))),
            p50_within_percent: repeat::uncertainty(times),
            time_us_p99: us(99),
            time_us_min: us(0),
            time_us_max: us(100),
            algbw_gb_per_s: algbw,
            busbw_gb_per_s: algbw * bus_factor,
            wrong: tally.wrong,
            checked: tally.checked,
        }
    }

    /// Elements that are not what they should be.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong
    }

    fn tally(&self) -> Tally {
        Tally { wrong: self.wrong, checked: self.checked }
    }
}

/// The smallest of the sorted `times` that at least `percent` of them do not exceed.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> Duration {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    count: usize,
    pub(crate) dtype: &'static str,
    pub(crate) op: Option<&'static str>,
    pub(crate) root: Option<usize>,
    pub(crate) algorithm: &'static str,
    blocks: u32,
    rounds: u32,
    pub(crate) out_of_place: Option<Measured>,
    pub(crate) in_place: Option<Measured>,
}

impl Row {
    /// What is known before anything is measured.
    pub(crate) fn new(case: &Case, plan: &Plan) -> Self {
        Row {
            bytes: case.bytes,
            count: case.count,
            dtype: case.dtype.name(),
            op: case.op.map(|op| op.name()),
            root: case.root,
            algorithm: plan.algorithm.name(),
            blocks: plan.blocks,
            rounds: plan.rounds,
            out_of_place: None,
            in_place: None,
        }
    }
}

/// The columns of what is measured, and of how it went in each place: head, unit and least width. What is
/// longer moves what follows; a call of ten seconds does.
const CASE: [(&str, &str); 6] =
    [("size", "(B)"), ("elements", ""), ("type", ""), ("op", ""), ("root", ""), ("algorithm", "")];
const PLACE: [(&str, &str, usize); 5] =
    [("p50", "(us)", 7), ("p99", "(us)", 7), ("algbw", "(GB/s)", 6), ("busbw", "(GB/s)", 6), ("wrong", "", 5)];

/// The table of certain rows, as narrow as they allow: a terminal's width is soon spent.
#[derive(Debug)]
struct Table {
    /// Of [`CASE`].
    widths: [usize; 6],
}

impl Table {
    fn new(rows: &[Row]) -> Self {
        let mut widths = CASE.map(|(head, _)| head.len());
        // The sign of a comment stands before the head.
        widths[0] += 1;
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(Self::case(row)) {
                *width = cell.len().max(*width);
            }
        }
        Table { widths }
    }

    fn case(row: &Row) -> [String; 6] {
        let dash = || "-".to_owned();
        [
            row.bytes.to_string(),
            row.count.to_string(),
            row.dtype.into(),
            row.op.map_or_else(dash, str::to_owned),
            row.root.map_or_else(dash, |root| root.to_string()),
            row.algorithm.into(),
        ]
    }

    fn place(measured: &Option<Measured>) -> [String; 5] {
        let Some(m) = measured else { return [const { String::new() }; 5].map(|_| "-".into()) };
        [
            digits(m.time_us_p50, 2, 7),
            digits(m.time_us_p99, 2, 7),
            digits(m.algbw_gb_per_s, 3, 6),
            digits(m.busbw_gb_per_s, 3, 6),
            m.wrong.to_string(),
        ]
    }

    fn line<S: AsRef<str>>(&self, case: [S; 6], places: [[S; 5]; 2]) -> String {
        let widths = self.widths.into_iter().chain([PLACE, PLACE].concat().into_iter().map(|(_, _, width)| width));
        let cells = case.iter().chain(places.iter().flatten());
        let cells = cells.zip(widths).map(|(cell, width)| format!("{:>width$}", cell.as_ref()));
        cells.collect::<Vec<_>>().join(" ")
    }

    fn row(&self, row: &Row) -> String {
        self.line(Self::case(row), [&row.out_of_place, &row.in_place].map(Self::place))
    }

    fn head(&self) -> String {
        let heads = PLACE.map(|(head, _, _)| head);
        let units = PLACE.map(|(_, unit, _)| unit);
        let one: usize = PLACE.iter().map(|(_, _, width)| width + 1).sum();
        let case = self.widths.iter().map(|width| width + 1).sum::<usize>() - 1;
        let lines = [
            format!("{:case$}{:^one$}{:^one$}", "", "out-of-place", "in-place"),
            self.line(CASE.map(|(head, _)| head), [heads; 2]),
            self.line(CASE.map(|(_, unit)| unit), [units; 2]),
        ];
        lines.iter().map(|line| format!("#{}\n", line[1..].trim_end())).collect()
    }
}

/// A number with up to `decimals` behind the point, fewer where it would be longer than `width`.
fn digits(value: f64, decimals: usize, width: usize) -> String {
    let shorter = |decimals: &usize| format!("{value:.decimals$}").len() <= width;
    let decimals = (0..=decimals).rev().find(shorter).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// The JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    program: &'static str,
    pub(crate) version: &'static str,
    pub(crate) collective: &'static str,
    pub(crate) backend: &'static str,
    pub(crate) ranks: usize,
    pub(crate) cores: usize,
    /// One a rank.
    pub(crate) devices: Vec<String>,
    pub(crate) algorithm_asked: &'static str,
    pub(crate) group_size: Option<usize>,
    pub(crate) shape: Option<Vec<usize>>,
    pub(crate) axis: Option<i64>,
    pub(crate) unalign: usize,
    pub(crate) max_blocks: Option<u32>,
    timeout_s: f64,
    pub(crate) driven_by: &'static str,
    pub(crate) timed_by: &'static str,
    pub(crate) cold: bool,
    warmup: u32,
    /// Calls of each median; without it, until it is stable.
    pub(crate) iters: Option<u32>,
    within_percent: Option<f64>,
    max_time_s: Option<f64>,
    pub(crate) rows: Vec<Row>,
    pub(crate) wrong: u64,
    checked: u64,
    average_busbw_gb_per_s: f64,
    /// Why sizes that were asked for are not among the rows.
    pub(crate) failure: Option<String>,
}

/// What a run came to. What was measured before a failure is not lost with it.
pub(crate) struct Outcome {
    pub(crate) document: Document,
    pub(crate) failure: Option<CliError>,
}

pub(crate) struct Report {
    document: Document,
    drive: Drive,
    table: Table,
    json: Option<WholeFile>,
}

impl Report {
    /// Opens the JSON file, so that a path that cannot be written is told before the work, and prints the
    /// head of a table of `rows`.
    pub(crate) fn start<B: Backend>(command: &PerfCommand, clock: Clock, rows: &[Row]) -> Result<Self, CliError> {
        let common = command.common();
        let ranks = common.ranks as usize;
        let reduce_scatter = match command {
            PerfCommand::Broadcast(_) => None,
            PerfCommand::ReduceScatter(a) => Some(a),
        };
        let document = Document {
            program: "crossccl",
            version: env!("CARGO_PKG_VERSION"),
            collective: command.name(),
            backend: common.backend.name(),
            ranks,
            cores: available_parallelism().map_or(1, NonZero::get),
            devices: (0..ranks).map(|rank| device::<B>(rank, ranks)).collect(),
            algorithm_asked: common.algorithm.name(),
            group_size: reduce_scatter.map(|a| a.members()),
            shape: reduce_scatter.and_then(|a| a.shape.as_ref()).map(|s| s.0.clone()),
            axis: reduce_scatter.map(|a| a.axis),
            unalign: common.unalign,
            max_blocks: common.max_blocks,
            timeout_s: common.timeout.as_secs_f64(),
            driven_by: common.drive.name(),
            timed_by: clock.name(),
            cold: common.cold,
            warmup: common.warmup,
            iters: common.iters,
            within_percent: common.iters.is_none().then_some(common.within),
            max_time_s: common.iters.is_none().then_some(common.max_time.as_secs_f64()),
            rows: Vec::new(),
            wrong: 0,
            checked: 0,
            average_busbw_gb_per_s: 0.0,
            failure: None,
        };
        let json = common.json.as_deref().map(|path| WholeFile::create("--json", path)).transpose()?;
        let report = Report { document, drive: common.drive, table: Table::new(rows), json };
        print(&report.head())?;
        Ok(report)
    }

    fn head(&self) -> String {
        let d = &self.document;
        let mut text = format!("# crossccl {} perf {}\n", d.version, d.collective);
        text += &format!("# backend {}, {} ranks ({}), {} cores\n", d.backend, d.ranks, self.drive.told(), d.cores);
        for (rank, device) in d.devices.iter().enumerate() {
            text += &format!("#   rank {rank} on device {rank}: {device}\n");
        }
        text += &format!("# algorithm asked for: {}", d.algorithm_asked);
        if let (Some(group_size), Some(axis)) = (d.group_size, d.axis) {
            text += &format!(", groups of {group_size} ranks, axis {axis}");
        }
        if let Some(shape) = &d.shape {
            let extents: Vec<_> = shape.iter().map(usize::to_string).collect();
            text += &format!(" of {}", extents.join("x"));
        }
        text += &format!(", data {} elements into each buffer\n", d.unalign);
        let (clock, caches) = (d.timed_by, if d.cold { "cold" } else { "hot" });
        let calls = match (d.iters, d.within_percent, d.max_time_s) {
            (None, Some(within), Some(most)) => format!(
                "calls timed by {clock}, {caches}, until their median (p50) is known within {within} %, for {most} s at most;\n# \
                 bandwidth at it"
            ),
            (iters, ..) => {
                format!("{} timed by {clock}, {caches}; bandwidth at their median (p50)", iters.unwrap_or_default())
            }
        };
        text += &format!("# {} calls to warm up, then {calls}, GB are 10^9 bytes\n#\n", d.warmup);
        text + &self.table.head()
    }

    pub(crate) fn row(&mut self, row: Row) -> Result<(), CliError> {
        let line = self.table.row(&row);
        // First: it was measured, whether anybody reads the table or not.
        self.document.rows.push(row);
        print(&format!("{line}\n"))
    }

    pub(crate) fn rows(&self) -> usize {
        self.document.rows.len()
    }

    /// Prints the totals and writes the JSON file, also of what was measured before `failure`.
    pub(crate) fn finish(mut self, failure: Option<CliError>) -> Outcome {
        if failure.is_some() && self.document.rows.is_empty() {
            // Nothing was measured: a file from before is worth more than an empty one.
            return Outcome { document: self.document, failure };
        }
        let measured = || self.document.rows.iter().flat_map(|r| [r.out_of_place, r.in_place]).flatten();
        let mut tally = Tally::default();
        measured().for_each(|m| tally.add(m.tally()));
        let average = measured().map(|m| m.busbw_gb_per_s).sum::<f64>() / measured().count().max(1) as f64;
        self.document.wrong = tally.wrong;
        self.document.checked = tally.checked;
        self.document.average_busbw_gb_per_s = average;
        self.document.failure = failure.as_ref().map(ToString::to_string);
        let totals = print(&format!(
            "{}# wrong: {} of {} elements checked\n# avg busbw: {average:.3} GB/s\n",
            unstable(&self.document.rows),
            tally.wrong,
            tally.checked
        ));
        let json = self.json.take().map_or(Ok(()), |json| write_json(json, &self.document));
        // Wrong results first: nothing that failed explains them away.
        let verdict = verdict(self.document.collective, tally);
        let failure = verdict.err().or(failure).or(totals.err()).or(json.err());
        Outcome { document: self.document, failure }
    }
}

fn write_json(mut file: WholeFile, document: &Document) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(document);
    let text = text.map_err(|e| CliError::Failure(format!("perf: cannot write the results as JSON: {e}")))?;
    file.write(format!("{text}\n").as_bytes())?;
    file.finish()
}

/// Medians that are told of one by one.
const UNSTABLE_SHOWN: usize = 8;

/// The medians that are less stable than was asked for, the least stable first, and what to do about it; nothing where
/// there is none.
fn unstable(rows: &[Row]) -> String {
    let places = |row: &'_ Row| [("out of place", row.out_of_place), ("in place", row.in_place)];
    let measured = rows.iter().flat_map(|row| places(row).map(|(place, measured)| (row, place, measured)));
    let measured: Vec<_> = measured.filter_map(|(row, place, measured)| Some((row, place, measured?))).collect();
    let mut found: Vec<_> = measured.iter().filter(|(.., m)| m.stable == Some(false)).collect();
    if found.is_empty() {
        return String::new();
    }
    let percent = |m: &Measured| m.p50_within_percent.unwrap_or(f64::INFINITY);
    found.sort_by(|(.., a), (.., b)| percent(b).total_cmp(&percent(a)));
    let mut text = format!(
        "# not stable in its time: the median of {} of {}; give more by --max-time, or other work on this machine an end\n",
        found.len(),
        measured.len()
    );
    for (row, place, m) in found.iter().take(UNSTABLE_SHOWN) {
        text += &format!("#   {} {}", row.bytes, row.dtype);
        text += &row.op.map_or_else(String::new, |op| format!(" {op}"));
        text += &row.root.map_or_else(String::new, |root| format!(" from rank {root}"));
        text += &format!(", {place}: within {:.1} %, {} calls\n", percent(m), m.calls);
    }
    match found.len().saturating_sub(UNSTABLE_SHOWN) {
        0 => text,
        more => text + &format!("#   and {more} more, nearer to it\n"),
    }
}

fn verdict(collective: &str, tally: Tally) -> Result<(), CliError> {
    match tally.wrong {
        0 => Ok(()),
        wrong => Err(CliError::Failure(format!(
            "perf {collective}: {wrong} of {} elements are wrong; please report this with the table above",
            tally.checked
        ))),
    }
}

/// A device for people; the communicator opened it, so a failure here is not worth an end.
fn device<B: Backend>(ordinal: usize, ranks: usize) -> String {
    let name = B::open(ordinal).and_then(|device| B::properties(&device, ranks, 1)).map(|p| p.name);
    name.unwrap_or_else(|fault| fault.name)
}

fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| CliError::Failure(format!("perf: cannot write to standard output: {e}")))
}

/// What a run might have measured: bytes, time and bus bandwidth of each row, which has both places.
#[cfg(test)]
pub(crate) fn example(collective: &'static str, measured: &[(u64, f64, f64)]) -> Document {
    let row = |&(bytes, time, busbw): &(u64, f64, f64)| {
        let m = Measured {
            calls: 2,
            stable: None,
            time_us_p50: time,
            time_us_p50_interval: None,
            p50_within_percent: None,
            time_us_p99: time,
            time_us_min: time,
            time_us_max: time,
            algbw_gb_per_s: busbw,
            busbw_gb_per_s: busbw,
            wrong: 0,
            checked: 1,
        };
        Row {
            bytes,
            count: bytes as usize / 4,
            dtype: "f32",
            op: None,
            root: None,
            algorithm: "one-stage",
            blocks: 1,
            rounds: 1,
            out_of_place: Some(m),
            in_place: Some(m),
        }
    };
    Document {
        program: "crossccl",
        version: "0.0.0",
        collective,
        backend: "cpu",
        ranks: 2,
        cores: 1,
        devices: vec!["a <device> & more".into(); 2],
        algorithm_asked: "auto",
        group_size: None,
        shape: None,
        axis: None,
        unalign: 0,
        max_blocks: None,
        timeout_s: 30.0,
        driven_by: Drive::OneCall.name(),
        timed_by: "host",
        cold: false,
        warmup: 1,
        iters: Some(2),
        within_percent: None,
        max_time_s: None,
        rows: measured.iter().map(row).collect(),
        wrong: 0,
        checked: 1,
        average_busbw_gb_per_s: 0.0,
        failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|t| Duration::from_micros(*t)).collect()
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<_> = us(&(1..=200).collect::<Vec<_>>());
        assert_eq!([0, 50, 99, 100].map(|p| percentile(&times, p).as_micros()), [1, 100, 198, 200]);
        assert_eq!(percentile(&us(&[7]), 99).as_micros(), 7);
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn one_wrong_element_is_a_failure() {
        assert!(verdict("broadcast", Tally { wrong: 0, checked: 9 }).is_ok());
        let error = verdict("broadcast", Tally { wrong: 1, checked: 9 }).unwrap_err();
        assert!(matches!(&error, CliError::Failure(text) if text.contains("1 of 9 elements are wrong")), "{error}");
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let m = Measured::new(&mut us(&[30, 10, 20]), Repeat::Times(3), 40_000, 0.75, Tally::default());
        assert_eq!((m.time_us_p50, m.algbw_gb_per_s, m.busbw_gb_per_s), (20.0, 2.0, 1.5));
        assert_eq!((m.calls, m.stable, m.time_us_p50_interval), (3, None, None));
    }

    /// What did not become stable is told below the table, nothing else is.
    #[test]
    fn medians_that_are_not_stable_are_told() {
        let rule = Repeat::UntilStable { within: 5.0, most: Duration::from_secs(1) };
        let measured =
            |times: &[u64]| Some(Measured::new(&mut us(times), rule, 1024, 1.0, Tally { wrong: 0, checked: 1 }));
        let still = measured(&[10; 20]);
        let jumps = measured(&[[10; 10], [13; 10]].concat());
        let mut rows = example("broadcast", &[(1024, 1.0, 1.0); 12]).rows;
        assert_eq!(unstable(&rows), "", "a number of calls was asked for");
        for row in &mut rows {
            (row.out_of_place, row.in_place) = (still, None);
        }
        assert_eq!(unstable(&rows), "");
        rows[3].in_place = jumps;
        rows[4].out_of_place = measured(&[[10; 10], [20; 10]].concat());
        rows[4].root = Some(2);
        let expected = "# not stable in its time: the median of 2 of 13; give more by --max-time, or other work on this \
                        machine an end\n#   1024 f32 from rank 2, out of place: within 100.0 %, 20 calls\n#   1024 f32, in place: \
                        within 30.0 %, 20 calls\n";
        assert_eq!(unstable(&rows), expected);
        rows.iter_mut().for_each(|row| row.in_place = jumps);
        let told = unstable(&rows);
        assert!(told.starts_with("# not stable in its time: the median of 13 of 24;"), "{told}");
        assert!(told.ends_with("\n#   and 5 more, nearer to it\n") && told.lines().count() == 10, "{told}");
    }

    /// The widest of what is usual. Wider runs are told by wider columns, never by a column that is cut.
    #[test]
    fn the_table_fits_into_120_columns() {
        for (bytes, dtype, op, root, algorithm) in [
            (64 << 20, "f32", None, Some(63), "two-stage-staged"),
            (1 << 30, "bf16", None, Some(0), "one-stage"),
            (1 << 30, "bf16", Some("average"), None, "one-stage"),
        ] {
            let times = (9_999_999.0, 123.456);
            let mut document = example("broadcast", &[(1024, 0.0, 0.0), (bytes, times.0, times.1)]);
            for row in &mut document.rows {
                (row.dtype, row.op, row.root, row.algorithm) = (dtype, op, root, algorithm);
            }
            let table = Table::new(&document.rows);
            let lines = table.head().lines().map(str::to_owned).collect::<Vec<_>>();
            let rows = document.rows.iter().map(|row| table.row(row)).collect::<Vec<_>>();
            assert!(lines.iter().chain(&rows).all(|line| line.len() <= 120), "{lines:#?}\n{rows:#?}");
            // Every cell stands below the end of its head.
            for row in &rows {
                assert_eq!(row.len(), rows[0].len());
                assert!(lines[1].len() == row.len(), "{lines:#?}\n{rows:#?}");
            }
            let ends = |line: &str| {
                let spaced = format!("{} ", line.replace('#', " "));
                let ends = spaced.as_bytes().windows(2).enumerate().filter(|(_, w)| w[0] != b' ' && w[1] == b' ');
                ends.map(|(at, _)| at).collect::<Vec<_>>()
            };
            assert_eq!(ends(&lines[1]).len(), 16);
            assert_eq!(ends(&lines[1]), ends(&rows[0]));
            assert_eq!(ends(&lines[1]), ends(&rows[1]));
        }
    }

    #[test]
    fn what_does_not_fit_loses_decimals_and_then_is_long() {
        assert_eq!(digits(1.0, 2, 7), "1.00");
        assert_eq!(digits(9999.994, 2, 7), "9999.99");
        assert_eq!(digits(9999.996, 2, 7), "10000.0");
        assert_eq!(digits(123_456.7, 2, 7), "123457");
        assert_eq!(digits(12_345_678.9, 2, 7), "12345679");
    }
}
