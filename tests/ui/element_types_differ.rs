//! Typed buffers of different elements in one call, and elements that the crate does not know.
use crossccl::{Communicator, Cpu, ReduceOp, Result};

fn main() -> Result<()> {
    let comm = Communicator::<Cpu>::builder(0..1).build()?;
    let input = [comm.buffer::<f32>(0, 10)?];
    let mut output = [comm.buffer::<f32>(0, 10)?];
    let mut other = [comm.buffer::<i32>(0, 10)?];
    comm.broadcast(&input[0], &mut other, 0)?.wait()?; //~ E0277
    comm.reduce_scatter(&input, &mut other, ReduceOp::Sum)?.wait()?; //~ E0277
    let flags = comm.buffer_from(0, &[true])?; //~ E0277
    comm.broadcast_in_place(&mut other, 0)?.wait()?;
    comm.broadcast(&input[0], &mut output, 0)?.wait()
}
