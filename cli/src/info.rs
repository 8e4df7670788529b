//! `crossccl info`: what this build can do on this machine.

// Without a backend, only the list of backends is printed.
#![cfg_attr(not(feature = "cpu"), allow(dead_code, unused_variables))]

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    num::NonZero,
    thread::available_parallelism,
};

use clap::Args;
use crossccl::{Backend, BackendKind, MAX_BLOCKS, MAX_RANKS, Properties};

use crate::{
    backend::{builder, with_backend},
    error::CliError,
};

#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// How many devices of the CPU backend, which has as many as asked for, to show in the peer matrix
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64))]
    ranks: u32,
}

pub(crate) fn run(arguments: &InfoArguments) -> Result<(), CliError> {
    let mut text = format!("crossccl {}\n", env!("CARGO_PKG_VERSION"));
    text += &format!("limits: {MAX_RANKS} ranks, {MAX_BLOCKS} blocks a launch\n\nbackends:\n");
    for kind in BackendKind::ALL {
        let compiled = if kind.is_compiled() { "compiled in" } else { "not compiled in" };
        let state = kind.check().map_or_else(|error| error.to_string(), |()| "available".into());
        text += &format!("  {:<5} {compiled:<16} {state}\n", kind.name());
    }
    if !BackendKind::ALL.into_iter().any(BackendKind::is_compiled) {
        text += "\nno backend is compiled in: build with `--features cpu`\n";
    }
    for kind in BackendKind::ALL.into_iter().filter(|kind| kind.check().is_ok()) {
        text += &section(kind, arguments.ranks as usize)?;
    }
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| CliError::Failure(format!("info: cannot write to standard output: {e}")))
}

fn section(kind: BackendKind, ranks: usize) -> Result<String, CliError> {
    with_backend!(kind, Chosen => Ok(describe::<Chosen>(kind, ranks)))
}

/// What is wrong with a backend is part of the answer, not the end of it.
fn describe<B: Backend>(kind: BackendKind, ranks: usize) -> String {
    let mut text = format!("\n{kind}:\n");
    let count = match B::device_count() {
        Ok(count) => count,
        Err(fault) => return text + &format!("  no devices: {}\n", fault.name),
    };
    let shown = if kind == BackendKind::Cpu {
        let cores = available_parallelism().map_or(1, NonZero::get);
        text += &format!("  {count} virtual devices on {cores} cores\n");
        ranks.min(count)
    } else {
        for ordinal in 0..count {
            let emulated = |p: Properties| if p.emulated { p.name + ", emulated: no hardware" } else { p.name };
            let name = B::open(ordinal).and_then(|device| B::properties(&device, count, 1)).map(emulated);
            text += &format!("  device {ordinal}: {}\n", name.unwrap_or_else(|fault| fault.name));
        }
        // One driver for all.
        let properties = B::open(0).and_then(|device| B::properties(&device, count, 1));
        for fault in properties.map_or_else(|_| Vec::new(), |p| p.known_faults) {
            text += &format!("  known to be wrong with this driver: {fault}\n");
        }
        count.min(MAX_RANKS)
    };
    text += &format!("  peer access (devices 0 to {}; the row's device reaches the column's memory):\n", shown - 1);
    text += &peers::<B>(shown);
    text += &links::<B>(shown);
    let test = match builder::<B>(shown, false).and_then(|builder| Ok(builder.build()?)) {
        Ok(_) => "each of these wrote to and read back from each other one".into(),
        Err(error) => error.to_string(),
    };
    text + &format!("  self-test: {test}\n")
}

/// What joins the devices: each kind of link once, with the pairs that have it.
fn links<B: Backend>(shown: usize) -> String {
    let devices: Vec<_> = (0..shown).filter_map(|ordinal| B::open(ordinal).ok().map(|d| (ordinal, d))).collect();
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for (at, (from, a)) in devices.iter().enumerate() {
        for (to, b) in &devices[at + 1..] {
            let link = B::link(a, b).map_or_else(|fault| format!("unknown ({})", fault.name), |link| link.to_string());
            let pair = format!("{from}-{to}");
            match kinds.iter_mut().find(|(kind, _)| *kind == link) {
                Some((_, pairs)) => pairs.push(pair),
                None => kinds.push((link, vec![pair])),
            }
        }
    }
    let all = kinds.len() == 1;
    let line = |(kind, pairs): &(String, Vec<String>)| {
        let pairs = if all && pairs.len() > 1 { "every pair".into() } else { pairs.join(", ") };
        format!("  link: {kind}: {pairs}\n")
    };
    kinds.iter().map(line).collect()
}

fn peers<B: Backend>(shown: usize) -> String {
    let devices: Vec<_> = (0..shown).map(B::open).collect();
    let mut text = String::from("      ");
    for to in 0..shown {
        // Writing to a string does not fail.
        let _ = write!(text, " {to:>3}");
    }
    text.push('\n');
    for (from, a) in devices.iter().enumerate() {
        let _ = write!(text, "  {from:>4}");
        for (to, b) in devices.iter().enumerate() {
            let cell = match (a, b) {
                _ if from == to => "-",
                (Ok(a), Ok(b)) => match B::can_access_peer(a, b) {
                    Ok(true) => "ok",
                    Ok(false) => "no",
                    Err(_) => "?",
                },
                _ => "?",
            };
            let _ = write!(text, " {cell:>3}");
        }
        text.push('\n');
    }
    text
}
