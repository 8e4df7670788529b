//! The table, row by row as it comes, and the JSON document.

use std::{
    io::{self, Write},
    num::NonZero,
    thread::available_parallelism,
    time::Duration,
};

use crossccl::{Backend, Plan};
use serde::Serialize;

use super::{PerfCommand, cases::Case, check::Tally, output::Output};
use crate::error::CliError;

/// One place of one row.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    time_us_p50: f64,
    time_us_p99: f64,
    time_us_min: f64,
    time_us_max: f64,
    /// 10^9 bytes a second, at the median.
    algbw_gb_per_s: f64,
    busbw_gb_per_s: f64,
    wrong: u64,
    checked: u64,
}

impl Measured {
    pub(crate) fn new(times: &mut [Duration], bytes: u64, bus_factor: f64, tally: Tally) -> Self {
        times.sort_unstable();
        let us = |percent| percentile(times, percent).as_nanos() as f64 / 1e3;
        let median = us(50);
        let algbw = if median > 0.0 { bytes as f64 / median / 1e3 } else { 0.0 };
        Measured {
            time_us_p50: median,
            time_us_p99: us(99),
            time_us_min: us(0),
            time_us_max: us(100),
            algbw_gb_per_s: algbw,
            busbw_gb_per_s: algbw * bus_factor,
            wrong: tally.wrong,
            checked: tally.checked,
        }
    }

    fn tally(&self) -> Tally {
        Tally { wrong: self.wrong, checked: self.checked }
    }
}

/// The smallest of the sorted `times` that at least `percent` of them do not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    bytes: u64,
    count: usize,
    dtype: &'static str,
    op: Option<&'static str>,
    root: Option<usize>,
    algorithm: &'static str,
    blocks: u32,
    rounds: u32,
    out_of_place: Option<Measured>,
    in_place: Option<Measured>,
}

impl Row {
    pub(crate) fn new(case: &Case, plan: &Plan, out_of_place: Option<Measured>, in_place: Option<Measured>) -> Self {
        Row {
            bytes: case.bytes,
            count: case.count,
            dtype: case.dtype.name(),
            op: case.op.map(|op| op.name()),
            root: case.root,
            algorithm: plan.algorithm.name(),
            blocks: plan.blocks,
            rounds: plan.rounds,
            out_of_place,
            in_place,
        }
    }

    fn line(&self) -> String {
        let dash = || "-".to_owned();
        let place = |m: &Option<Measured>| match m {
            Some(m) => [
                format!("{:.2}", m.time_us_p50),
                format!("{:.3}", m.algbw_gb_per_s),
                format!("{:.3}", m.busbw_gb_per_s),
                m.wrong.to_string(),
            ],
            None => [dash(), dash(), dash(), dash()],
        };
        columns(
            [&self.bytes.to_string(), &self.count.to_string()],
            [self.dtype, self.op.unwrap_or("-"), &self.root.map_or_else(dash, |r| r.to_string()), self.algorithm],
            [place(&self.out_of_place), place(&self.in_place)],
        )
    }
}

fn columns<S: AsRef<str>>(
    [bytes, count]: [&str; 2],
    [dtype, op, root, algorithm]: [&str; 4],
    places: [[S; 4]; 2],
) -> String {
    let mut line = format!("{bytes:>12} {count:>12} {dtype:>6} {op:>8} {root:>5} {algorithm:>17}");
    for [time, algbw, busbw, wrong] in places {
        let [time, algbw, busbw, wrong] = [time.as_ref(), algbw.as_ref(), busbw.as_ref(), wrong.as_ref()];
        line += &format!(" {time:>11} {algbw:>8} {busbw:>8} {wrong:>7}");
    }
    line
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct Document {
    program: &'static str,
    version: &'static str,
    collective: &'static str,
    backend: &'static str,
    ranks: usize,
    cores: usize,
    /// One a rank.
    devices: Vec<String>,
    algorithm_asked: &'static str,
    group_size: Option<usize>,
    shape: Option<Vec<usize>>,
    axis: Option<i64>,
    unalign: usize,
    max_blocks: Option<u32>,
    timeout_s: f64,
    warmup: u32,
    iters: u32,
    rows: Vec<Row>,
    wrong: u64,
    checked: u64,
    average_busbw_gb_per_s: f64,
}

pub(crate) struct Report {
    document: Document,
    json: Option<Output>,
}

impl Report {
    /// Opens the JSON file, so that a path that cannot be written is told before the work, and prints the
    /// head of the table.
    pub(crate) fn start<B: Backend>(command: &PerfCommand) -> Result<Self, CliError> {
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
            warmup: common.warmup,
            iters: common.iters,
            rows: Vec::new(),
            wrong: 0,
            checked: 0,
            average_busbw_gb_per_s: 0.0,
        };
        let json = common.json.as_deref().map(|path| Output::create("--json", path)).transpose()?;
        let report = Report { document, json };
        print(&report.head())?;
        Ok(report)
    }

    fn head(&self) -> String {
        let d = &self.document;
        let mut text = format!("# crossccl {} perf {}\n", d.version, d.collective);
        text += &format!("# backend {}, {} ranks, {} cores\n", d.backend, d.ranks, d.cores);
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
        text += &format!(
            "# {} calls to warm up, then {} timed; time is their median, GB are 10^9 bytes\n#\n",
            d.warmup, d.iters
        );
        let heads = [["time", "algbw", "busbw", "#wrong"], ["time", "algbw", "busbw", "#wrong"]];
        let units = [["(us)", "(GB/s)", "(GB/s)", ""], ["(us)", "(GB/s)", "(GB/s)", ""]];
        // Over the columns of each place.
        text += &format!("#{:64} {:>25} {:>37}\n", "", "out-of-place", "in-place");
        let title = |line: String| format!("#{}\n", line[1..].trim_end());
        text += &title(columns(["size", "count"], ["type", "op", "root", "algorithm"], heads));
        text += &title(columns(["(B)", "(elements)"], [""; 4], units));
        text
    }

    pub(crate) fn row(&mut self, row: Row) -> Result<(), CliError> {
        print(&format!("{}\n", row.line()))?;
        self.document.rows.push(row);
        Ok(())
    }

    /// Prints the totals and writes the JSON file; an error if any element was wrong.
    pub(crate) fn finish(mut self) -> Result<(), CliError> {
        let measured = || self.document.rows.iter().flat_map(|r| [r.out_of_place, r.in_place]).flatten();
        let mut tally = Tally::default();
        measured().for_each(|m| tally.add(m.tally()));
        let average = measured().map(|m| m.busbw_gb_per_s).sum::<f64>() / measured().count().max(1) as f64;
        print(&format!(
            "# wrong: {} of {} elements checked\n# avg busbw: {average:.3} GB/s\n",
            tally.wrong, tally.checked
        ))?;
        self.document.wrong = tally.wrong;
        self.document.checked = tally.checked;
        self.document.average_busbw_gb_per_s = average;
        if let Some(json) = self.json {
            let text = serde_json::to_string_pretty(&self.document);
            let text = text.map_err(|e| CliError::Failure(format!("perf: cannot write the results as JSON: {e}")))?;
            json.write(format!("{text}\n").as_bytes())?;
        }
        verdict(self.document.collective, tally)
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
    let name = B::open(ordinal).and_then(|device| B::properties(&device, ranks)).map(|p| p.name);
    name.unwrap_or_else(|fault| fault.name)
}

fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| CliError::Failure(format!("perf: cannot write to standard output: {e}")))
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
        let m = Measured::new(&mut us(&[30, 10, 20]), 40_000, 0.75, Tally::default());
        assert_eq!((m.time_us_p50, m.algbw_gb_per_s, m.busbw_gb_per_s), (20.0, 2.0, 1.5));
    }
}
