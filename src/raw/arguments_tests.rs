//! What a launch tells its kernel of a call.

use std::collections::BTreeMap;

use super::*;
use crate::{
    Agreement, Broadcast, Communicator, Cpu, DType, Overlap, ReduceOp, ReduceScatter, abi::Packed, collective::Prepared,
};

fn communicator() -> Communicator<Cpu> {
    Communicator::builder(0..4).build().unwrap()
}

/// The address of nothing: no launch comes of it.
fn somewhere(rank: usize) -> RawRank {
    RawRank::new(1 << 32, (2 + rank as u64) << 32)
}

fn broadcast(shared: &Shared<Cpu>, rank: usize, count: u64, dtype: DType, what: Broadcast) -> Prepared {
    what.prepare_one_raw(shared, rank, somewhere(rank), count, dtype).unwrap()
}

fn reduce(shared: &Shared<Cpu>, rank: usize, count: u64, what: ReduceScatter) -> Prepared {
    what.prepare_one_raw(shared, rank, somewhere(rank), count, DType::F32).unwrap()
}

/// Who waits for something else than a peer's record goes by the fingerprint in it alone: it is one for all ranks of a
/// call, and another for each call that differs. It stands in 48 bits, beside the number of the launch.
#[test]
fn calls_that_differ_have_fingerprints_that_differ() {
    let ranks = communicator().into_ranks();
    let shared = ranks[0].shared();
    let to_all = || Broadcast::from_root(1);
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    type Call<'a> = Box<dyn Fn(usize) -> Prepared + 'a>;
    let calls: Vec<(&str, Call<'_>)> = vec![
        ("plain", Box::new(|r| broadcast(shared, r, 1 << 20, DType::F32, to_all()))),
        ("one element more", Box::new(|r| broadcast(shared, r, (1 << 20) + 1, DType::F32, to_all()))),
        ("another dtype of that size", Box::new(|r| broadcast(shared, r, 1 << 20, DType::I32, to_all()))),
        ("another root", Box::new(|r| broadcast(shared, r, 1 << 20, DType::F32, Broadcast::from_root(2)))),
        ("more blocks", Box::new(|r| broadcast(shared, r, 1 << 20, DType::F32, to_all().max_blocks(8)))),
        (
            "two stages",
            Box::new(|r| broadcast(shared, r, 1 << 20, DType::F32, to_all().algorithm(Algorithm::TwoStageStaged))),
        ),
        ("reduced", Box::new(|r| reduce(shared, r, 1 << 20, sum()))),
        ("by pairs", Box::new(|r| reduce(shared, r, 1 << 20, sum().group_size(2)))),
        ("another operation", Box::new(|r| reduce(shared, r, 1 << 20, ReduceScatter::new(ReduceOp::Max)))),
        ("another shape", Box::new(|r| reduce(shared, r, 1 << 20, sum().shape([1 << 10, 1 << 10])))),
        ("another axis", Box::new(|r| reduce(shared, r, 1 << 20, sum().shape([1 << 10, 1 << 10]).axis(1)))),
    ];
    let mut seen = BTreeMap::new();
    for (name, call) in &calls {
        let [first, others @ ..] = [0, 1, 2, 3].map(|rank| arguments(shared, &call(rank), 1).fingerprint);
        assert!(others.iter().all(|other| *other == first), "{name}");
        assert!(first < 1 << 48, "{name}: {first:#x}");
        assert_eq!(seen.insert(first, name), None, "{name}");
    }
    // What the record does not tell but follows from the communicator: another payload.
    let other = Communicator::<Cpu>::builder(0..4).payload_bytes(1 << 16).build().unwrap().into_ranks();
    let plain = broadcast(other[0].shared(), 0, 1 << 20, DType::F32, to_all());
    assert!(!seen.contains_key(&arguments(other[0].shared(), &plain, 1).fingerprint));
}

/// What is a rank's own, and what is its group's.
#[test]
fn ranks_and_groups_are_told_apart() {
    let ranks = communicator().into_ranks();
    let shared = ranks[0].shared();
    let pairs = ReduceScatter::new(ReduceOp::Average).group_size(2).agreement(Agreement::Strict);
    let pairs = pairs.overlap(Overlap::AtEnd).timeout(std::time::Duration::from_secs(1));
    let a = arguments(shared, &reduce(shared, 3, 100, pairs), 7);
    let mine = &shared.ranks[3];
    assert_eq!((a.rank, a.ranks, a.world_rank, a.world), (1, 2, 3, 4));
    assert_eq!(a.domain as usize, shared.domains.iter().position(|size| *size == 2).unwrap());
    assert_eq!((a.signal[0], a.signal[1]), (shared.ranks[2].signal.address(), mine.signal.address()));
    assert_eq!((a.control, a.call, a.strict, a.average), (mine.control.address(), 7, 1, 1));
    assert_eq!((a.input, a.output, a.residual), (somewhere(3).send, somewhere(3).recv, 0));
    assert_eq!((a.count, a.bytes, a.offset, a.run, a.outer), (100, 400, 50, 50, 1));
    assert_eq!(a.limit, mine.ticks(std::time::Duration::from_secs(1)));
    assert_eq!(a.overlap, Overlap::AtEnd as u64);

    let direct = Broadcast::from_root(1).algorithm(Algorithm::TwoStageDirect).no_timeout();
    let a = arguments(shared, &broadcast(shared, 2, 1 << 20, DType::U8, direct), 8);
    assert_eq!((a.rank, a.ranks, a.root, a.strict, a.limit, a.overlap), (2, 4, 1, 0, 0, 0));
    let packed = Packed::from_word(a.packed);
    assert_eq!(u32::from(packed.slices), a.rounds, "slices of a direct broadcast");
    let staged = Broadcast::from_root(1).algorithm(Algorithm::TwoStageStaged);
    let a = arguments(shared, &broadcast(shared, 2, 1 << 26, DType::U8, staged), 9);
    assert!(a.rounds > 1 && Packed::from_word(a.packed).slices == 1, "rounds follow from the payload");
}
