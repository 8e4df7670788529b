//! `crossccl broadcast` and `crossccl reduce-scatter`: the collectives on files.

// Without a backend nothing instantiates what is generic over one.
#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod broadcast;
mod checkpoint;
mod index;
mod kinds;
mod progress;
mod reduce_scatter;

use std::{fmt, io::Write, path::Path, time::Duration};

pub(crate) use broadcast::{BroadcastArguments, run as broadcast};
use clap::Args;
use crossccl::{Backend, BackendKind, Communicator, MAX_RANKS};
pub(crate) use reduce_scatter::{ReduceScatterArguments, run as reduce_scatter};

use crate::{backend::builder, error::CliError};

/// What both commands take.
#[derive(Debug, Args)]
struct CommonArguments {
    /// Which backend runs the ranks
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: BackendKind,
    /// Let ranks share devices where there are fewer devices than ranks
    #[arg(long)]
    virtual_ranks: bool,
    /// How long a rank waits for another before the command fails
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    timeout: Duration,
}

impl CommonArguments {
    fn communicator<B: Backend>(&self, ranks: usize) -> Result<Communicator<B>, CliError> {
        Ok(builder(ranks, self.virtual_ranks)?.timeout(self.timeout).build()?)
    }
}

fn check_ranks(ranks: usize, what: &str) -> Result<(), CliError> {
    if (1..=MAX_RANKS).contains(&ranks) {
        return Ok(());
    }
    Err(CliError::Usage(format!("{what}: {ranks} is not a number of ranks; give 1 to {MAX_RANKS}")))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.filter(|s| !s.is_zero()).ok_or_else(|| "give a number of seconds above 0, such as 30 or 0.5".into())
}

/// A number of bytes, with K, M or G for the powers of 1024.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
    // The upper limit keeps a slip of the finger from asking for all the memory there is.
    bytes.filter(|n| (1..=1 << 30).contains(n)).ok_or_else(|| "give 1 to 1G bytes, such as 4096, 512K or 16M".into())
}

/// A collective that failed. The library's advice, to reset, is for programs that go on.
fn not_done(error: crossccl::Error) -> CliError {
    let crossccl::Error::Timeout { operation, rank, missing, waited, .. } = error else { return error.into() };
    let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
    let (seconds, missing) = (waited.as_secs_f64(), missing.join(", "));
    CliError::Failure(format!(
        "{operation}: rank {rank} waited {seconds} s for rank {missing}; give a longer --timeout"
    ))
}

/// A failure that belongs to a file.
fn failure(path: &Path, what: impl fmt::Display) -> CliError {
    CliError::Failure(format!("{}: {what}", path.display()))
}

/// Writes `text` to standard output. A reader that went away is an error, not a panic.
fn say(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    (out.write_all(text.as_bytes()).and_then(|()| out.flush()))
        .map_err(|error| CliError::Failure(format!("standard output: cannot be written: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("3k"), Ok(3 << 10));
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for bad in ["", "0", "G", "2G", "-1", "1.5M", "18446744073709551615G", "1é", "1T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "nan", "inf", "1e300", "5s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
