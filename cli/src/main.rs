//! The command line of crossccl.

// Nothing panics on a file's content or a user's input.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

mod backend;
mod error;
mod files;
mod info;
mod memory;
mod perf;
mod size;
mod whole_file;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Collectives for the accelerators of one machine: broadcast and grouped reduce-scatter.
#[derive(Debug, Parser)]
#[command(name = "crossccl", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show backends, devices and which of them reach each other
    Info(info::InfoArguments),
    /// Broadcast a file to all ranks and prove every rank's copy by hash
    Broadcast(files::BroadcastArguments),
    /// Reduce checkpoints (safetensors files of equal layout, one a rank) tensor by tensor
    ReduceScatter(files::ReduceScatterArguments),
    /// Measure a collective over a range of sizes and verify its results; both of them, if none is named
    Perf(perf::PerfArguments),
    /// Measure which algorithm and how many blocks are best on this machine, and write rows that communicators read
    Tune(perf::tune::TuneArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Info(arguments) => info::run(&arguments),
        Command::Broadcast(arguments) => files::broadcast(&arguments),
        Command::ReduceScatter(arguments) => files::reduce_scatter(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Tune(arguments) => perf::tune::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crossccl: {error}");
            error.exit_code()
        }
    }
}
