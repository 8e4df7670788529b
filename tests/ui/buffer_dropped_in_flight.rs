//! A buffer that goes before the collective on it was waited for.
use crossccl::{Communicator, Cpu, Result};

fn main() -> Result<()> {
    let ranks = Communicator::<Cpu>::builder(0..1).build()?.into_ranks();
    let mut data = ranks[0].buffer::<f32>(10)?;
    let flight = ranks[0].broadcast_in_place(&mut data, 0)?;
    drop(data); //~ E0505
    flight.wait()?;
    Ok(())
}
