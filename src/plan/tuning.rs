//! What was measured, as data: rows that overrule the cost model, and what devices reach.
//!
//! The file is TOML; `tuning/measured.toml` in this repository is the one that is built in and shows the format.

use std::fmt::Write as _;

use serde::Deserialize;
use toml::Spanned;

use super::{
    request::{BROADCAST, REDUCE_SCATTER, Request},
    select::Algorithm,
    topology::{Topology, Wiring},
};
use crate::{
    abi::{MAX_BLOCKS, MAX_RANKS},
    error::{Error, Result},
};

/// The format that this version reads and writes.
const VERSION: i64 = 1;
/// More than anybody measures, few enough to look through.
const MOST_ROWS: usize = 4096;
const LONGEST_NAME: usize = 256;

/// Whether ranks have devices of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Each rank has one.
    Apart,
    /// Some share one.
    Shared,
}

impl Placement {
    /// The name, as tuning files use it.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Apart => "apart",
            Placement::Shared => "shared",
        }
    }

    /// Of ranks of which `apart` says whether each has a device of its own.
    pub const fn of(apart: bool) -> Self {
        if apart { Placement::Apart } else { Placement::Shared }
    }
}

/// Which collective a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tuned {
    /// Broadcasts; bytes are those of the message.
    Broadcast,
    /// Reduce-scatters; bytes are those of each rank's whole input.
    ReduceScatter,
}

impl Tuned {
    /// The name, as tuning files and the command line use it.
    pub const fn name(self) -> &'static str {
        match self {
            Tuned::Broadcast => "broadcast",
            Tuned::ReduceScatter => "reduce-scatter",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Tuned::Broadcast => BROADCAST,
            Tuned::ReduceScatter => REDUCE_SCATTER,
        }
    }
}

/// How collectives up to a size are done on some devices, where the cost model shall not choose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TuningRow {
    /// The name of every rank's device, in which `*` stands for any text.
    pub device: String,
    /// Whether the ranks have devices of their own.
    pub placement: Placement,
    /// Ranks of the group.
    pub ranks: usize,
    /// The collective.
    pub collective: Tuned,
    /// The largest size, in bytes, that the row is for; of several rows the one with the smallest size that is large
    /// enough decides. `None`: any size.
    pub bytes_up_to: Option<u64>,
    /// The algorithm, or the model's choice.
    pub algorithm: Option<Algorithm>,
    /// The most blocks of a rank's launch, or what the device prefers.
    pub blocks: Option<u32>,
}

impl TuningRow {
    /// A row for every size that chooses nothing yet.
    pub fn new(device: impl Into<String>, placement: Placement, ranks: usize, collective: Tuned) -> Self {
        let device = device.into();
        TuningRow { device, placement, ranks, collective, bytes_up_to: None, algorithm: None, blocks: None }
    }

    fn key(&self) -> (&str, Placement, usize, Tuned, Option<u64>) {
        (&self.device, self.placement, self.ranks, self.collective, self.bytes_up_to)
    }

    fn is_for(&self, request: &Request) -> bool {
        self.ranks == request.ranks
            && self.collective.code() == request.code()
            && self.bytes_up_to.is_none_or(|most| request.bytes() <= most)
    }
}

/// What devices reach, where that is not what is assumed of links of their kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reached {
    device: String,
    placement: Option<Placement>,
    wiring: Option<Wiring>,
    rate: Option<u64>,
    both_ways: Option<u64>,
    block_rate: Option<u64>,
    launch_ns: Option<u32>,
    release_ns: Option<u32>,
    flight_ns: Option<u32>,
    read_ns: Option<u32>,
    peer_ns: Option<u32>,
}

impl Reached {
    fn correct(&self, t: &mut Topology) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            *to = from.unwrap_or(*to);
        }
        if let Some(wiring) = self.wiring {
            *t = Topology::of(wiring);
        }
        if let Some(rate) = self.rate {
            (t.rate, t.both_ways) = (rate, rate.saturating_mul(2));
        }
        set(&mut t.both_ways, self.both_ways);
        set(&mut t.block_rate, self.block_rate);
        set(&mut t.launch_ns, self.launch_ns);
        set(&mut t.release_ns, self.release_ns);
        set(&mut t.flight_ns, self.flight_ns);
        set(&mut t.read_ns, self.read_ns);
        set(&mut t.peer_ns, self.peer_ns);
    }
}

/// A row, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    row: TuningRow,
    /// Of the file, from 1; 0 for one that was not read.
    line: usize,
}

/// One file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    name: String,
    reached: Vec<Reached>,
    rows: Vec<Placed>,
}

/// Measured rows, of one file or of several of which the first that knows decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    sources: Vec<Source>,
}

/// Rows that fit a communicator's devices: what is left of a [`Tuning`] for its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// By source; the first that has a row decides.
    sources: Vec<(String, Vec<Placed>)>,
}

impl Tuning {
    /// Rows of a program's own.
    ///
    /// ```
    /// use crossccl::{Algorithm, Communicator, Cpu, Placement, Tuned, Tuning, TuningRow};
    ///
    /// # fn main() -> crossccl::Result<()> {
    /// let mut row = TuningRow::new("virtual device *", Placement::Apart, 4, Tuned::Broadcast);
    /// row.algorithm = Some(Algorithm::LowLatency);
    /// row.bytes_up_to = Some(4096);
    /// let comm = Communicator::<Cpu>::builder(0..4).tuning(Tuning::from_rows("mine", [row])?).build()?;
    /// assert_eq!(comm.plan_broadcast(1024, crossccl::DType::F32, 0)?.algorithm, Algorithm::LowLatency);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tuning`] for rows that nothing can be done with.
    pub fn from_rows(name: impl Into<String>, rows: impl IntoIterator<Item = TuningRow>) -> Result<Self> {
        let mut source = Source { name: name.into(), ..Source::default() };
        for row in rows {
            source.add(row, 0)?;
        }
        Ok(Tuning { sources: vec![source] })
    }

    /// Reads the text of a file; `name` is what errors and explanations call it.
    ///
    /// # Errors
    /// [`Error::Tuning`], with the line where there is one.
    pub fn parse(text: &str, name: impl Into<String>) -> Result<Self> {
        let mut source = Source { name: name.into(), ..Source::default() };
        let line = |at: usize| 1 + text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        let file: File = toml::from_str(text).map_err(|error| {
            source.error(error.span().map_or(0, |span| line(span.start)), error.message().trim().replace('\n', "; "))
        })?;
        if *file.version.get_ref() != VERSION {
            let got = file.version.get_ref();
            return Err(
                source.error(line(file.version.span().start), format!("version: expected {VERSION}, got {got}"))
            );
        }
        for device in file.device {
            let at = line(device.span().start);
            let reached = device.into_inner().parsed().map_err(|reason| source.error(at, reason))?;
            source.reached.push(reached);
        }
        for row in file.row {
            let at = line(row.span().start);
            let row = row.into_inner().parsed().map_err(|reason| source.error(at, reason))?;
            source.add(row, at)?;
        }
        Ok(Tuning { sources: vec![source] })
    }

    /// These rows, and those of `other` where these know nothing.
    pub fn over(mut self, other: Tuning) -> Self {
        self.sources.extend(other.sources);
        self
    }

    /// The rows, the first that decide first.
    pub fn rows(&self) -> impl Iterator<Item = &TuningRow> {
        self.sources.iter().flat_map(|source| &source.rows).map(|placed| &placed.row)
    }

    /// The rows as a file that [`parse`](Self::parse) reads.
    pub fn to_toml(&self) -> String {
        let mut text = format!("version = {VERSION}\n");
        for row in self.rows() {
            let device = toml::Value::from(row.device.as_str());
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n[[row]]\ndevice = {device}\nplacement = \"{}\"\nranks = {}\ncollective = \"{}\"\n",
                row.placement.name(),
                row.ranks,
                row.collective.name()
            );
            if let Some(bytes) = row.bytes_up_to {
                let _ = writeln!(text, "bytes_up_to = {bytes}");
            }
            if let Some(algorithm) = row.algorithm {
                let _ = writeln!(text, "algorithm = \"{algorithm}\"");
            }
            if let Some(blocks) = row.blocks {
                let _ = writeln!(text, "blocks = {blocks}");
            }
        }
        text
    }

    /// What is known of a machine whose ranks are on devices of these names, beyond what its drivers told.
    pub(crate) fn correct(&self, names: &[String], placement: Placement, topology: &mut Topology) {
        // The first decides: it comes last.
        for source in self.sources.iter().rev() {
            for reached in &source.reached {
                let placed = reached.placement.is_none_or(|p| p == placement);
                if placed && names.iter().all(|name| is_like(name, &reached.device)) {
                    reached.correct(topology);
                }
            }
        }
    }

    pub(crate) fn rows_for(&self, names: &[String], placement: Placement) -> Rows {
        let fits = |placed: &&Placed| {
            placed.row.placement == placement && names.iter().all(|name| is_like(name, &placed.row.device))
        };
        let sources = self.sources.iter().map(|source| {
            let mut rows: Vec<_> = source.rows.iter().filter(fits).cloned().collect();
            rows.sort_by_key(|placed| placed.row.bytes_up_to.unwrap_or(u64::MAX));
            (source.name.clone(), rows)
        });
        Rows { sources: sources.filter(|(_, rows)| !rows.is_empty()).collect() }
    }
}

impl Rows {
    /// The row that decides.
    pub(crate) fn find(&self, request: &Request) -> Option<Found<'_>> {
        self.sources.iter().find_map(|(source, rows)| {
            let placed = rows.iter().find(|placed| placed.row.is_for(request))?;
            Some(Found { row: &placed.row, source, line: placed.line })
        })
    }
}

/// A row that decides, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) row: &'a TuningRow,
    pub(crate) source: &'a str,
    pub(crate) line: usize,
}

impl Source {
    fn error(&self, line: usize, reason: impl Into<String>) -> Error {
        Error::Tuning { source_name: self.name.clone(), line: (line > 0).then_some(line), reason: reason.into() }
    }

    fn add(&mut self, row: TuningRow, line: usize) -> Result<()> {
        check(&row).map_err(|reason| self.error(line, reason))?;
        if let Some(other) = self.rows.iter().find(|placed| placed.row.key() == row.key()) {
            let again = match other.line {
                0 => "there is a row for these already".into(),
                at => format!("line {at} has a row for these already"),
            };
            return Err(self.error(line, again));
        }
        if self.rows.len() == MOST_ROWS {
            return Err(self.error(line, format!("row: expected at most {MOST_ROWS}, got more")));
        }
        self.rows.push(Placed { row, line });
        Ok(())
    }
}

fn check(row: &TuningRow) -> Result<(), String> {
    check_device(&row.device)?;
    if !(2..=MAX_RANKS).contains(&row.ranks) {
        return Err(format!("ranks: expected 2 to {MAX_RANKS}, got {}", row.ranks));
    }
    if row.blocks.is_some_and(|blocks| blocks == 0 || blocks > MAX_BLOCKS) {
        return Err(format!("blocks: expected 1 to {MAX_BLOCKS}, got {}", row.blocks.unwrap_or(0)));
    }
    let of_broadcast = [Algorithm::TwoStageStaged, Algorithm::TwoStageDirect];
    match row.algorithm {
        None if row.blocks.is_none() => Err("expected an algorithm, a number of blocks or both, got neither".into()),
        Some(Algorithm::Auto | Algorithm::TwoStage) => {
            Err("algorithm: expected one-stage, two-stage-staged, two-stage-direct or low-latency, or none".into())
        }
        Some(algorithm) if row.collective == Tuned::ReduceScatter && of_broadcast.contains(&algorithm) => {
            Err(format!("algorithm: {algorithm} is for broadcast; expected one-stage or low-latency"))
        }
        _ => Ok(()),
    }
}

fn check_device(device: &str) -> Result<(), String> {
    if device.is_empty() || device.len() > LONGEST_NAME {
        return Err(format!("device: expected a name of 1 to {LONGEST_NAME} bytes, got {}", device.len()));
    }
    Ok(())
}

/// Whether `pattern`, in which `*` stands for any text, is for `name`. In time of at most their product.
fn is_like(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
    let (mut n, mut p) = (0, 0);
    // Where the last `*` stood, and up to where the name is its text.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            (n, p) = (n + 1, p + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (n, p) = (taken + 1, at + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Spanned<i64>,
    #[serde(default)]
    device: Vec<Spanned<RawDevice>>,
    #[serde(default)]
    row: Vec<Spanned<RawRow>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawPlacement {
    Apart,
    Shared,
}

impl From<RawPlacement> for Placement {
    fn from(raw: RawPlacement) -> Self {
        match raw {
            RawPlacement::Apart => Placement::Apart,
            RawPlacement::Shared => Placement::Shared,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    name: String,
    placement: Option<RawPlacement>,
    wiring: Option<String>,
    rate: Option<u64>,
    both_ways: Option<u64>,
    block_rate: Option<u64>,
    launch_ns: Option<u32>,
    release_ns: Option<u32>,
    flight_ns: Option<u32>,
    read_ns: Option<u32>,
    peer_ns: Option<u32>,
}

impl RawDevice {
    fn parsed(self) -> Result<Reached, String> {
        check_device(&self.name)?;
        for (what, rate) in [("rate", self.rate), ("both_ways", self.both_ways), ("block_rate", self.block_rate)] {
            if rate == Some(0) {
                return Err(format!("{what}: expected bytes a second above 0, got 0"));
            }
        }
        Ok(Reached {
            device: self.name,
            placement: self.placement.map(Into::into),
            wiring: self.wiring.map(|w| w.parse().map_err(|e| format!("wiring: {e}"))).transpose()?,
            rate: self.rate,
            both_ways: self.both_ways,
            block_rate: self.block_rate,
            launch_ns: self.launch_ns,
            release_ns: self.release_ns,
            flight_ns: self.flight_ns,
            read_ns: self.read_ns,
            peer_ns: self.peer_ns,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRow {
    device: String,
    placement: RawPlacement,
    ranks: usize,
    collective: RawCollective,
    bytes_up_to: Option<u64>,
    algorithm: Option<String>,
    blocks: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawCollective {
    Broadcast,
    ReduceScatter,
}

impl RawRow {
    fn parsed(self) -> Result<TuningRow, String> {
        Ok(TuningRow {
            device: self.device,
            placement: self.placement.into(),
            ranks: self.ranks,
            collective: match self.collective {
                RawCollective::Broadcast => Tuned::Broadcast,
                RawCollective::ReduceScatter => Tuned::ReduceScatter,
            },
            bytes_up_to: self.bytes_up_to,
            algorithm: self.algorithm.map(|a| a.parse().map_err(|e| format!("algorithm: {e}"))).transpose()?,
            blocks: self.blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROW: &str = "[[row]]\ndevice = \"d\"\nplacement = \"apart\"\nranks = 2\ncollective = \"broadcast\"\n";

    fn refused(text: &str) -> String {
        match Tuning::parse(text, "f.toml").unwrap_err() {
            error @ Error::Tuning { .. } => error.to_string(),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn what_is_built_in_is_a_file() {
        let built_in = Tuning::built_in().unwrap();
        assert!(built_in.rows().count() >= 8);
        // As measured, whoever changes the model.
        let name = built_in.rows().next().unwrap().device.replace('*', "");
        let names = [name.clone(), name];
        let apart = built_in.rows_for(&names, Placement::Apart);
        let request = |bytes| Request {
            ranks: 2,
            dtype: crate::DType::U8,
            count: bytes,
            collective: super::super::request::Collective::Broadcast { root: 0 },
        };
        let chosen = |rows: &Rows, bytes| rows.find(&request(bytes)).and_then(|found| found.row.algorithm);
        assert_eq!(chosen(&apart, 64 << 10), Some(Algorithm::LowLatency));
        assert_eq!(chosen(&apart, (64 << 10) + 1), Some(Algorithm::OneStage));
        let shared = built_in.rows_for(&names, Placement::Shared);
        assert_eq!(chosen(&shared, 64 << 10), Some(Algorithm::LowLatency));
        assert_eq!(chosen(&shared, (64 << 10) + 1), None);
        let mut topology = Topology::switch(1);
        built_in.correct(&names, Placement::Apart, &mut topology);
        assert_eq!((topology.rate, topology.both_ways), (374_000_000_000, 674_000_000_000));
    }

    /// Errors say the file, the line, what is wrong.
    #[test]
    fn bad_files_are_told_with_the_line() {
        let row = |rest: &str| refused(&format!("version = 1\n\n{ROW}{rest}"));
        assert_eq!(refused("version = 2"), "tuning: f.toml, line 1: version: expected 1, got 2");
        assert_eq!(refused(""), "tuning: f.toml, line 1: missing field `version`");
        assert_eq!(row(""), "tuning: f.toml, line 3: expected an algorithm, a number of blocks or both, got neither");
        assert_eq!(row("blocks = 0"), "tuning: f.toml, line 3: blocks: expected 1 to 128, got 0");
        assert!(row("blocks = -1").starts_with("tuning: f.toml, line 8: "), "{}", row("blocks = -1"));
        assert!(row("block = 1").starts_with("tuning: f.toml, line 8: unknown field `block`, expected "));
        assert!(
            row("algorithm = \"fast\"").starts_with("tuning: f.toml, line 3: algorithm: unknown algorithm `fast`; ")
        );
        assert!(row("algorithm = \"auto\"").contains("line 3: algorithm: expected one-stage, "));
        assert!(row("algorithm = \"one-stage").starts_with("tuning: f.toml, line 8: "));
        let again = format!("blocks = 1\n{ROW}blocks = 2");
        assert_eq!(row(&again), "tuning: f.toml, line 9: line 3 has a row for these already");
        let two = format!("version = 1\n{}blocks = 1", ROW.replace("ranks = 2", "ranks = 65"));
        assert_eq!(refused(&two), "tuning: f.toml, line 2: ranks: expected 2 to 64, got 65");
        let scatter = ROW.replace("broadcast", "reduce-scatter");
        let text = refused(&format!("version = 1\n{scatter}algorithm = \"two-stage-direct\""));
        assert!(text.contains("two-stage-direct is for broadcast"), "{text}");
        assert_eq!(
            refused("version = 1\n[[device]]\nname = \"d\"\nrate = 0"),
            "tuning: f.toml, line 2: rate: expected bytes a second above 0, got 0"
        );
        assert!(
            refused("version = 1\n[[device]]\nname = \"\"")
                .contains("device: expected a name of 1 to 256 bytes, got 0")
        );
        assert!(
            refused("version = 1\n[[device]]\nname = \"d\"\nwiring = \"ring\"")
                .contains("wiring: unknown wiring `ring`")
        );
    }

    /// Each number of a device takes the place of the one that is assumed of its kind.
    #[test]
    fn every_number_of_a_device_counts() {
        let text = "version = 1\n[[device]]\nname = \"d\"\nrate = 1\nboth_ways = 2\nblock_rate = 3\nlaunch_ns = 4
            release_ns = 5\nflight_ns = 6\nread_ns = 7\npeer_ns = 8\n";
        let mut found = Topology::mesh(9);
        Tuning::parse(text, "f").unwrap().correct(&["d".into()], Placement::Apart, &mut found);
        let Topology { wiring, rate, both_ways, block_rate, launch_ns, release_ns, flight_ns, read_ns, peer_ns } =
            found;
        assert_eq!((wiring, rate, both_ways, block_rate), (Wiring::Mesh, 1, 2, 3));
        assert_eq!([launch_ns, release_ns, flight_ns, read_ns, peer_ns], [4, 5, 6, 7, 8]);
    }

    /// A program's rows stand before a file's, which still decide where those know nothing.
    #[test]
    fn rows_over_others() {
        let row = |ranks, blocks| TuningRow {
            blocks: Some(blocks),
            ..TuningRow::new("d", Placement::Apart, ranks, Tuned::Broadcast)
        };
        let own = Tuning::from_rows("own", [row(2, 1)]).unwrap();
        let file = Tuning::from_rows("file", [row(2, 2), row(3, 3)]).unwrap();
        let rows = own.over(file).rows_for(&["d".into()], Placement::Apart);
        let found = |ranks| {
            let collective = super::super::request::Collective::Broadcast { root: 0 };
            let request = Request { ranks, dtype: crate::DType::U8, count: 9, collective };
            rows.find(&request).map(|found| (found.source, found.row.blocks))
        };
        assert_eq!([2, 3, 4].map(found), [Some(("own", Some(1))), Some(("file", Some(3))), None]);
    }

    /// The borders of what a row may say.
    #[test]
    fn the_most_that_a_row_may_say() {
        let refused = |device: usize, ranks, blocks| {
            let row = TuningRow {
                blocks: Some(blocks),
                ..TuningRow::new("d".repeat(device), Placement::Apart, ranks, Tuned::Broadcast)
            };
            Tuning::from_rows("mine", [row]).err().map(|error| error.to_string())
        };
        assert_eq!(refused(LONGEST_NAME, MAX_RANKS, MAX_BLOCKS), None);
        assert_eq!(refused(1, 2, 1), None);
        let text = |what: &str| Some(format!("tuning: mine: {what}"));
        assert_eq!(refused(0, 2, 1), text("device: expected a name of 1 to 256 bytes, got 0"));
        assert_eq!(refused(257, 2, 1), text("device: expected a name of 1 to 256 bytes, got 257"));
        assert_eq!(refused(1, 1, 1), text("ranks: expected 2 to 64, got 1"));
        assert_eq!(refused(1, 65, 1), text("ranks: expected 2 to 64, got 65"));
        assert_eq!(refused(1, 2, 0), text("blocks: expected 1 to 128, got 0"));
        assert_eq!(refused(1, 2, 129), text("blocks: expected 1 to 128, got 129"));
    }

    #[test]
    fn too_many_rows_are_refused() {
        let rows = (0..=MOST_ROWS as u64).map(|bytes| TuningRow {
            bytes_up_to: Some(bytes),
            blocks: Some(1),
            ..TuningRow::new("d", Placement::Apart, 2, Tuned::Broadcast)
        });
        assert!(Tuning::from_rows("mine", rows.clone().take(MOST_ROWS)).is_ok());
        let error = Tuning::from_rows("mine", rows).unwrap_err().to_string();
        assert_eq!(error, "tuning: mine: row: expected at most 4096, got more");
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (name, pattern) in [
            ("", "*"),
            ("abc", "abc"),
            ("abc", "*"),
            ("abc", "a*"),
            ("abc", "*c"),
            ("abc", "a*c"),
            ("abcbc", "a*bc"),
            ("abc", "**a**c**"),
            ("aab", "*ab"),
            // Tried at each place in turn.
            ("aaaab", "*ab"),
        ] {
            assert!(is_like(name, pattern), "{name}, {pattern}");
        }
        for (name, pattern) in
            [("abc", ""), ("abc", "ab"), ("abc", "b*"), ("abc", "*b"), ("", "a"), ("abc", "a*d*"), ("a", "a*a")]
        {
            assert!(!is_like(name, pattern), "{name}, {pattern}");
        }
    }

    fn any_row() -> impl Strategy<Value = TuningRow> {
        let algorithms = prop::sample::select(vec![None, Some(Algorithm::OneStage), Some(Algorithm::LowLatency)]);
        let place = prop::sample::select(vec![Placement::Apart, Placement::Shared]);
        let what = prop::sample::select(vec![Tuned::Broadcast, Tuned::ReduceScatter]);
        let bytes = prop::option::of(0..=i64::MAX as u64);
        ("\\PC{1,20}", place, 2..=MAX_RANKS, what, bytes, algorithms, 1..=MAX_BLOCKS).prop_map(
            |(device, placement, ranks, collective, bytes_up_to, algorithm, blocks)| TuningRow {
                bytes_up_to,
                algorithm,
                blocks: Some(blocks),
                ..TuningRow::new(device, placement, ranks, collective)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_can_be_read(rows in prop::collection::vec(any_row(), 0..8)) {
            if let Ok(tuning) = Tuning::from_rows("f", rows) {
                let read = Tuning::parse(&tuning.to_toml(), "f").unwrap();
                prop_assert!(read.rows().eq(tuning.rows()), "{}", tuning.to_toml());
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = Tuning::parse(&text, "f");
            let _ = Tuning::parse(&format!("version = 1\n{ROW}{text}"), "f");
        }
    }
}
