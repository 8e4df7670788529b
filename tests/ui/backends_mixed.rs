//! Buffers of one backend given to a communicator of another.
use crossccl::{Backend, Buffer, Communicator, ReduceOp, Result};

fn right<A: Backend>(comm: &Communicator<A>, data: &mut [Buffer<A, f32>]) -> Result<()> {
    comm.broadcast_in_place(data, 0)?.wait()
}

fn mixed<A: Backend, B: Backend>(
    comm: &Communicator<A>,
    data: &mut [Buffer<A, f32>],
    of_another: &mut [Buffer<B, f32>],
) -> Result<()> {
    comm.broadcast_in_place(&mut *data, 0)?.wait()?;
    comm.broadcast_in_place(&mut *of_another, 0)?.wait()?; //~ E0277
    comm.reduce_scatter(&*of_another, &mut *data, ReduceOp::Sum)?.wait()?; //~ E0277
    let _ = of_another.len();
    right(comm, data)
}

fn main() {
    let _ = mixed::<crossccl::Cpu, crossccl::Cpu>;
}
