//! What would be done on machines that are not at hand, why, and what the cost model says that it takes:
//! `cargo run --example plans_elsewhere`.

use crossccl::{Algorithm, DType, Facts, Planner, Topology};

fn main() -> crossccl::Result<()> {
    let machines =
        [("8 devices of a switch", Topology::switch(374_000_000_000)), ("8 of a mesh", Topology::mesh(48_000_000_000))];
    for (name, topology) in machines {
        let planner = Planner::new(Facts::default(), topology);
        println!("{name}\n");
        for bytes in [16 << 10, 256 << 10, 1 << 20, 16 << 20, 1 << 30] {
            println!("{}", planner.explain_broadcast(8, bytes, Algorithm::Auto)?);
        }
        println!("{}", planner.explain_reduce_scatter(8, 1 << 28, DType::F32, Algorithm::Auto)?);
    }
    Ok(())
}
