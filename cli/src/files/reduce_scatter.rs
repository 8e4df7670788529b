//! `crossccl reduce-scatter`: checkpoints of one layout, one a rank, reduced tensor by tensor.
//!
//! Every tensor goes through reduce-scatter as one dimension, large ones piece by piece; the ranks' parts
//! stand one behind the other in the result. All files are checked before anything is reduced, and
//! the output gets its name after its last byte is on the disk. What cannot be reduced is copied if all agree on it.

use std::{path::PathBuf, time::Instant};

use clap::Args;
use crossccl::{Backend, Buffer, Communicator, DType, ReduceOp, ReduceScatter, Untyped};

use super::{
    CommonArguments, check_ranks,
    checkpoint::{Checkpoint, Output, Tensor, outputs},
    failure, not_done, parse_bytes,
    progress::Progress,
    say,
};
use crate::{
    backend::{is_host, with_backend},
    error::CliError,
    memory,
    whole_file::{self, same_name},
};

/// Where nothing else is asked for, all ranks together have at most this many bytes of input at a time.
const IN_MEMORY: usize = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct ReduceScatterArguments {
    /// Checkpoints with the same tensors, one per rank, rank 0 first. Each is a safetensors file, or the index of a
    /// checkpoint in several files (model.safetensors.index.json)
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The result: names, dtypes, shapes and metadata as in the first FILE. If that is an index: a folder that exists,
    /// or a name for the new index; its files get the names of the first's. An existing file is replaced only by a
    /// complete one
    #[arg(long, value_name = "OUT")]
    output: PathBuf,
    /// sum, average (or avg), min, max or product (or prod). Tensors of a dtype that cannot be reduced, such as BOOL or
    /// I16, are copied if all files agree on them
    #[arg(long, value_name = "NAME", default_value = "sum")]
    op: ReduceOp,
    /// The same as `--op average`. Integers are truncated toward zero
    #[arg(long, conflicts_with = "op")]
    average: bool,
    /// Lets the output replace one of the inputs
    #[arg(long)]
    force: bool,
    /// Larger tensors go in pieces of this size; K, M and G are understood. Memory in use is about two
    /// pieces, and one more a rank. Default: what makes 64M for all ranks
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    piece_bytes: Option<usize>,
    #[command(flatten)]
    common: CommonArguments,
}

pub(crate) fn run(arguments: &ReduceScatterArguments) -> Result<(), CliError> {
    check_ranks(arguments.inputs.len(), "FILE (one a rank)")?;
    let inputs = arguments.inputs.iter().map(|path| Checkpoint::open(path)).collect::<Result<Vec<_>, _>>()?;
    for other in &inputs[1..] {
        inputs[0].check_layout(other)?;
    }
    check_output(arguments, &inputs)?;
    with_backend!(arguments.common.backend, B => run_on::<B>(arguments, inputs))
}

fn run_on<B: Backend>(arguments: &ReduceScatterArguments, mut inputs: Vec<Checkpoint>) -> Result<(), CliError> {
    let started = Instant::now();
    let op = if arguments.average { ReduceOp::Average } else { arguments.op };
    let tensors = inputs[0].tensors.clone();
    let piece_bytes = arguments.piece_bytes.unwrap_or(IN_MEMORY / inputs.len());
    check_memory::<B>(&tensors, piece_bytes, inputs.len())?;
    let copied: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.dtype.is_none()).collect();
    for tensor in &copied {
        check_equal(tensor, &mut inputs, piece_bytes)?;
    }
    let mut reduction = Reduction::<B> {
        comm: arguments.common.communicator(inputs.len())?,
        what: ReduceScatter::new(op).label("checkpoint"),
        piece_bytes,
        buffers: None,
        host: Vec::new(),
    };
    let bytes: u64 = tensors.iter().map(Tensor::bytes).sum();
    let mut output = Output::create(&arguments.output, &inputs[0])?;
    let progress = Progress::new(bytes);
    for tensor in &tensors {
        reduction.reduce(tensor, &mut inputs, &mut output, &progress)?;
    }
    output.finish()?;
    drop(progress);
    say(&format!(
        "{}: {op} of {} files, {} tensors, {bytes} bytes, {:.3} s\n{}",
        arguments.output.display(),
        inputs.len(),
        tensors.len(),
        started.elapsed().as_secs_f64(),
        told_of(&copied)
    ))
}

/// Tensors that are told of one by one.
const COPIED_SHOWN: usize = 8;

fn told_of(copied: &[&Tensor]) -> String {
    if copied.is_empty() {
        return String::new();
    }
    let shown = copied.iter().take(COPIED_SHOWN).map(|t| format!("`{}` {t}", t.name.escape_debug()));
    let mut shown: Vec<String> = shown.collect();
    if copied.len() > COPIED_SHOWN {
        shown.push(format!("and {} more", copied.len() - COPIED_SHOWN));
    }
    format!("copied, not reduced, since their dtypes cannot be and all files agree on them: {}\n", shown.join(", "))
}

/// Two pieces on the host, and where buffers are the host's, one a rank and the result.
fn check_memory<B: Backend>(tensors: &[Tensor], piece: usize, ranks: usize) -> Result<(), CliError> {
    let largest = tensors.iter().map(Tensor::bytes).max().unwrap_or(0).min(piece as u64);
    let pieces = if is_host::<B>() { ranks as u64 + 3 } else { 2 };
    memory::check(&format!("pieces of {largest} bytes for {ranks} ranks"), largest * pieces, LOWER)
}

/// What takes less memory.
const LOWER: &str = "--piece-bytes";

/// Says whether all files have the same bytes of a tensor that cannot be reduced.
fn check_equal(tensor: &Tensor, inputs: &mut [Checkpoint], piece: usize) -> Result<(), CliError> {
    let Some((first, others)) = inputs.split_first_mut() else { return Ok(()) };
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    let mut done = 0;
    while !others.is_empty() && done < tensor.bytes() {
        let bytes = usize::try_from(tensor.bytes() - done).map_or(piece, |left| left.min(piece));
        memory::resize(&mut mine, bytes, LOWER)?;
        memory::resize(&mut theirs, bytes, LOWER)?;
        first.read(&tensor.name, done, &mut mine)?;
        for other in others.iter_mut() {
            other.read(&tensor.name, done, &mut theirs)?;
            if mine != theirs {
                let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
                let what = format!(
                    "tensor `{}`, {tensor}, is another one than in {}; {} cannot be reduced, only copied if all files \
                     agree; the dtypes that can are {}",
                    tensor.name.escape_debug(),
                    first.path.display(),
                    tensor.type_name(),
                    names.join(", ")
                );
                return Err(failure(&other.path, what));
            }
        }
        done += bytes as u64;
    }
    Ok(())
}

/// Checks the names of the output. An input may be replaced, since it was read by then, but only with `--force`.
/// (Another hard link to an input is another file from then on.)
fn check_output(arguments: &ReduceScatterArguments, inputs: &[Checkpoint]) -> Result<(), CliError> {
    for output in outputs(&arguments.output, &inputs[0])? {
        whole_file::check("--output", &output)?;
        let mut all = inputs.iter().flat_map(Checkpoint::paths);
        match all.find(|input| same_name(input, &output)) {
            Some(input) if !arguments.force => {
                return Err(CliError::Usage(format!(
                    "--output: {} is the input {}; give another, or --force to replace the input when the result is \
                     complete",
                    output.display(),
                    input.display()
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The ranks, and their buffers for tensors of one dtype and size.
struct Reduction<B: Backend> {
    comm: Communicator<B>,
    what: ReduceScatter,
    piece_bytes: usize,
    buffers: Option<Buffers<B>>,
    host: Vec<u8>,
}

struct Buffers<B: Backend> {
    dtype: DType,
    count: usize,
    inputs: Vec<Buffer<B, Untyped>>,
    outputs: Vec<Buffer<B, Untyped>>,
}

impl<B: Backend> Reduction<B> {
    fn reduce(
        &mut self,
        tensor: &Tensor,
        inputs: &mut [Checkpoint],
        output: &mut Output,
        progress: &Progress,
    ) -> Result<(), CliError> {
        let Some(dtype) = tensor.dtype else { return self.copy(tensor, &mut inputs[0], output, progress) };
        let size = dtype.size();
        let piece = (self.piece_bytes / size).max(1) * size;
        let mut done = 0;
        while done < tensor.bytes() {
            let bytes = usize::try_from(tensor.bytes() - done).map_or(piece, |left| left.min(piece));
            memory::resize(&mut self.host, bytes, LOWER)?;
            let buffers = fitting(&mut self.buffers, &self.comm, &self.what, dtype, bytes / size)?;
            for (file, buffer) in inputs.iter_mut().zip(&mut buffers.inputs) {
                file.read(&tensor.name, done, &mut self.host)?;
                buffer.write_bytes(&self.host)?;
            }
            self.comm
                .reduce_scatter(&buffers.inputs, &mut buffers.outputs, self.what.clone())
                .and_then(|call| call.wait())
                .map_err(not_done)?;
            for part in &buffers.outputs {
                let bytes = &mut self.host[..part.size_in_bytes()];
                part.read_bytes(bytes)?;
                output.write(tensor.part, bytes)?;
            }
            done += bytes as u64;
            progress.advance(bytes);
        }
        Ok(())
    }

    /// Of a tensor that is the same in all files.
    fn copy(
        &mut self,
        tensor: &Tensor,
        input: &mut Checkpoint,
        output: &mut Output,
        progress: &Progress,
    ) -> Result<(), CliError> {
        let mut done = 0;
        while done < tensor.bytes() {
            let left = usize::try_from(tensor.bytes() - done);
            let bytes = left.map_or(self.piece_bytes, |left| left.min(self.piece_bytes));
            memory::resize(&mut self.host, bytes, LOWER)?;
            input.read(&tensor.name, done, &mut self.host)?;
            output.write(tensor.part, &self.host)?;
            done += bytes as u64;
            progress.advance(bytes);
        }
        Ok(())
    }
}

/// The buffers in `slot`, for exactly `count` elements of `dtype`.
fn fitting<'a, B: Backend>(
    slot: &'a mut Option<Buffers<B>>,
    comm: &Communicator<B>,
    what: &ReduceScatter,
    dtype: DType,
    count: usize,
) -> Result<&'a mut Buffers<B>, CliError> {
    let reusable = match slot.take() {
        Some(buffers) if buffers.dtype == dtype && buffers.count == count => Some(buffers),
        // Dropped before the new ones are made: both might not fit.
        _ => None,
    };
    let buffers = reusable.map_or_else(|| Buffers::new(comm, what, dtype, count), Ok)?;
    Ok(slot.insert(buffers))
}

impl<B: Backend> Buffers<B> {
    fn new(comm: &Communicator<B>, what: &ReduceScatter, dtype: DType, count: usize) -> Result<Self, CliError> {
        let mut buffers = Buffers { dtype, count, inputs: Vec::new(), outputs: Vec::new() };
        for rank in 0..comm.ranks() {
            let part = comm.part(rank, count, what.clone())?.count() as usize;
            if let Some(stream) = comm.stream(rank) {
                buffers.inputs.push(Buffer::with_dtype(stream, dtype, count)?);
                buffers.outputs.push(Buffer::with_dtype(stream, dtype, part)?);
            }
        }
        Ok(buffers)
    }
}
