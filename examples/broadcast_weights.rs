//! The weights of a model go from one rank to all: several tensors of several dtypes, each with a hash that
//! every rank's copy must have.
//!
//! What does not change is made once: the communicator, a request and a plan a tensor, one buffer a rank and
//! tensor. A second set of weights then goes through the same buffers; all tensors are enqueued before the
//! first is waited for.
//!
//! ```sh
//! cargo run --release --example broadcast_weights                         # a small model of its own
//! cargo run --release --example broadcast_weights -- cpu model.safetensors
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use std::{fs, path::Path};

use crossccl::{Backend, Broadcast, Buffer, Communicator, DType, Untyped};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sha2::{Digest, Sha256};
use support::{Outcome, check, example};

const RANKS: usize = 4;
const ROOT: usize = 1;

example!(run);

/// A tensor, and what every broadcast of it needs.
struct Weight<B: Backend> {
    name: String,
    what: Broadcast,
    /// One on each rank.
    buffers: Vec<Buffer<B, Untyped>>,
}

fn run<B: Backend>(arguments: &[String]) -> Outcome {
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("model.safetensors");
    let path = match arguments.first() {
        Some(path) => Path::new(path),
        None => {
            write_model(&own)?;
            &own
        }
    };
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));

    let comm = Communicator::<B>::builder(0..RANKS).build()?;
    let mut weights =
        tensors.iter().map(|(name, tensor)| prepare(&comm, name, tensor)).collect::<Result<Vec<_>, _>>()?;

    let first: Vec<Vec<u8>> = tensors.iter().map(|(_, tensor)| tensor.data().to_vec()).collect();
    send(&comm, &mut weights, &first)?;
    // As after a training step: every value is another one, everything else is as it was.
    let second: Vec<Vec<u8>> =
        first.iter().map(|data| data.iter().map(|byte| byte.wrapping_add(1)).collect()).collect();
    send(&comm, &mut weights, &second)
}

/// Plans the broadcast of one tensor and allocates for it.
fn prepare<B: Backend>(comm: &Communicator<B>, name: &str, tensor: &TensorView) -> Result<Weight<B>, crossccl::Error> {
    let dtype = dtype_of(tensor.dtype());
    let count = tensor.data().len() / dtype.size();
    let what = Broadcast::from_root(ROOT).label("weights").target(name.to_owned());
    let plan = comm.plan_broadcast(count, dtype, what.clone())?;
    println!("{name}: {} {:?}, as {count} x {dtype}, by {plan}", tensor.dtype(), tensor.shape());
    let buffers = (0..RANKS).map(|rank| comm.buffer_with_dtype(rank, dtype, count)).collect::<Result<_, _>>()?;
    Ok(Weight { name: name.to_owned(), what, buffers })
}

/// Puts `data` on the root, one tensor each, broadcasts it and compares the hashes of all ranks with the data's.
fn send<B: Backend>(comm: &Communicator<B>, weights: &mut [Weight<B>], data: &[Vec<u8>]) -> Outcome {
    for (weight, data) in weights.iter_mut().zip(data) {
        weight.buffers[ROOT].write_bytes(data)?;
    }
    let flights = (weights.iter_mut())
        .map(|weight| comm.broadcast_in_place(&mut weight.buffers, weight.what.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    for flight in flights {
        flight.wait()?;
    }

    for (weight, data) in weights.iter().zip(data) {
        let wanted = hash(data);
        for (rank, buffer) in weight.buffers.iter().enumerate() {
            let mut copy = vec![0; buffer.size_in_bytes()];
            buffer.read_bytes(&mut copy)?;
            check(hash(&copy) == wanted, || format!("{} of rank {rank} is not what the root has", weight.name))?;
        }
    }
    let bytes: usize = data.iter().map(Vec::len).sum();
    let all = hash(&data.concat());
    println!("{RANKS} ranks have the {} tensors of rank {ROOT}, {bytes} bytes, sha256 {}", data.len(), &all[..16]);
    Ok(())
}

/// A broadcast does not look at what it moves: where crossccl has no such type, bytes do.
fn dtype_of(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I8 => DType::I8,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I64 => DType::I64,
        Dtype::U64 => DType::U64,
        _ => DType::U8,
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A small model: odd lengths and five dtypes, one of them unknown to crossccl. Any bits do.
fn write_model(path: &Path) -> Outcome {
    let tensors: [(&str, Dtype, Vec<usize>); 5] = [
        ("embedding.weight", Dtype::BF16, vec![999, 64]),
        ("attention.weight", Dtype::F16, vec![64, 3 * 64]),
        ("norm.weight", Dtype::F32, vec![63]),
        ("mask", Dtype::BOOL, vec![7, 11]),
        ("step", Dtype::I64, vec![1]),
    ];
    let data = tensors.each_ref().map(|(_, dtype, shape)| -> Vec<u8> {
        let bits = shape.iter().product::<usize>() * dtype.bitsize();
        (0..bits / 8).map(|i| (i * i + i / 251) as u8).collect()
    });
    let views = (tensors.iter().zip(&data))
        .map(|((name, dtype, shape), data)| Ok((*name, TensorView::new(*dtype, shape.clone(), data)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize_to_file(views, None, path)?)
}
