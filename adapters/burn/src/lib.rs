//! crossccl's collectives on burn's tensors of its CPU backend, Flex: [`broadcast`] and [`reduce_scatter`] read the tensors
//! where they lie, and give new ones that nobody else holds.
//!
//! ```
//! use burn_tensor::{Device, Tensor};
//! use crossccl::{Communicator, Cpu, ReduceOp};
//! use crossccl_burn::{broadcast, reduce_scatter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ranks = Communicator::<Cpu>::builder(0..2).build()?.into_ranks();
//! let device = Device::flex();
//! let tensors = [Tensor::<1>::from_floats([1., 2.], &device), Tensor::from_floats([10., 20.], &device)];
//! let sums = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum)?;
//! assert_eq!(sums[1].to_data().as_slice::<f32>()?, [22.]);
//! let copies = broadcast(&ranks, &sums, 1)?;
//! assert_eq!(copies[0].to_data().as_slice::<f32>()?, [22.]);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! A call is for the ranks whose handles it is given: all of them on one thread, as above, or one on a thread of its own, with
//! slices of one. It returns when its ranks are through, with the new tensors in the order of the handles.
//!
//! # Tensors
//!
//! Of floats or integers on Flex, contiguous, of one shape and one of crossccl's dtypes. A view at an offset is fine. Nothing
//! is recorded for back-propagation: tensors of an autodiff device are not taken. burn copies a tensor before it writes to
//! memory that is used elsewhere as well, so nobody writes to one while a call reads it. A call that fails returns when no rank
//! reads them any more; where that cannot be said, they stay in memory for good.
//!
//! burn's GPU backends are not offered: the streams of their runtime, cubecl, are not to be had from outside.
//!
//! # Errors
//!
//! Those of crossccl. What is wrong with a tensor is an [`Error::InvalidArgument`](crossccl::Error::InvalidArgument) before
//! anything is launched. After a failure the ranks are poisoned until all handles have met in `reset`, each on a thread of
//! its own.

use burn_flex::{Flex, FlexTensor, Layout};
use burn_tensor::{BackendPrimitive, PrimitiveConversionError, Tensor, kind::Basic};
use crossccl::{Broadcast, Cpu, DType, RankComm, ReduceScatter, Result};
use crossccl_tensors::{Collective, Seat};

/// Kinds of tensors whose elements are numbers: `Float` and `Int`.
pub trait Numbers: Basic + BackendPrimitive<Flex, Primitive = FlexTensor> {}
impl Numbers for burn_tensor::Float {}
impl Numbers for burn_tensor::Int {}

/// Gives every rank a copy of the root's tensor. Of the others' only shape and dtype count.
///
/// # Errors
/// See [above](self#errors).
pub fn broadcast<const D: usize, K: Numbers>(
    ranks: &[RankComm<Cpu>],
    inputs: &[Tensor<D, K>],
    what: impl Into<Broadcast>,
) -> Result<Vec<Tensor<D, K>>> {
    run(ranks, inputs, Collective::Broadcast(what.into()))
}

/// Reduces the tensors, and gives every rank its part along `axis`. `what` is without shape, axis and output dtype.
///
/// # Errors
/// See [above](self#errors).
pub fn reduce_scatter<const D: usize, K: Numbers>(
    ranks: &[RankComm<Cpu>],
    inputs: &[Tensor<D, K>],
    axis: usize,
    what: impl Into<ReduceScatter>,
) -> Result<Vec<Tensor<D, K>>> {
    run(ranks, inputs, Collective::ReduceScatter(axis, what.into()))
}

/// Flex's tensor, which shares its memory with the caller's.
type Held = std::result::Result<FlexTensor, PrimitiveConversionError>;

fn run<const D: usize, K: Numbers>(
    ranks: &[RankComm<Cpu>],
    inputs: &[Tensor<D, K>],
    what: Collective,
) -> Result<Vec<Tensor<D, K>>> {
    let held = inputs.iter().map(|input| input.clone().try_into_primitive::<Flex>()).collect();
    let seat = |comm: &RankComm<Cpu>, held: &Held| {
        let input = held.as_ref().map_err(|error| format!("{error:?}"))?;
        let (layout, dtype): (_, DType) = (input.layout(), input.dtype().name().parse()?);
        let (start, end) = layout.contiguous_offsets().ok_or_else(|| format!("strides {:?}", layout.strides()))?;
        let bytes = input.bytes().get(..end * dtype.size()).ok_or("one that is larger than its memory")?;
        let (stream, address) = (comm.stream().clone(), bytes.as_ptr() as u64);
        Ok(Seat { stream, dtype, dims: layout.shape().to_vec(), address, start })
    };
    let new = |held: &Held, dims: &[usize]| {
        let dtype = held.as_ref().map_err(|error| format!("{error:?}"))?.dtype();
        let (mut bytes, _, _) = FlexTensor::zeros(dims.into(), dtype).into_data().into_parts();
        Ok::<_, String>((bytes.as_mut_ptr() as u64, (bytes, dtype)))
    };
    let tensor = |(bytes, dtype), dims: Vec<usize>| {
        Tensor::from_primitive::<Flex>(FlexTensor::new(bytes, Layout::contiguous(dims.into()), dtype))
    };
    // SAFETY: Flex's tensors share their memory with what is held here, and copy it before they write to it; what is new is
    // here alone until it is a tensor.
    unsafe { what.run(ranks, held, seat, new, tensor) }
}
