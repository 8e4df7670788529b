//! Gradient descent by ranks that each have some of the data: a reduce-scatter averages the gradients and gives each rank a
//! part of them, with which it moves its part of the weights; broadcasts give all ranks all parts.
//!
//! ```sh
//! cargo run --release --manifest-path adapters/Cargo.toml -p crossccl-burn --example descent_in_parts
//! ```

use std::slice::from_ref;

use burn_tensor::{Device, Distribution, Tensor};
use crossccl::{Communicator, Cpu, RankComm, ReduceOp, Result};
use crossccl_burn::{broadcast, reduce_scatter};

const RANKS: usize = 4;
const ROWS: usize = 64;
const FEATURES: usize = 8;
const STEPS: usize = 200;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let wanted = Tensor::<2>::random([FEATURES, 1], Distribution::Uniform(-1., 1.), &device);
    let data = Tensor::<2>::random([ROWS, FEATURES], Distribution::Normal(0., 1.), &device);

    let ranks = Communicator::<Cpu>::builder(0..RANKS).build()?.into_ranks();
    let found: Vec<Tensor<2>> = std::thread::scope(|scope| {
        let (data, wanted) = (&data, &wanted);
        let threads: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || one_rank(&rank, data, wanted))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's thread does not panic")).collect::<Result<_>>()
    })?;

    let error = (found[0].clone() - wanted).abs().max().into_scalar::<f32>();
    println!("{RANKS} ranks, {STEPS} steps: no weight is more than {error:e} off");
    // NaN is not below.
    if error >= 1e-3 || error.is_nan() {
        return Err(format!("a weight is {error} off").into());
    }
    if found.iter().any(|weights| weights.to_data() != found[0].to_data()) {
        return Err("the ranks have different weights".into());
    }
    Ok(())
}

/// The weights that this rank has in the end. It looks at its own rows alone.
fn one_rank(comm: &RankComm<Cpu>, data: &Tensor<2>, wanted: &Tensor<2>) -> Result<Tensor<2>> {
    let (rank, rows, part) = (comm.rank().index(), ROWS / RANKS, FEATURES / RANKS);
    let x = data.clone().narrow(0, rank * rows, rows);
    let y = x.clone().matmul(wanted.clone());
    let comm = from_ref(comm);
    let mut weights = wanted.zeros_like();
    for _ in 0..STEPS {
        let off = x.clone().matmul(weights.clone()) - y.clone();
        let gradient = x.clone().transpose().matmul(off) * (2.0 / rows as f32);
        let mean = reduce_scatter(comm, &[gradient], 0, ReduceOp::Average)?.remove(0);
        let mine = weights.narrow(0, rank * part, part) - mean * 0.1;
        let parts = (0..RANKS).map(|root| Ok(broadcast(comm, from_ref(&mine), root)?.remove(0)));
        weights = Tensor::cat(parts.collect::<Result<_>>()?, 0);
    }
    Ok(weights)
}
