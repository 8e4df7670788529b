//! crossccl's collectives on candle's tensors: [`broadcast`] and [`reduce_scatter`] read the tensors where they lie, and give
//! new ones that nobody else holds.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use crossccl::{Communicator, Cpu, ReduceOp};
//! use crossccl_candle::{broadcast, reduce_scatter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ranks = Communicator::<Cpu>::builder(0..2).build()?.into_ranks();
//! let tensors = [Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[10f32, 20.], &Device::Cpu)?];
//! let sums = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum)?;
//! assert_eq!(sums[1].to_vec1::<f32>()?, [22.]);
//! let copies = broadcast(&ranks, &sums, 1)?;
//! assert_eq!(copies[0].to_vec1::<f32>()?, [22.]);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! A call is for the ranks whose handles it is given: all of them on one thread, as above, or one on a thread of its own, with
//! slices of one. It returns when its ranks are through, with the new tensors in the order of the handles.
//!
//! # Devices
//!
//! Tensors of `Device::Cpu` go with ranks of the backend `Cpu`. With the feature `cuda` a rank of the backend `Cuda` takes
//! tensors of candle's device of the same ordinal, on that device's stream (of `Device::new_cuda`, the calling thread's default
//! stream): what was enqueued there before is read, what is enqueued later comes after. Ranks that share a GPU need streams of
//! their own (`Device::new_cuda_with_stream`). This was compiled, and never run.
//!
//! # Tensors
//!
//! Contiguous, of one shape and one dtype out of u8, u32, i32, i64, f16, bf16, f32 and f64. A view at an offset is fine.
//! Nothing is recorded for back-propagation. While a call runs, its tensors are locked as by candle's own operations: who
//! writes to one in place (`Var::set`) waits. A call that fails returns when no rank reads them any more; where that cannot be
//! said, they stay locked, and in memory, for good.
//!
//! # Errors
//!
//! Those of crossccl. What is wrong with a tensor is an [`Error::InvalidArgument`](crossccl::Error::InvalidArgument) before
//! anything is launched. After a failure the ranks are poisoned until all handles have met in `reset`, each on a thread of
//! its own.

#[cfg(feature = "cuda")]
use candle_core::cuda::{CudaStorage, CudaStorageSlice, cudarc::driver::*};
use candle_core::{CpuStorage, Device, Storage, StorageRef, Tensor, backend::BackendDevice, cpu_backend, op};
use crossccl::{Backend, Broadcast, RankComm, ReduceScatter, Result};
use crossccl_tensors::{Collective, Seat};

/// A backend in whose memory candle's tensors are at home.
///
/// # Safety
/// Where [`stream`](Self::stream) answers one, the backend reads and writes tensors of that device in it.
pub unsafe trait Home: Backend {
    /// The stream for tensors of `device`, where that is the device of `own`, the rank's stream.
    fn stream(own: &Self::Stream, device: &Device) -> Option<Self::Stream>;
}

// SAFETY: memory of the CPU is the backend's.
unsafe impl Home for crossccl::Cpu {
    fn stream(own: &Self::Stream, device: &Device) -> Option<Self::Stream> {
        device.is_cpu().then(|| own.clone())
    }
}

// SAFETY: the stream and the memory of candle's CUDA device are of the primary context, as the backend's.
#[cfg(feature = "cuda")]
unsafe impl Home for crossccl::Cuda {
    fn stream(own: &Self::Stream, device: &Device) -> Option<Self::Stream> {
        let (own, stream) = (Self::device_of(own), device.as_cuda_device().ok()?.cuda_stream());
        // SAFETY: of the primary context, as all of candle's; the tensors hold it until the calls are complete.
        let candles = || unsafe { <Self::Stream>::from_raw(&own, stream.cu_stream() as u64) };
        (stream.context().ordinal() == Self::ordinal(&own)).then(candles)
    }
}

/// Where the elements are, whichever type they have. 0 for those that crossccl has no type for, which are refused.
macro_rules! address {
    ($s:expr, $cpu:ident, $cuda:ident) => { address!($s, $cpu, $cuda, U8 U32 I32 I64 F16 BF16 F32 F64) };
    ($storage:expr, $cpu:ident, $cuda:ident, $($dtype:ident)*) => {
        match $storage {
            $(#[cfg(feature = "cuda")]
            Storage::Cuda(CudaStorage { slice: CudaStorageSlice::$dtype(v), device }) => v.$cuda(&device.cuda_stream()).0,)*
            $(Storage::Cpu(CpuStorage::$dtype(v)) => v.$cpu() as u64,)* _ => 0,
        }
    };
}

/// Gives every rank a copy of the root's tensor. Of the others' only shape and dtype count.
///
/// # Errors
/// See [above](self#errors).
pub fn broadcast<B: Home>(ranks: &[RankComm<B>], inputs: &[Tensor], what: impl Into<Broadcast>) -> Result<Vec<Tensor>> {
    run(ranks, inputs, Collective::Broadcast(what.into()))
}

/// Reduces the tensors, and gives every rank its part along `axis`. `what` is without shape, axis and output dtype.
///
/// # Errors
/// See [above](self#errors).
pub fn reduce_scatter<B: Home>(
    ranks: &[RankComm<B>],
    inputs: &[Tensor],
    axis: usize,
    what: impl Into<ReduceScatter>,
) -> Result<Vec<Tensor>> {
    run(ranks, inputs, Collective::ReduceScatter(axis, what.into()))
}

fn run<B: Home>(ranks: &[RankComm<B>], inputs: &[Tensor], what: Collective) -> Result<Vec<Tensor>> {
    let held = inputs.iter().map(|input| (input.storage_and_layout().0, input.clone())).collect();
    let seat = |own: &RankComm<B>, (storage, input): &(StorageRef<'_>, Tensor)| {
        let stream = B::stream(own.stream(), input.device()).ok_or("one of another device")?;
        let (start, _) = input.layout().contiguous_offsets().ok_or_else(|| format!("strides {:?}", input.stride()))?;
        let address = address!(&**storage, as_ptr, device_ptr);
        Ok(Seat { stream, dtype: input.dtype().as_str().parse()?, dims: input.dims().to_vec(), address, start })
    };
    let new = |(_, input): &(StorageRef<'_>, Tensor), dims: &[usize]| {
        let mut storage = match input.device() {
            Device::Cuda(device) => Storage::Cuda(device.zeros_impl(&dims.into(), input.dtype())?),
            _ => Storage::Cpu(cpu_backend::CpuDevice.zeros_impl(&dims.into(), input.dtype())?),
        };
        candle_core::Result::Ok((address!(&mut storage, as_mut_ptr, device_ptr_mut), storage))
    };
    let tensor = |new, dims| Tensor::from_storage(new, dims, op::BackpropOp::none(), false);
    // SAFETY: a tensor's layout lies in its storage. The clones keep the inputs' memory, the locks keep away who would write to
    // it; what is new is here alone until it is a tensor.
    unsafe { what.run(ranks, held, seat, new, tensor) }
}
