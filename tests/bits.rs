//! The same bits on every backend: results of random inputs, with NaN, infinities, denormals and zeros of both
//! signs, are hashed on the CPU and on each other backend that has a device.

#![cfg(all(feature = "cpu", feature = "cuda"))]
#![allow(missing_docs)]

#[macro_use]
mod support;

use crossccl::{Algorithm, Backend, Broadcast, Communicator, Cpu, Cuda, DType, Destination, ReduceOp, ReduceScatter};
use sha2::{Digest, Sha256};
use support::{Random, builder};

/// Hashes, each with what it is of.
type Hashes = Vec<(String, [u8; 32])>;

fn hash<B: Backend>(outputs: &[crossccl::Buffer<B, crossccl::Untyped>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for output in outputs {
        let mut bytes = vec![0; output.size_in_bytes()];
        output.read_bytes(&mut bytes).expect("read");
        hash.update(&bytes);
    }
    hash.finalize().into()
}

fn all<B: Backend>(ranks: usize) -> Hashes {
    let comm: Communicator<B> = builder(0..ranks).build().expect("communicator");
    let mut hashes = Vec::new();
    let count = 4096 * ranks + 77;
    for dtype in DType::ALL {
        let mut random = Random(dtype as u64 + 100 * ranks as u64);
        let inputs: Vec<_> = (0..ranks)
            .map(|r| {
                let mut buffer = comm.buffer_with_dtype(r, dtype, count).expect("buffer");
                buffer.write_bytes(&random.elements(dtype, count)).expect("write");
                buffer
            })
            .collect();
        let outputs = |dtype: DType, count: &dyn Fn(usize) -> usize| -> Vec<_> {
            (0..ranks).map(|r| comm.buffer_with_dtype(r, dtype, count(r)).expect("buffer")).collect()
        };
        for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
            let mut copies = outputs(dtype, &|_| count);
            let what = Broadcast::from_root(ranks - 1).algorithm(algorithm);
            comm.broadcast(&inputs[ranks - 1], &mut copies, what).expect("launch").wait().expect("outcome");
            hashes.push((format!("broadcast of {dtype}, {algorithm}"), hash(&copies)));
        }
        let part = |r: usize| comm.part(r, count, ReduceOp::Sum).expect("a part").count() as usize;
        for op in ReduceOp::ALL {
            let mut parts = outputs(dtype, &part);
            comm.reduce_scatter(&inputs, &mut parts, op).expect("launch").wait().expect("outcome");
            hashes.push((format!("{op} of {dtype}"), hash(&parts)));
        }
        let fused: &[DType] = match dtype {
            DType::F64 => &[DType::F64],
            DType::F16 | DType::BF16 | DType::F32 => &[DType::F16, DType::BF16, DType::F32],
            _ => &[],
        };
        for to in fused {
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                let mut parts = outputs(*to, &part);
                for (r, buffer) in parts.iter_mut().enumerate() {
                    buffer.write_bytes(&random.elements(*to, part(r))).expect("write");
                }
                let what = ReduceScatter::new(op).factor(0.3);
                let destinations: Vec<_> = parts.iter_mut().map(Destination::accumulate).collect();
                comm.reduce_scatter_fused(&inputs, destinations, what).expect("launch").wait().expect("outcome");
                hashes.push((format!("{op} of {dtype}, scaled, added to {to}"), hash(&parts)));
            }
        }
    }
    hashes
}

#[test]
fn cuda_gives_the_bits_of_the_cpu() {
    let mut compared = 0;
    for ranks in 1..=8 {
        let Some(_turn) = support::turn::<Cuda>(ranks) else { return };
        for (cpu, cuda) in all::<Cpu>(ranks).into_iter().zip(all::<Cuda>(ranks)) {
            assert_eq!(cpu, cuda, "{ranks} ranks");
            compared += 1;
        }
    }
    println!("{compared} results have the same bits on cpu and cuda");
    assert_eq!(compared, 8 * (10 * 8 + 2 * 10));
}
