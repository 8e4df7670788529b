//! `crossccl reduce-scatter`: checkpoints of one layout, one a rank, reduced tensor by tensor.
//!
//! Every tensor goes through reduce-scatter as one dimension, large ones piece by piece; the ranks' parts
//! stand one behind the other in the result. All files are checked before anything is reduced, and
//! the output gets its name after its last byte is on the disk.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Args;
use crossccl::{Backend, Buffer, Communicator, DType, ReduceOp, ReduceScatter, Untyped};

use super::{
    CommonArguments, check_ranks,
    checkpoint::{Checkpoint, Output, Tensor},
    failure, not_done, parse_bytes,
    progress::Progress,
    say,
};
use crate::{backend::with_backend, error::CliError, whole_file::folder};

/// Where nothing else is asked for, all ranks together have at most this many bytes of input at a time.
const IN_MEMORY: usize = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct ReduceScatterArguments {
    /// Safetensors files with the same tensors, rank 0 first; each is a rank
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The result: names, dtypes, shapes and metadata as in the first file. Replaced where it exists,
    /// and only by a complete one
    #[arg(long, value_name = "OUT")]
    output: PathBuf,
    /// sum, average, min, max or product
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
    check_output(arguments)?;
    let inputs = arguments.inputs.iter().map(|path| Checkpoint::open(path)).collect::<Result<Vec<_>, _>>()?;
    for other in &inputs[1..] {
        inputs[0].check_layout(other)?;
    }
    with_backend!(arguments.common.backend, B => run_on::<B>(arguments, inputs))
}

fn run_on<B: Backend>(arguments: &ReduceScatterArguments, mut inputs: Vec<Checkpoint>) -> Result<(), CliError> {
    let started = Instant::now();
    let op = if arguments.average { ReduceOp::Average } else { arguments.op };
    let mut reduction = Reduction::<B> {
        comm: arguments.common.communicator(inputs.len())?,
        what: ReduceScatter::new(op).label("checkpoint"),
        piece_bytes: arguments.piece_bytes.unwrap_or(IN_MEMORY / inputs.len()),
        buffers: None,
        host: Vec::new(),
    };
    let tensors = inputs[0].tensors.clone();
    let bytes: u64 = tensors.iter().map(Tensor::bytes).sum();
    let mut output = Output::create(&arguments.output, &inputs[0])?;
    let progress = Progress::new(bytes);
    for tensor in &tensors {
        reduction.reduce(tensor, &mut inputs, &mut output, &progress)?;
    }
    output.finish()?;
    drop(progress);
    say(&format!(
        "{}: {op} of {} files, {} tensors, {bytes} bytes, {:.3} s\n",
        arguments.output.display(),
        inputs.len(),
        tensors.len(),
        started.elapsed().as_secs_f64()
    ))
}

/// The rename at the end would replace a device file without asking. An input may be replaced, since it
/// was read by then, but only for who says so. (Another hard link to an input is another file from then on.)
fn check_output(arguments: &ReduceScatterArguments) -> Result<(), CliError> {
    let output = &arguments.output;
    if !folder(output).is_dir() {
        let what = format!("its folder {} does not exist; create it first", folder(output).display());
        return Err(failure(output, what));
    }
    let Ok(facts) = output.metadata() else { return Ok(()) };
    if !facts.is_file() {
        return Err(failure(output, "exists and is not a regular file; give another --output"));
    }
    match arguments.inputs.iter().find(|input| same_file(input, output)) {
        Some(input) if !arguments.force => Err(CliError::Usage(format!(
            "--output: {} is the input {}; give another, or --force to replace the input when the result is complete",
            output.display(),
            input.display()
        ))),
        _ => Ok(()),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
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
        let size = tensor.dtype.size();
        let piece = (self.piece_bytes / size).max(1) * size;
        let mut done = 0;
        while done < tensor.bytes() {
            let bytes = usize::try_from(tensor.bytes() - done).map_or(piece, |left| left.min(piece));
            self.host.resize(bytes, 0);
            let buffers = fitting(&mut self.buffers, &self.comm, &self.what, tensor.dtype, bytes / size)?;
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
                output.write(bytes)?;
            }
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
