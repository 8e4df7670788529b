//! A communicator that was taken apart into ranks is gone: calls of both kinds would get into each other's way.
use crossccl::{Communicator, Cpu};

fn main() {
    let comm = Communicator::<Cpu>::builder(0..2).build().unwrap();
    let abort = comm.abort_handle();
    let ranks = comm.into_ranks();
    comm.abort(); //~ E0382
    abort.abort();
    drop(ranks);
}
