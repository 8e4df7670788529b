//! A linear layer whose weight is split over ranks: each multiplies its columns of the input with its rows of the weight, and
//! a reduce-scatter along the batch adds the products up. Checked against the layer in one piece.
//!
//! ```sh
//! cargo run --release --manifest-path adapters/Cargo.toml -p crossccl-candle --example linear_layer
//! ```

use candle_core::{Device, Result, Tensor};
use crossccl::{Communicator, Cpu, RankComm, ReduceOp};
use crossccl_candle::{broadcast, reduce_scatter};

const RANKS: usize = 4;
const BATCH: usize = 6;
const INPUTS: usize = 32;
const OUTPUTS: usize = 10;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let x = Tensor::randn(0f32, 1., (BATCH, INPUTS), &Device::Cpu)?;
    let weight = Tensor::randn(0f32, 1., (INPUTS, OUTPUTS), &Device::Cpu)?;
    let whole = x.matmul(&weight)?;

    let ranks = Communicator::<Cpu>::builder(0..RANKS).build()?.into_ranks();
    let shares: Vec<Tensor> = std::thread::scope(|scope| {
        let (x, weight) = (&x, &weight);
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || one_rank(&rank, x, weight))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's thread does not panic")).collect::<Result<_>>()
    })?;

    let largest = (Tensor::cat(&shares, 0)? - &whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
    let rows: Vec<usize> = shares.iter().map(|share| share.dims()[0]).collect();
    println!("{RANKS} ranks have {rows:?} of {BATCH} rows; the largest difference is {largest:e}");
    // The same 32 products of numbers about 1, added in another order.
    if largest > 1e-4 {
        return Err(format!("the split layer differs by {largest}").into());
    }
    Ok(())
}

/// This rank's rows of the layer's output. Only rank 0 needs to know the weight.
fn one_rank(comm: &RankComm<Cpu>, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let rank = comm.rank().index();
    let mine = if rank == 0 { weight.clone() } else { weight.zeros_like()? };
    let comm = std::slice::from_ref(comm);
    let weight = broadcast(comm, &[mine], 0).map_err(candle_core::Error::wrap)?.remove(0);

    let columns = INPUTS / RANKS;
    let product = x.narrow(1, rank * columns, columns)?.matmul(&weight.narrow(0, rank * columns, columns)?)?;
    Ok(reduce_scatter(comm, &[product], 0, ReduceOp::Sum).map_err(candle_core::Error::wrap)?.remove(0))
}
