//! Inference of a perceptron with one hidden layer, cut over the ranks: each has some of the hidden units.
//!
//! One rank reads the weights from a safetensors file and broadcasts them. Every rank computes its hidden units and what
//! they contribute to each output; the contributions are summed, and each rank gets the outputs of its rows of the batch
//! (a reduce-scatter along the batch). The result has the bits of one device that adds the same contributions one after the
//! other, and is near that of one that does not cut the sum at all.
//!
//! ```sh
//! cargo run --release --example tensor_parallel_mlp                          # weights of its own
//! cargo run --release --example tensor_parallel_mlp -- cpu mlp.safetensors   # up, up.bias, down, down.bias of f32
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use std::{fs, ops::Range, path::Path};

use crossccl::{Backend, Broadcast, Buffer, Communicator, ReduceOp, ReduceScatter};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use support::{Outcome, check, example};

const RANKS: usize = 4;
const ROOT: usize = 0;
/// Rows of a batch. Not a multiple of the ranks: the first ones get one more.
const BATCH: usize = 18;

example!(run);

/// Row-major, outputs by inputs.
struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

/// Both layers, as one rank has them.
struct Mlp {
    up: Layer,
    down: Layer,
}

fn run<B: Backend>(arguments: &[String]) -> Outcome {
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("mlp.safetensors");
    let path = match arguments.first() {
        Some(path) => Path::new(path),
        None => {
            write_weights(&own)?;
            &own
        }
    };
    let comm = Communicator::<B>::builder(0..RANKS).build()?;
    let models = load(&comm, path)?;
    let (hidden, outputs) = (models[0].up.bias.len(), models[0].down.bias.len());
    let batch: Vec<f32> = values(BATCH * models[0].up.inputs, 7);

    // Which hidden units a rank has follows the same rule as which rows it gets.
    let units = parts(&comm, hidden)?;
    let rows = parts(&comm, BATCH)?;
    let mut inputs = Vec::new();
    for (rank, (model, units)) in models.iter().zip(&units).enumerate() {
        inputs.push(comm.buffer_from(rank, &model.contribution(&batch, units.clone()))?);
    }
    let mut results =
        (0..RANKS).map(|rank| comm.buffer::<f32>(rank, rows[rank].len() * outputs)).collect::<Result<Vec<_>, _>>()?;
    let along_the_batch = ReduceScatter::new(ReduceOp::Sum).shape([BATCH, outputs]).axis(0).label("outputs");
    comm.reduce_scatter(&inputs, &mut results, along_the_batch)?.wait()?;

    let mut found = Vec::new();
    for result in &results {
        found.extend(models[0].with_bias(result.to_vec()?));
    }
    let in_turn = units.iter().map(|units| models[0].contribution(&batch, units.clone()));
    let sum = in_turn.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect()).unwrap_or_default();
    check(found == models[0].with_bias(sum), || "not the bits of the contributions added in rank order".into())?;
    let whole = models[0].with_bias(models[0].contribution(&batch, 0..hidden));
    let far = found.iter().zip(&whole).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f32::max);
    check(far < 1e-5, || format!("{far} from what one device computes"))?;
    println!(
        "{BATCH} rows, {hidden} hidden units on {RANKS} ranks ({units:?}), {outputs} outputs: \
         rank order's bits, at most {far:.1e} from one device's"
    );
    Ok(())
}

/// The ranges of all ranks, as a reduce-scatter cuts `count`.
fn parts<B: Backend>(comm: &Communicator<B>, count: usize) -> Result<Vec<Range<usize>>, crossccl::Error> {
    let part = |rank| comm.part(rank, count, ReduceOp::Sum);
    (0..comm.ranks()).map(|rank| part(rank).map(|p| p.offset as usize..(p.offset + p.count()) as usize)).collect()
}

/// The root reads the file, everybody gets all of it.
fn load<B: Backend>(comm: &Communicator<B>, path: &Path) -> Result<Vec<Mlp>, Box<dyn std::error::Error>> {
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut layers: Vec<Vec<Layer>> = (0..RANKS).map(|_| Vec::new()).collect();
    for name in ["up", "down"] {
        let (weight, bias) = (file.tensor(name)?, file.tensor(&format!("{name}.bias"))?);
        let [outputs, inputs] = weight.shape() else { return Err(format!("{name} has not two axes").into()) };
        check(bias.shape() == [*outputs] && weight.dtype() == Dtype::F32 && bias.dtype() == Dtype::F32, || {
            format!("{name}: expected f32, and a bias for each of {outputs} outputs")
        })?;
        let weights = send(comm, weight.data(), &format!("{name} to all"))?;
        let biases = send(comm, bias.data(), &format!("{name}.bias to all"))?;
        for ((layers, weight), bias) in layers.iter_mut().zip(weights).zip(biases) {
            layers.push(Layer { weight, bias, inputs: *inputs });
        }
    }
    let mut models = Vec::new();
    for layers in layers {
        let Ok([up, down]) = <[Layer; 2]>::try_from(layers) else { return Err("there are two layers".into()) };
        check(down.inputs == up.bias.len(), || format!("{} hidden units, and {}", up.bias.len(), down.inputs))?;
        models.push(Mlp { up, down });
    }
    Ok(models)
}

/// A tensor of the root's, as every rank then has it.
fn send<B: Backend>(comm: &Communicator<B>, data: &[u8], label: &str) -> crossccl::Result<Vec<Vec<f32>>> {
    let floats: Vec<f32> = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut buffers: Vec<Buffer<B, f32>> =
        (0..RANKS).map(|rank| comm.buffer(rank, floats.len())).collect::<Result<_, _>>()?;
    buffers[ROOT].write(&floats)?;
    comm.broadcast_in_place(&mut buffers, Broadcast::from_root(ROOT).target(label.to_owned()))?.wait()?;
    buffers.iter().map(Buffer::to_vec).collect()
}

impl Mlp {
    /// What the hidden units `units` contribute to every output of every row.
    fn contribution(&self, batch: &[f32], units: Range<usize>) -> Vec<f32> {
        let (hidden, outputs) = (self.up.bias.len(), self.down.bias.len());
        let mut sums = Vec::with_capacity(batch.len() / self.up.inputs * outputs);
        for row in batch.chunks_exact(self.up.inputs) {
            let active: Vec<f32> = (units.clone())
                .map(|unit| {
                    let weights = &self.up.weight[unit * self.up.inputs..][..self.up.inputs];
                    (self.up.bias[unit] + row.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>()).max(0.0)
                })
                .collect();
            sums.extend((0..outputs).map(|output| {
                let weights = &self.down.weight[output * hidden..][units.clone()];
                active.iter().zip(weights).map(|(h, w)| h * w).sum::<f32>()
            }));
        }
        sums
    }

    fn with_bias(&self, mut sums: Vec<f32>) -> Vec<f32> {
        let bias = &self.down.bias;
        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += bias[i % bias.len()]);
        sums
    }
}

/// Numbers between -1 and 1.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mix =
        |i: usize| (i as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..count).map(|i| (mix(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Weights of its own: 32 inputs, 50 hidden units, 24 outputs.
fn write_weights(path: &Path) -> Outcome {
    let tensors: [(&str, Vec<usize>); 4] =
        [("up", vec![50, 32]), ("up.bias", vec![50]), ("down", vec![24, 50]), ("down.bias", vec![24])];
    let data: Vec<Vec<u8>> = (tensors.iter().zip(0..))
        .map(|((_, shape), seed)| values(shape.iter().product(), seed).iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = (tensors.iter().zip(&data))
        .map(|((name, shape), data)| Ok((*name, TensorView::new(Dtype::F32, shape.clone(), data)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize_to_file(views, None, path)?)
}
