//! The cost model against the simulator, and what it makes of the algorithms.
#![allow(missing_docs)]

use crossccl::{Algorithm, DType, Explanation, Facts, Planner, Topology};
use crossccl_simulator::{Collective, Detail, play};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SIZES: [u64; 8] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB];
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency];
/// Of a device to its switch, and of a link of a mesh of 8 that is as fast in all.
const RATE: u64 = 374_000_000_000;
const LINK: u64 = 48_000_000_000;

/// Packets of any size: what the model says of them is to be checked where nobody would take them, too.
fn facts() -> Facts {
    let mut facts = Facts::default();
    facts.packets.capacity = u64::MAX;
    facts
}

fn topologies() -> Vec<Topology> {
    let mut measured = Topology::switch(RATE);
    measured.both_ways = 674_000_000_000;
    vec![
        Topology::switch(RATE),
        measured,
        Topology::mesh(LINK),
        Topology::bus(25_000_000_000),
        Topology::device(3_500_000_000_000),
        Topology::host(10_000_000_000),
    ]
}

fn simulated(why: &Explanation, reduce_scatter: bool) -> f64 {
    let collective =
        if reduce_scatter { Collective::ReduceScatter(why.bytes) } else { Collective::Broadcast(why.bytes) };
    play(&why.plan, collective, why.ranks, &why.topology, &facts(), Detail::Ranks) / 1000.0
}

/// All that a planner can be asked for, on machines of 2 to 64 devices.
fn for_each(mut look: impl FnMut(&Explanation, bool)) {
    for topology in topologies() {
        let planner = Planner::new(facts(), topology);
        for ranks in [2, 3, 4, 8, 16, 64] {
            for bytes in SIZES {
                for algorithm in ALGORITHMS {
                    look(&planner.explain_broadcast(ranks, bytes, algorithm).expect("plan"), false);
                }
                for algorithm in [Algorithm::OneStage, Algorithm::LowLatency] {
                    let why = planner.explain_reduce_scatter(ranks, bytes / 4, DType::F32, algorithm);
                    look(&why.expect("plan"), true);
                }
            }
        }
    }
}

#[test]
fn the_model_is_within_a_tenth_of_the_simulation() {
    let (mut looked, mut worst) = (0, Vec::new());
    for_each(|why, reduce_scatter| {
        let (model, events) = (why.cost.total(), simulated(why, reduce_scatter));
        let off = model / events - 1.0;
        looked += 1;
        if off.abs() > 0.1 {
            worst.push((off, format!("{off:+.3}: simulated {events:.1} us, {why}")));
        }
    });
    worst.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    let texts: Vec<_> = worst.iter().map(|(_, text)| text.lines().take(3).collect::<Vec<_>>().join("\n")).collect();
    assert!(worst.is_empty(), "{} of {looked} are off:\n{}", texts.len(), texts[..texts.len().min(40)].join("\n"));
    assert!(looked > 1000, "{looked}");
}

/// At 8 devices and 1 GiB: the message once over the root's link, and a tenth more.
#[test]
fn two_overlapped_stages_come_near_the_links() {
    let time = |topology, algorithm, facts: Facts| {
        let why = Planner::new(facts, topology).explain_broadcast(8, GIB, algorithm).expect("plan");
        simulated(&why, false) * 1000.0
    };
    let least = |rate: u64| GIB as f64 / (rate as f64 / 1e9);
    let (switch, mesh) = (least(RATE), least(7 * LINK));
    let direct = |topology| time(topology, Algorithm::TwoStageDirect, facts());
    let of_switch = direct(Topology::switch(RATE)) / switch;
    let of_mesh = direct(Topology::mesh(LINK)) / mesh;
    println!("overlapped: {of_switch:.3} S/B on a switch, {of_mesh:.3} S/(7b) on a mesh");
    assert!(of_switch <= 1.1, "{of_switch}");
    assert!(of_mesh <= 1.1, "{of_mesh}");
    // The seed's form: all of the message staged, then gathered.
    let mut whole = facts();
    whole.payload_half = GIB;
    let of_switch = time(Topology::switch(RATE), Algorithm::TwoStageStaged, whole) / switch;
    let of_mesh = time(Topology::mesh(LINK), Algorithm::TwoStageStaged, whole) / least(4 * LINK);
    println!("one after the other: {of_switch:.3} S/B on a switch, {of_mesh:.3} S/4b on a mesh");
    assert!((of_switch / 1.75 - 1.0).abs() < 0.02, "{of_switch}");
    assert!((of_mesh - 1.0).abs() < 0.1, "{of_mesh}");
}

/// What `auto` takes is as fast as anything that it could have taken, or nearly.
#[test]
fn the_choice_is_the_simulations_too() {
    let mut chosen = std::collections::BTreeMap::<String, usize>::new();
    for topology in topologies() {
        let planner = Planner::new(Facts::default(), topology);
        for ranks in [2, 4, 8, 16] {
            for bytes in SIZES.into_iter().chain([KIB, 16 * KIB]) {
                let why = planner.explain_broadcast(ranks, bytes, Algorithm::Auto).expect("plan");
                let mine = simulated(&why, false);
                for other in &why.others {
                    let other = planner.explain_broadcast(ranks, bytes, other.plan.algorithm).expect("plan");
                    let theirs = simulated(&other, false);
                    assert!(mine <= 1.1 * theirs, "{theirs:.1} us against {mine:.1} of\n{why}");
                }
                *chosen.entry(why.plan.algorithm.to_string()).or_default() += 1;
            }
        }
    }
    println!("{chosen:?}");
    assert_eq!(chosen.len(), 4, "there is a machine and a size for each: {chosen:?}");
}

/// That blocks which take tiles from all sources in turn use all links at the same time is not taken for granted: each
/// block by itself, tile by tile. Staged on a mesh it holds less well: a chunk of the usual payload is a tile a block, and
/// 32 blocks do not go evenly on 7 links.
#[test]
fn tile_by_tile_it_is_the_same() {
    let cases = [
        (Topology::switch(RATE), Algorithm::TwoStageDirect, 0.1),
        (Topology::mesh(LINK), Algorithm::TwoStageDirect, 0.1),
        (Topology::switch(RATE), Algorithm::TwoStageStaged, 0.1),
        (Topology::mesh(LINK), Algorithm::TwoStageStaged, 0.3),
    ];
    for (topology, algorithm, within) in cases {
        let why = Planner::new(facts(), topology).explain_broadcast(8, 64 * MIB, algorithm).expect("plan");
        let by = |detail| play(&why.plan, Collective::Broadcast(why.bytes), 8, &topology, &facts(), detail) / 1000.0;
        let (ranks, tiles) = (by(Detail::Ranks), by(Detail::Tiles));
        println!("{algorithm} on a {}: {ranks:.1} us, tile by tile {tiles:.1}", topology.wiring);
        assert!((tiles / ranks - 1.0).abs() < within, "{ranks:.1} us, tile by tile {tiles:.1}: {why}");
    }
}
