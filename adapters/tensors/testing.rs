//! What the adapters' tests share: handles of ranks, and who calls with them.

use std::time::Duration;

use crossccl::{Communicator, Cpu, RankComm};

pub(crate) type Ranks = Vec<RankComm<Cpu>>;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threads {
    /// One for all ranks.
    One,
    /// One a rank.
    Each,
}

pub(crate) fn ranks(ranks: usize) -> Ranks {
    ranks_with_limit(ranks, Duration::from_secs(20))
}

pub(crate) fn ranks_with_limit(ranks: usize, limit: Duration) -> Ranks {
    Communicator::<Cpu>::builder(0..ranks).timeout(limit).build().expect("communicator").into_ranks()
}

/// The outcome of `call` with all handles and tensors at once, or with each on a thread of its own.
pub(crate) fn call<T: Send + Sync>(
    threads: Threads,
    ranks: &mut Ranks,
    tensors: &[T],
    call: impl Fn(&[RankComm<Cpu>], &[T]) -> crossccl::Result<Vec<T>> + Sync,
) -> Vec<T> {
    if threads == Threads::One {
        return call(ranks, tensors).expect("outcome");
    }
    let call = &call;
    std::thread::scope(|scope| {
        let calls = ranks.chunks_mut(1).zip(tensors.chunks(1));
        let threads: Vec<_> = calls.map(|(rank, tensor)| scope.spawn(move || call(rank, tensor))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic").expect("outcome")).collect()
    })
}
