//! In place has calls of its own; a buffer cannot be input and output of the others.
use crossccl::{Communicator, Cpu, ReduceOp, Result};

fn main() -> Result<()> {
    let comm = Communicator::<Cpu>::builder(0..2).build()?;
    let mut data = [comm.buffer::<f32>(0, 10)?, comm.buffer::<f32>(1, 10)?];
    comm.broadcast(&data[0], &mut data, 0)?.wait()?; //~ E0502
    comm.reduce_scatter(&data, &mut data, ReduceOp::Sum)?.wait()?; //~ E0502
    comm.broadcast_in_place(&mut data, 0)?.wait()?;
    comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum)?.wait()
}
