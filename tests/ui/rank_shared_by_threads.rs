//! A rank's handle may go to another thread, but two must not use it at once: the order of its calls counts.
use crossccl::{Communicator, Cpu};

fn main() {
    let mut ranks = Communicator::<Cpu>::builder(0..2).build().unwrap().into_ranks();
    let (second, first) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let borrowed = &first;
    std::thread::scope(|scope| {
        scope.spawn(move || second.ranks());
        scope.spawn(move || borrowed.ranks()); //~ E0277
    });
    borrowed.abort();
}
