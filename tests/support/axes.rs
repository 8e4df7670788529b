//! The axes of the matrix. Sizes are asked of the crate (its vector, the target's tile, the planner's answers)
//! and typed in nowhere: a changed threshold moves the tests with it.

use std::collections::BTreeSet;

use crossccl::{Algorithm, Backend, Communicator, DType, Plan, VECTOR};

/// No power of two and no multiple of anything here.
const PRIME: usize = 1009;

/// Two blocks, and rounds of a tile and a vector a rank: small messages meet every threshold.
pub(crate) const BLOCKS: u32 = 2;

pub(crate) fn tile<B: Backend>(ranks: usize) -> usize {
    B::properties(&B::open(0).expect("device"), ranks, 1).expect("properties").tile as usize
}

/// A communicator for the matrix; its rank r is on the last device but r, so that rank and device differ and the
/// first group does not start at device 0.
pub(crate) fn communicator<B: Backend>(ranks: usize) -> Communicator<B> {
    crate::support::builder::<B>((0..ranks).rev())
        .timeout(std::time::Duration::from_secs(20))
        .payload_bytes(2 * (tile::<B>(ranks) + VECTOR as usize))
        .build()
        .expect("communicator")
}

/// Bytes beyond the last threshold: three rounds, and a second tile for every block of every part.
pub(crate) fn largest<B: Backend>(ranks: usize) -> usize {
    ranks * (2 * tile::<B>(ranks) + 4 * VECTOR as usize)
}

/// Elements of as many bytes, or as many as fit where the algorithm has a limit: `parts` go through inboxes of `ranks`
/// ranks.
pub(crate) fn elements<B: Backend>(ranks: usize, parts: usize, algorithm: Algorithm, dtype: DType) -> usize {
    let most = largest::<B>(ranks) / dtype.size() + 1;
    if algorithm != Algorithm::LowLatency {
        return most;
    }
    most.min(parts * (crossccl::low_latency_bytes(ranks) / dtype.size()))
}

/// Counts of elements: 0, 1, a vector and one less and more, a prime, the largest, and the last count before each
/// change of the plan (more blocks, another round, another algorithm), with one less and one more.
pub(crate) fn counts(dtype: DType, largest: usize, plan: impl Fn(usize) -> Plan) -> Vec<usize> {
    let vector = VECTOR as usize / dtype.size();
    let mut counts = BTreeSet::from([0, 1, vector - 1, vector, vector + 1, PRIME, largest]);
    for last in changes(largest, &plan) {
        counts.extend([last.saturating_sub(1), last, last + 1]);
    }
    counts.into_iter().collect()
}

/// The counts up to `largest` whose plan differs from that of the next one. Between powers of two the plan is taken
/// to change one way only.
fn changes(largest: usize, plan: &impl Fn(usize) -> Plan) -> Vec<usize> {
    let differ = |a: usize, b: usize| {
        let (a, b) = (plan(a), plan(b));
        (a.algorithm, a.kernel, a.blocks, a.rounds) != (b.algorithm, b.kernel, b.blocks, b.rounds)
    };
    let powers = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < largest);
    let ends: Vec<usize> = std::iter::once(0).chain(powers).chain([largest]).collect();
    let mut pieces: Vec<(usize, usize)> = ends.windows(2).map(|w| (w[0], w[1])).collect();
    let mut found = Vec::new();
    while let Some((low, high)) = pieces.pop() {
        if differ(low, high) {
            match low.midpoint(high) {
                middle if middle == low => found.push(low),
                middle => pieces.extend([(low, middle), (middle, high)]),
            }
        }
    }
    found
}

/// Rows of values, `sizes` of them on each axis, such that any two values of two axes meet in a row. The full
/// product of the axes has some ten thousand rows for each test, this has as many as the two longest axes need.
pub(crate) fn pairs<const N: usize>(sizes: [usize; N]) -> Vec<[usize; N]> {
    let mut missing = BTreeSet::new();
    for a in 0..N {
        for b in a + 1..N {
            missing.extend((0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (a, x, b, y))));
        }
    }
    let mut rows = Vec::new();
    while let Some((a, x, b, y)) = missing.first().copied() {
        let mut row = [None; N];
        (row[a], row[b]) = (Some(x), Some(y));
        for axis in 0..N {
            let gain = |value: &usize| {
                let with = |other: usize, v: usize| {
                    let pair = if axis < other { (axis, *value, other, v) } else { (other, v, axis, *value) };
                    usize::from(missing.contains(&pair))
                };
                row.iter().enumerate().map(|(other, v)| v.map_or(0, |v| with(other, v))).sum::<usize>()
            };
            if row[axis].is_none() {
                // The first of the best, begun at another place in each row so that the values take turns.
                let turn = rows.len() % sizes[axis];
                row[axis] = (0..sizes[axis]).map(|v| (v + turn) % sizes[axis]).rev().max_by_key(gain);
            }
        }
        let row = row.map(|v| v.expect("every axis has a value"));
        missing.retain(|(a, x, b, y)| (row[*a], row[*b]) != (*x, *y));
        rows.push(row);
    }
    rows
}

/// Algorithms that a broadcast of this communicator can be forced to, as the planner resolves them.
pub(crate) fn offered<B: Backend>(comm: &Communicator<B>) -> Vec<Algorithm> {
    let plan = |a| comm.plan_broadcast(1, DType::U8, crossccl::Broadcast::from_root(0).algorithm(a));
    let mut offered: Vec<Algorithm> =
        Algorithm::ALL.into_iter().filter_map(|a| Some(plan(a).ok()?.algorithm)).collect();
    offered.sort_by_key(|a| *a as u8);
    offered.dedup();
    offered
}

/// How to run the test that fails once more.
pub(crate) fn again() -> String {
    match std::thread::current().name() {
        Some(name) if name.contains("::") => format!("again: cargo test --test matrix -- --exact {name}"),
        _ => "again: cargo test --test matrix, with the name of the test".into(),
    }
}

#[test]
fn any_two_values_meet_in_a_row() {
    let sizes = [5, 1, 3, 4];
    let rows = pairs(sizes);
    assert!(rows.len() < 5 * 3 * 4, "{} rows", rows.len());
    for a in 0..4 {
        for b in (0..4).filter(|b| *b != a) {
            let met: BTreeSet<_> = rows.iter().map(|r| (r[a], r[b])).collect();
            assert_eq!(met.len(), sizes[a] * sizes[b], "axes {a} and {b}");
        }
    }
    assert_eq!(pairs([3, 0]).len(), 0);
}
