//! How an engine embeds crossccl that has memory, streams and tensors of its own: by address and stream.
//!
//! A stand-in for such an engine allocates one arena a rank, makes a stream a rank and builds the communicator
//! from its own devices. A step then enqueues uploads, a reduce-scatter of gradients, and a broadcast of one
//! rank's result, all in stream order, and waits once. Nobody but the engine keeps the memory alive: each
//! unsafe block says why it may do what it does, and `drop` why the memory can go.
//!
//! ```sh
//! cargo run --release --example raw_pointers
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use std::time::{Duration, Instant};

use crossccl::{Algorithm, Backend, Broadcast, Communicator, DType, Fault, MemoryKind, RawRank, ReduceOp};
use support::{Outcome, check, example};

const RANKS: usize = 3;
/// Uneven over three ranks: 3334, 3333, 3333.
const COUNT: usize = 10_000;
const ROOT: usize = 2;

example!(run);

fn run<B: Backend>(_: &[String]) -> Outcome {
    let mut engine = Engine::<B>::start()?;
    for step in 0..3 {
        let gradients: Vec<Vec<f32>> =
            (0..RANKS).map(|rank| (0..COUNT).map(|i| (i % 1000 + rank * step) as f32).collect()).collect();
        let [shares, copies] = engine.step(&gradients)?;

        let mean: Vec<f32> =
            (0..COUNT).map(|i| gradients.iter().fold(0.0, |sum, g| sum + g[i]) / RANKS as f32).collect();
        check(shares.concat() == mean, || format!("step {step}: the shares are not the mean"))?;
        let root = &shares[ROOT];
        check(copies.iter().all(|copy| copy == root), || {
            format!("step {step}: not every rank has rank {ROOT}'s share")
        })?;
        println!("step {step}: shares of {:?} means, the last one on every rank", engine.parts);
    }
    Ok(())
}

/// One allocation of a device, from which the engine cuts its tensors.
struct Arena<B: Backend> {
    device: B::Device,
    address: u64,
    bytes: usize,
}

/// A tensor of the engine: an address, as far as crossccl is concerned.
#[derive(Clone, Copy)]
struct Tensor {
    address: u64,
    count: usize,
}

impl<B: Backend> Arena<B> {
    fn new(device: &B::Device, bytes: usize) -> Result<Self, Failure> {
        let address = B::allocate(device, MemoryKind::Device, bytes).map_err(Failure)?;
        Ok(Arena { device: device.clone(), address, bytes })
    }

    /// Tensors of f32 one behind the other, each where a vector of 16 bytes may start.
    fn cut<const N: usize>(&self, counts: [usize; N]) -> [Tensor; N] {
        let mut at = 0;
        counts.map(|count| {
            let tensor = Tensor { address: self.address + at as u64, count };
            at += (count * size_of::<f32>()).next_multiple_of(16);
            assert!(at <= self.bytes, "the engine's own arithmetic");
            tensor
        })
    }
}

/// A rank of the engine.
struct Seat<B: Backend> {
    stream: B::Stream,
    gradient: Tensor,
    share: Tensor,
    copy: Tensor,
    arena: Arena<B>,
}

struct Engine<B: Backend> {
    comm: Communicator<B>,
    seats: Vec<Seat<B>>,
    parts: Vec<usize>,
}

impl<B: Backend> Engine<B> {
    fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let devices = (0..RANKS).map(B::open).collect::<Result<Vec<_>, _>>().map_err(Failure)?;
        let comm = Communicator::<B>::builder([]).devices(devices.clone()).build()?;
        let part = |rank| comm.part(rank, COUNT, ReduceOp::Average).map(|part| part.count() as usize);
        let parts = (0..RANKS).map(part).collect::<crossccl::Result<Vec<_>>>()?;
        let mut engine = Engine { comm, seats: Vec::new(), parts };
        for (device, part) in devices.iter().zip(&engine.parts) {
            let arena = Arena::<B>::new(device, size_of::<f32>() * 3 * COUNT)?;
            let [gradient, share, copy] = arena.cut([COUNT, *part, engine.parts[ROOT]]);
            let stream = B::create_stream(device).map_err(Failure)?;
            engine.seats.push(Seat { stream, gradient, share, copy, arena });
        }
        Ok(engine)
    }

    /// The mean of the gradients, scattered, and rank [`ROOT`]'s share of it on every rank.
    ///
    /// Takes the engine by unique reference: while a step is under way nobody else uses its tensors.
    fn step(&mut self, gradients: &[Vec<f32>]) -> Result<[Vec<Vec<f32>>; 2], Box<dyn std::error::Error>> {
        let outcome = self.enqueue_and_wait(gradients);
        if outcome.is_err() {
            // A rank that is late may still read and write the tensors: not before reset has returned are
            // they the engine's again.
            self.comm.reset()?;
        }
        outcome
    }

    fn enqueue_and_wait(&mut self, gradients: &[Vec<f32>]) -> Result<[Vec<Vec<f32>>; 2], Box<dyn std::error::Error>> {
        let streams: Vec<B::Stream> = self.seats.iter().map(|seat| seat.stream.clone()).collect();
        let addresses = |send: fn(&Seat<B>) -> Tensor, recv: fn(&Seat<B>) -> Tensor| -> Vec<RawRank> {
            let one = |seat| RawRank::new(send(seat).address, recv(seat).address);
            self.seats.iter().map(one).collect()
        };
        for (seat, gradient) in self.seats.iter().zip(gradients) {
            upload::<B>(&seat.stream, seat.gradient, gradient)?;
        }

        let shares = addresses(|seat| seat.gradient, |seat| seat.share);
        // SAFETY:
        // - valid: each `send` is a tensor of COUNT floats and each `recv` one of the rank's part, in the arena
        //   of the rank's device. Arenas outlive the launches: `drop` sees to that, whatever happens here.
        // - reachable: the communicator was built over the arenas' devices, all of them peers.
        // - alone: `&mut self` keeps other steps away until `wait` below, or after an error `reset` in `step`,
        //   has returned; what this step enqueues besides is in the same streams and so before or after it.
        // - streams: one a rank, of the rank's device.
        let reduced =
            unsafe { self.comm.reduce_scatter_raw(&shares, &streams, &[COUNT; RANKS], DType::F32, ReduceOp::Average)? };

        // In the same streams, so the root's share is there when it is read. No wait of the host in between.
        let copies = addresses(|seat| seat.share, |seat| seat.copy);
        let what = Broadcast::from_root(ROOT).algorithm(Algorithm::OneStage);
        // SAFETY: as above; of the senders only the root's share is read, and like every `copy` it has as many
        // floats as the root's part.
        let copied = unsafe { self.comm.broadcast_raw(&copies, &streams, self.parts[ROOT], DType::F32, what)? };

        // The outcome is told here and nowhere else: an event of the stream passes after a failure as well.
        reduced.wait()?;
        copied.wait()?;
        let download = |tensor: fn(&Seat<B>) -> Tensor| -> Result<Vec<Vec<f32>>, Failure> {
            self.seats.iter().map(|seat| download::<B>(&seat.stream, tensor(seat))).collect()
        };
        Ok([download(|seat| seat.share)?, download(|seat| seat.copy)?])
    }

    /// Whether nothing uses the arenas any more. Ends what waits for a rank that will not come.
    fn is_at_rest(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        let idle =
            |seat: &Seat<B>| B::record(&seat.stream).and_then(|event| B::wait(&event, Some(deadline))).unwrap_or(false);
        self.comm.reset().is_ok() && self.seats.iter().all(idle)
    }
}

impl<B: Backend> Drop for Engine<B> {
    fn drop(&mut self) {
        if !self.is_at_rest() {
            // Rather lost than freed under a kernel that still writes to it.
            return;
        }
        for Seat { arena, .. } in self.seats.drain(..) {
            // SAFETY: it came from `allocate` with this device, kind and size, is given back here alone, and
            // every launch and copy that was given one of its addresses is complete: `is_at_rest`.
            unsafe { B::free(&arena.device, MemoryKind::Device, arena.address, arena.bytes) };
        }
    }
}

/// Copies into a tensor, after what is in the stream, and waits.
fn upload<B: Backend>(stream: &B::Stream, to: Tensor, from: &[f32]) -> Result<(), Failure> {
    assert_eq!(from.len(), to.count, "the engine's own arithmetic");
    // SAFETY: the tensor lies in an arena, `from` is as long; both live until the wait returns, which it does
    // before this function.
    unsafe { B::copy(stream, to.address, from.as_ptr() as u64, size_of_val(from)) }.map_err(Failure)?;
    B::wait(&B::record(stream).map_err(Failure)?, None).map_err(Failure).map(drop)
}

/// Copies out of a tensor, after what is in the stream, and waits.
fn download<B: Backend>(stream: &B::Stream, from: Tensor) -> Result<Vec<f32>, Failure> {
    let mut to = vec![0f32; from.count];
    // SAFETY: as for `upload`; any bits are floats.
    unsafe { B::copy(stream, to.as_mut_ptr() as u64, from.address, size_of_val(&to[..])) }.map_err(Failure)?;
    B::wait(&B::record(stream).map_err(Failure)?, None).map_err(Failure)?;
    Ok(to)
}

/// What the driver answered to the engine's own calls.
#[derive(Debug)]
struct Failure(Fault);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed with code {}: {}", self.0.call, self.0.code, self.0.name)
    }
}

impl std::error::Error for Failure {}
