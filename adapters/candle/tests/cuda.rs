//! The adapter on NVIDIA devices: one where there is one alone, for both ranks. Needs a driver and a device; without one it
//! fails, as who asks for the feature has one.
//!
//! ```sh
//! cargo test --manifest-path adapters/Cargo.toml -p crossccl-candle --features cuda --test cuda
//! ```

use candle_core::{DType, Device, Tensor};
use crossccl::{Backend, Communicator, Cuda, Error, RankComm, ReduceOp};
use crossccl_candle::{broadcast, reduce_scatter};

/// Two ranks, with a stream of candle's each.
fn ranks() -> (Vec<RankComm<Cuda>>, Vec<Device>) {
    let ranks = Communicator::<Cuda>::builder_for_ranks(2).build().expect("a device").into_ranks();
    let ordinal = |rank: &RankComm<Cuda>| Cuda::ordinal(&Cuda::device_of(rank.stream()));
    let devices =
        ranks.iter().map(|rank| Device::new_cuda_with_stream(ordinal(rank)).expect("candle's device")).collect();
    (ranks, devices)
}

/// Small whole numbers, of which no sum is rounded.
fn tensors(devices: &[Device], dtype: DType) -> Vec<Tensor> {
    let numbers = |rank: u32| (0..3003).map(|i| (i * 7 + rank * 3) % 13).collect::<Vec<u32>>();
    let tensor = |(device, rank)| Tensor::from_vec(numbers(rank), (7, 429), device)?.to_dtype(dtype);
    devices.iter().zip(0..).map(tensor).collect::<Result<_, _>>().expect("tensors")
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    let on_host = || tensor.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1();
    on_host().expect("elements")
}

#[test]
fn broadcasts_and_reduces() {
    let (mut ranks, devices) = ranks();
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64] {
        let tensors = tensors(&devices, dtype);
        let copies = broadcast(&ranks, &tensors, 1).expect("outcome");
        copies.iter().for_each(|copy| assert_eq!(elements(copy), elements(&tensors[1]), "{dtype:?}"));

        // A thread a rank. What candle does with the result comes after, in its stream.
        let doubled: Vec<Tensor> = std::thread::scope(|scope| {
            let one = |(rank, tensor): (&mut [RankComm<Cuda>], &[Tensor])| {
                let sum = reduce_scatter(rank, tensor, 1, ReduceOp::Sum).expect("outcome").remove(0);
                (&sum + &sum).expect("twice")
            };
            let calls = ranks.chunks_mut(1).zip(tensors.chunks(1));
            let threads: Vec<_> = calls.map(|call| scope.spawn(move || one(call))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let [first, second] = [0, 1].map(|r| tensors[r].to_device(&Device::Cpu).expect("on the host"));
        let sum = (first + second).expect("sum");
        let twice = (&sum + &sum).expect("twice");
        for (rank, start, length) in [(0, 0, 215), (1, 215, 214)] {
            let part = twice.narrow(1, start, length).expect("part");
            assert_eq!(elements(&doubled[rank]), elements(&part), "{dtype:?}, rank {rank}");
        }
    }
}

#[test]
fn tensors_of_the_cpu_are_refused() {
    let (ranks, _devices) = ranks();
    let tensors = vec![Tensor::zeros(4, DType::F32, &Device::Cpu).expect("tensor"); 2];
    let error = broadcast(&ranks, &tensors, 0).map(drop).expect_err("no tensors of the device");
    assert!(matches!(&error, Error::InvalidArgument { got, .. } if got == "one of another device"), "{error}");
    assert_eq!(ranks[0].failure(), None);
}
