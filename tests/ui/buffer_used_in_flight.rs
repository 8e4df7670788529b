//! Outputs are neither read, written nor given to another collective before the one on them was waited for; inputs can be
//! read.
use crossccl::{Communicator, Cpu, Result};

fn main() -> Result<()> {
    let ranks = Communicator::<Cpu>::builder(0..1).build()?.into_ranks();
    let mut input = ranks[0].buffer::<f32>(10)?;
    let mut output = ranks[0].buffer::<f32>(10)?;
    let flight = ranks[0].broadcast(Some(&input), &mut output, 0)?;
    input.write(&[1.0; 10])?; //~ E0502
    output.write(&[1.0; 10])?; //~ E0499
    output.to_vec()?; //~ E0502
    ranks[0].broadcast_in_place(&mut output, 0)?.wait()?; //~ E0499
    input.to_vec()?;
    flight.wait()?;
    output.write(&[1.0; 10])?;
    input.write(&[1.0; 10])
}
