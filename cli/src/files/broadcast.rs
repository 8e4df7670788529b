//! `crossccl broadcast`: a file from the root to all ranks, piece by piece, and the proof by hash.
//!
//! A rank's hash is taken from the rank's own buffer. Before each piece every buffer is filled with the
//! complement of the piece: a byte that the broadcast left out is certain to differ.

use std::{
    fmt::Write,
    fs::{File, Metadata},
    io::Read,
    num::NonZero,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread::{self, Scope, ScopedJoinHandle, available_parallelism},
    time::{Duration, Instant},
};

use clap::Args;
use crossccl::{Algorithm, Backend, Broadcast, Buffer, Communicator};
use sha2::{Digest, Sha256};

use super::{
    CommonArguments, check_ranks, checkpoint::Checkpoint, failure, index::Index, kinds, not_done, parse_bytes,
    progress::Progress, say,
};
use crate::{
    backend::{is_host, memory_of_ranks, with_backend},
    error::CliError,
    memory,
    whole_file::kind,
};

#[derive(Debug, Args)]
pub(crate) struct BroadcastArguments {
    /// The file: any content, any length. The index of a checkpoint in several files (model.safetensors.index.json)
    /// stands for itself and all of them
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Number of ranks
    #[arg(long, value_name = "N")]
    ranks: usize,
    /// The rank that has the file
    #[arg(long, value_name = "RANK", default_value = "0")]
    root: usize,
    /// How to broadcast: auto, one-stage, two-stage or two-stage-staged
    #[arg(long, value_name = "NAME", default_value = "auto")]
    algorithm: Algorithm,
    /// The file goes in pieces of this size; K, M and G are understood. Memory in use is about one
    /// piece a rank
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = parse_bytes)]
    piece_bytes: usize,
    #[command(flatten)]
    common: CommonArguments,
}

pub(crate) fn run(arguments: &BroadcastArguments) -> Result<(), CliError> {
    check_ranks(arguments.ranks, "--ranks")?;
    if arguments.root >= arguments.ranks {
        return Err(CliError::Usage(format!(
            "--root: rank {} does not exist among {} ranks; give 0 to {}",
            arguments.root,
            arguments.ranks,
            arguments.ranks - 1
        )));
    }
    with_backend!(arguments.common.backend, B => run_on::<B>(arguments))
}

fn run_on<B: Backend>(arguments: &BroadcastArguments) -> Result<(), CliError> {
    let paths = files(&arguments.input)?;
    // What one is like is known before anything is done.
    let first = Source::open(&arguments.input, arguments.piece_bytes)?;
    let started = Instant::now();
    check_memory::<B>(arguments, if paths.len() > 1 { arguments.piece_bytes } else { first.piece_bytes })?;
    let mut ranks = Ranks::new(arguments.common.communicator::<B>(arguments.ranks)?, arguments);
    let mut bytes = one::<B>(first, &mut ranks, paths.len() > 1)?;
    for path in paths.iter().skip(1) {
        bytes += one::<B>(Source::open(path, arguments.piece_bytes)?, &mut ranks, true)?;
    }
    let seconds = ranks.in_collective.as_secs_f64();
    let rate = if bytes == 0 { 0.0 } else { bytes as f64 / seconds / 1e9 };
    let files = if paths.len() > 1 { format!(" of {} files", paths.len()) } else { String::new() };
    let (root, all) = (arguments.root, started.elapsed().as_secs_f64());
    let took = format!("{seconds:.3} s in the collective, {rate:.2} GB/s; {all:.3} s in all");
    say(&format!("{bytes} bytes{files} from rank {root} to {} ranks: {took}\n", arguments.ranks))
}

/// What `input` stands for: itself, and as an index the files that it names.
fn files(input: &Path) -> Result<Vec<PathBuf>, CliError> {
    let Some(index) = Index::open(input)? else {
        let start = kinds::start(input);
        let claims = input.extension().is_some_and(|extension| extension == "safetensors");
        // Any content goes to all ranks. That it is not what its name says is told all the same.
        if (claims || kinds::is_lfs_pointer(&start))
            && let Some(guess) = kinds::guess(&start)
            && Checkpoint::open(input).is_err()
        {
            eprintln!("crossccl: {}: {guess} (broadcast as it is)", input.display());
        }
        return Ok(vec![input.into()]);
    };
    // Of safetensors files, that each has what the index says; of others, that they are there.
    if index.files.keys().any(|name| name.ends_with(".safetensors")) {
        Checkpoint::open(input)?;
    }
    index.files.keys().try_for_each(|name| index.check_file(input, name))?;
    Ok([input.into()].into_iter().chain(index.paths()).collect())
}

/// One file to all ranks; how many bytes that were.
fn one<B: Backend>(source: Source, ranks: &mut Ranks<B>, named: bool) -> Result<u64, CliError> {
    let path = source.path.clone();
    let progress = Progress::new(source.length.unwrap_or(0));
    // Reading and hashing the file overlaps with the ranks' work on the piece before.
    let whole = thread::scope(|scope| {
        let (give, pieces) = sync_channel(1);
        let (give_back, empty) = channel();
        // One is read while the ranks have the other.
        for _ in 0..2 {
            let _ = give_back.send(Vec::new());
        }
        let reader = spawn(scope, || source.read(give, empty))?;
        ranks.take_all(pieces, give_back, &progress)?;
        join(reader)
    })?;
    drop(progress);
    let report = Report { path: &path, whole: whole.hash, copies: ranks.hashes() };
    let head = if named { format!("{}:\n", path.display()) } else { String::new() };
    say(&format!("{head}{}", report.lines()))?;
    report.verdict()?;
    Ok(whole.bytes)
}

/// Two pieces that are read, their complement, and one per thread. Where buffers are the host's memory, also one per
/// rank and the root's.
fn check_memory<B: Backend>(arguments: &BroadcastArguments, piece: usize) -> Result<(), CliError> {
    let buffers = if is_host::<B>() { arguments.ranks + 1 } else { 0 };
    let needed = ((buffers + 3 + threads(arguments.ranks)) as u64).saturating_mul(piece as u64);
    let what = format!("pieces of {piece} bytes for {} ranks", arguments.ranks);
    memory::check(&what, needed + memory_of_ranks::<B>(arguments.ranks), LOWER)
}

/// What takes less memory.
const LOWER: &str = "--piece-bytes or --ranks";

/// How many threads look after so many ranks.
fn threads(ranks: usize) -> usize {
    available_parallelism().map_or(1, NonZero::get).min(ranks)
}

/// The file, opened.
struct Source {
    path: PathBuf,
    file: File,
    /// `None` for what has no length, such as a pipe.
    length: Option<u64>,
    piece_bytes: usize,
}

/// What was read of it.
struct Whole {
    bytes: u64,
    hash: String,
}

impl Source {
    fn open(path: &Path, piece_bytes: usize) -> Result<Self, CliError> {
        let cannot = |error| failure(path, format!("cannot be read: {error}"));
        // Before it is opened. A pipe is read to its end, and so is a disk; other devices may have none.
        let facts = path.metadata().map_err(cannot)?;
        if !(facts.is_file() || is_pipe_or_disk(&facts)) {
            return Err(failure(path, format!("{}; give a file or a pipe", kind(&facts))));
        }
        let file = File::open(path).map_err(cannot)?;
        let facts = file.metadata().map_err(cannot)?;
        let length = facts.is_file().then_some(facts.len());
        let most = length.map_or(u64::MAX, |l| l.max(1));
        let piece_bytes = piece_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Source { path: path.into(), file, length, piece_bytes })
    }

    /// Reads into the buffers that come from `empty`, until the end or until nobody takes pieces any
    /// more.
    fn read(self, give: SyncSender<Vec<u8>>, empty: Receiver<Vec<u8>>) -> Result<Whole, CliError> {
        let mut hash = Sha256::new();
        let mut bytes = 0;
        while let Ok(mut piece) = empty.recv() {
            piece.clear();
            piece
                .try_reserve_exact(self.piece_bytes)
                .map_err(|_| CliError::Failure(format!("not enough memory for a piece; lower {LOWER}")))?;
            (&self.file)
                .take(self.piece_bytes as u64)
                .read_to_end(&mut piece)
                .map_err(|error| failure(&self.path, format!("cannot be read: {error}")))?;
            bytes += piece.len() as u64;
            // A file that grows as fast as it is read would have no end.
            if self.length.is_some_and(|l| bytes > l || (piece.is_empty() && bytes < l)) {
                return Err(self.changed(bytes));
            }
            if piece.is_empty() {
                break;
            }
            hash.update(&piece);
            if give.send(piece).is_err() {
                break;
            }
        }
        Ok(Whole { bytes, hash: hex(&hash.finalize()) })
    }

    fn changed(&self, bytes: u64) -> CliError {
        let (was, path) = (self.length.unwrap_or(0), &self.path);
        let how = if bytes < was { format!("only {bytes} could be read") } else { "more could be read".into() };
        failure(path, format!("had {was} bytes when it was opened and {how}; run again when nothing writes to it"))
    }
}

/// The ranks, their buffers and hashes.
struct Ranks<B: Backend> {
    comm: Communicator<B>,
    what: Broadcast,
    root: usize,
    input: Option<Buffer<B, u8>>,
    lanes: Vec<Lane<B>>,
    complement: Vec<u8>,
    in_collective: Duration,
}

/// Ranks that one host thread looks after, and its staging memory.
struct Lane<B: Backend> {
    copies: Vec<RankCopy<B>>,
    host: Vec<u8>,
}

struct RankCopy<B: Backend> {
    rank: usize,
    buffer: Option<Buffer<B, u8>>,
    hash: Sha256,
}

impl<B: Backend> Ranks<B> {
    fn new(comm: Communicator<B>, arguments: &BroadcastArguments) -> Self {
        let ranks: Vec<usize> = (0..comm.ranks()).collect();
        let threads = threads(ranks.len());
        let lane = |ranks: &[usize]| Lane {
            copies: ranks.iter().map(|rank| RankCopy { rank: *rank, buffer: None, hash: Sha256::new() }).collect(),
            host: Vec::new(),
        };
        Ranks {
            what: Broadcast::from_root(arguments.root).algorithm(arguments.algorithm).label("file"),
            root: arguments.root,
            input: None,
            lanes: ranks.chunks(ranks.len().div_ceil(threads)).map(lane).collect(),
            complement: Vec::new(),
            in_collective: Duration::ZERO,
            comm,
        }
    }

    fn take_all(
        &mut self,
        pieces: Receiver<Vec<u8>>,
        give_back: Sender<Vec<u8>>,
        progress: &Progress,
    ) -> Result<(), CliError> {
        for piece in pieces {
            self.take(&piece)?;
            progress.advance(piece.len());
            // The reader is gone when this was the last piece.
            let _ = give_back.send(piece);
        }
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), CliError> {
        let comm = &self.comm;
        let input = fitting(&mut self.input, comm, self.root, piece.len())?;
        input.write_bytes(piece)?;
        memory::resize(&mut self.complement, piece.len(), LOWER)?;
        self.complement.iter_mut().zip(piece).for_each(|(to, byte)| *to = !byte);
        let complement = &self.complement;
        each_lane(&mut self.lanes, |lane| {
            for copy in &mut lane.copies {
                fitting(&mut copy.buffer, comm, copy.rank, piece.len())?.write_bytes(complement)?;
            }
            Ok(())
        })?;
        let outputs = self.lanes.iter_mut().flat_map(|l| &mut l.copies).filter_map(|c| c.buffer.as_mut());
        let started = Instant::now();
        // The call may tell of it as well as the wait: a rank has failed by then.
        comm.broadcast(&*input, outputs, self.what.clone()).and_then(|call| call.wait()).map_err(not_done)?;
        self.in_collective += started.elapsed();
        each_lane(&mut self.lanes, |lane| {
            memory::resize(&mut lane.host, piece.len(), LOWER)?;
            for copy in &mut lane.copies {
                if let Some(buffer) = &copy.buffer {
                    buffer.read_bytes(&mut lane.host)?;
                    copy.hash.update(&lane.host);
                }
            }
            Ok(())
        })
    }

    fn hashes(&mut self) -> Vec<String> {
        let copies = self.lanes.iter_mut().flat_map(|l| &mut l.copies);
        copies.map(|c| hex(&c.hash.finalize_reset())).collect()
    }
}

/// The buffer in `slot`, of exactly `len` bytes: all pieces but the last have one length.
fn fitting<'a, B: Backend>(
    slot: &'a mut Option<Buffer<B, u8>>,
    comm: &Communicator<B>,
    rank: usize,
    len: usize,
) -> Result<&'a mut Buffer<B, u8>, CliError> {
    if slot.as_ref().is_none_or(|buffer| buffer.len() != len) {
        // First the old one goes: both might not fit.
        *slot = None;
        *slot = Some(comm.buffer(rank, len)?);
    }
    slot.as_mut().ok_or_else(|| CliError::Failure(format!("rank {rank} has no buffer")))
}

fn each_lane<B: Backend>(
    lanes: &mut [Lane<B>],
    work: impl Fn(&mut Lane<B>) -> Result<(), CliError> + Sync,
) -> Result<(), CliError> {
    thread::scope(|scope| {
        let work = &work;
        let running: Result<Vec<_>, _> = lanes.iter_mut().map(|lane| spawn(scope, move || work(lane))).collect();
        running?.into_iter().try_for_each(join)
    })
}

/// A thread that cannot be had is an error. (It once was a panic.)
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T, CliError> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, CliError>>, CliError> {
    let thread = thread::Builder::new().spawn_scoped(scope, work);
    thread.map_err(|error| CliError::no_thread("a thread to read, hash and compare", &error))
}

#[cfg(unix)]
fn is_pipe_or_disk(facts: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    facts.file_type().is_fifo() || facts.file_type().is_block_device()
}

#[cfg(not(unix))]
fn is_pipe_or_disk(_facts: &Metadata) -> bool {
    false
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T, CliError>>) -> Result<T, CliError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file's hash beside those of the ranks' copies.
struct Report<'a> {
    path: &'a Path,
    whole: String,
    copies: Vec<String>,
}

impl Report<'_> {
    fn lines(&self) -> String {
        let mut lines = String::new();
        let width = self.copies.len().saturating_sub(1).to_string().len();
        for (rank, hash) in self.copies.iter().enumerate() {
            let verdict = if *hash == self.whole { "ok" } else { "differs" };
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "rank {rank:>width$}  {hash}  {verdict}");
        }
        lines
    }

    fn verdict(&self) -> Result<(), CliError> {
        let wrong: Vec<String> = (self.copies.iter().enumerate())
            .filter(|(_, hash)| **hash != self.whole)
            .map(|(rank, _)| format!("rank {rank}"))
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let what = format!(
            "has sha256 {}, and the copy of {} differs; do not use this machine for broadcasts before the cause is known",
            self.whole,
            wrong.join(", ")
        );
        Err(failure(self.path, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_differs_is_told_and_fails() {
        let copies = vec!["aa".to_owned(), "ab".into(), "aa".into(), "00".into()];
        let report = Report { path: Path::new("file"), whole: "aa".into(), copies };
        assert_eq!(report.lines(), "rank 0  aa  ok\nrank 1  ab  differs\nrank 2  aa  ok\nrank 3  00  differs\n");
        let error = report.verdict().unwrap_err();
        assert!(matches!(error, CliError::Failure(_)));
        assert!(error.to_string().starts_with("file: has sha256 aa, and the copy of rank 1, rank 3 differs;"));
    }

    /// Reads through a `Source` that believes in `length`.
    fn read(content: &[u8], length: Option<u64>) -> Result<Whole, CliError> {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, content).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let source = Source { path: "file".into(), file, length, piece_bytes: 3 };
        let (give, pieces) = sync_channel(10);
        let (give_back, empty) = channel();
        for _ in 0..10 {
            give_back.send(Vec::new()).unwrap();
        }
        let whole = source.read(give, empty);
        assert!(pieces.iter().flatten().eq(content.iter().copied()) || whole.is_err());
        whole
    }

    #[test]
    fn a_file_that_changes_its_length_is_an_error() {
        assert_eq!(read(b"0123456789", Some(10)).unwrap().bytes, 10);
        assert_eq!(read(b"0123456789", None).unwrap().bytes, 10);
        assert_eq!(read(b"", Some(0)).unwrap().bytes, 0);
        for (length, how) in [(11, "only 10 could be read"), (9, "more could be read"), (0, "more could be read")] {
            let text = read(b"0123456789", Some(length)).map(|w| w.bytes).unwrap_err().to_string();
            let expected =
                format!("file: had {length} bytes when it was opened and {how}; run again when nothing writes to it");
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_reader_whom_nobody_listens_to_stops() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[1; 100]).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let source = Source { path: "file".into(), file, length: Some(100), piece_bytes: 1 };
        let (give, pieces) = sync_channel(1);
        let (give_back, empty) = channel();
        give_back.send(Vec::new()).unwrap();
        drop(pieces);
        assert_eq!(source.read(give, empty).unwrap().bytes, 1);
    }
}
