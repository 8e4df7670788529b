//! Tuning files: every text is rows or an error that says what is wrong with it, where; and rows can be written and read
//! again.
#![no_main]

use crossccl::{Algorithm, Error, Facts, Placement, Planner, Topology, Tuning};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Tuning::parse(text, "f") {
        Ok(tuning) => {
            let again = Tuning::parse(&tuning.to_toml(), "f").unwrap_or_else(|e| panic!("{e}: {}", tuning.to_toml()));
            assert!(again.rows().eq(tuning.rows()));
            // Whatever they say of a machine, a plan comes of it.
            for row in tuning.rows().take(4) {
                let facts = Facts::default();
                if row.placement != Placement::of(facts.apart) {
                    continue;
                }
                let planner = Planner::new(facts, Topology::switch(1)).tuning(&tuning, &[row.device.clone()]);
                for bytes in [0, row.bytes_up_to.unwrap_or(u64::MAX)] {
                    let why = planner.explain_broadcast(row.ranks, bytes, Algorithm::Auto).expect("a plan");
                    assert!(why.plan.blocks > 0 && why.cost.total() >= 0.0, "{why}");
                }
            }
        }
        Err(Error::Tuning { source_name, line, reason }) => {
            assert_eq!(source_name, "f");
            assert!(line.is_none_or(|line| line <= 1 + text.matches('\n').count()), "line {line:?}");
            assert!(!reason.is_empty());
        }
        Err(error) => panic!("{error}"),
    }
});
