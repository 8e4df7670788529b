//! One thread a rank, as programs are written that have one thread a device: each has its own handle, enqueues
//! on its own and meets the others in the kernels alone.
//!
//! Then one rank stays away. The others do not hang: within the time limit each gets a `Timeout` that names
//! the rank which did not come. All of them, the late one included, call `reset`, and work goes on.
//!
//! ```sh
//! cargo run --release --example one_thread_a_rank
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use crossccl::{Backend, Communicator, Error, Rank, RankComm, ReduceOp, Result};
use support::{Outcome, check, example};

const RANKS: usize = 4;
const MISSING: usize = 2;
const COUNT: usize = 1 << 16;
/// Short, for an example; the default is 30 s.
const LIMIT: Duration = Duration::from_secs(1);
/// For the meeting of all ranks in `reset`.
const RESET_LIMIT: Duration = Duration::from_secs(10);

example!(run);

fn run<B: Backend>(_: &[String]) -> Outcome {
    let ranks = Communicator::<B>::builder(0..RANKS).timeout(LIMIT).build()?.into_ranks();
    let stories: Vec<Result<Story>> = thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || one_rank(&rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's thread does not panic")).collect()
    });

    for (rank, story) in stories.into_iter().enumerate() {
        let story = story?;
        check(story.good == 2, || format!("rank {rank} had the right numbers {} times of 2", story.good))?;
        if rank == MISSING {
            continue;
        }
        let Some((error, after)) = story.failure else {
            return Err(format!("rank {rank} did not notice that rank {MISSING} was missing").into());
        };
        println!("rank {rank} after {} ms: {error}", after.as_millis());
        let named = matches!(&error, Error::Timeout { missing, .. } if missing[..] == [Rank::from(MISSING)]);
        check(named, || format!("rank {rank} does not name the missing rank {MISSING}: {error}"))?;
    }
    println!("{RANKS} ranks had the right numbers before that, and after reset again");
    Ok(())
}

/// What one thread saw.
struct Story {
    /// Calls with the right result.
    good: usize,
    failure: Option<(Error, Duration)>,
}

fn one_rank<B: Backend>(comm: &RankComm<B>) -> Result<Story> {
    let mut story = Story { good: usize::from(step(comm)?), failure: None };

    if comm.rank() != Rank::from(MISSING) {
        let begin = Instant::now();
        // The buffers stay in the call's hands until reset: dropping them is fine, they are kept alive.
        story.failure = step(comm).err().map(|error| (error, begin.elapsed()));
    }

    // Every rank's handle comes here, the one included that had missed the call.
    comm.reset(RESET_LIMIT)?;
    story.good += usize::from(step(comm)?);
    Ok(story)
}

/// Weights from rank 0 to all, gradients from all to the rank that owns the part. Whether this rank's result is
/// right.
fn step<B: Backend>(comm: &RankComm<B>) -> Result<bool> {
    let me = comm.rank().index();
    let mut weights = comm.buffer_from(&vec![me as f32; COUNT])?;
    let gradients = comm.buffer_from(&(0..COUNT).map(|i| (i % 100 + me) as f32).collect::<Vec<_>>())?;
    let part = comm.part(COUNT, ReduceOp::Sum)?;
    let mut share = comm.buffer::<f32>(part.count() as usize)?;

    // Both are enqueued before either is waited for; the stream keeps their order.
    let first = comm.reduce_scatter(&gradients, &mut share, ReduceOp::Sum)?;
    let second = comm.broadcast_in_place(&mut weights, 0)?;
    first.wait()?;
    second.wait()?;

    let all_ranks = (0..comm.ranks()).sum::<usize>();
    let wanted = (part.offset as usize..).map(|i| (comm.ranks() * (i % 100) + all_ranks) as f32);
    Ok(weights.to_vec()?.iter().all(|w| *w == 0.0) && share.to_vec()?.into_iter().zip(wanted).all(|(s, w)| s == w))
}
