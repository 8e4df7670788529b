//! What a reset does to the words that kernels keep.

use super::*;
use crate::{Algorithm, Cpu};

/// Case A11: every number goes to one value above all that any rank had, wherever the ranks stood; tickets, inboxes and
/// the record of a failure are empty. Then every algorithm works.
#[test]
fn a_reset_raises_what_is_counted_and_clears_the_rest() {
    let comm = Communicator::<Cpu>::builder(0..4).timeout(Duration::from_secs(5)).build().unwrap();
    let (shared, layout) = (&comm.shared, &comm.shared.layout);
    // What ranks have that were stopped at different places.
    let left = |rank: u64, domain: u64, which: usize| 1000 * which as u64 + 100 * domain + 10 + (rank + 2) % 4;
    let counted = |domain| [layout.epoch(domain), layout.sequence(domain), layout.packets(domain)];
    for (rank, me) in (0..).zip(&shared.ranks) {
        let set = |at: u64, bytes: &[u8]| me.signal.write(&me.stream, at as usize, bytes).unwrap();
        set(0, &vec![0xff; layout.cause as usize]);
        set(layout.inbox, &vec![0xff; (layout.payload - layout.inbox) as usize]);
        for domain in 0..layout.domains {
            for (which, at) in counted(domain).into_iter().enumerate() {
                set(at, &left(rank, domain, which).to_ne_bytes());
            }
            set(layout.ticket(domain), &[0xff; LINE as usize]);
            set(layout.acks(domain), &[0xff; 4 * 8]);
        }
        for word in [control::STATE, control::CALL] {
            me.store(word, 7);
        }
    }
    comm.reset().unwrap();
    for me in &shared.ranks {
        let get = |at: u64, bytes: u64| {
            let mut read = vec![1; bytes as usize];
            me.signal.read(&me.stream, at as usize, &mut read).unwrap();
            read
        };
        let is_clear = |at, bytes| get(at, bytes).iter().all(|byte| *byte == 0);
        assert!(is_clear(0, layout.cause) && is_clear(layout.inbox, layout.payload - layout.inbox));
        for domain in 0..layout.domains {
            for (which, at) in counted(domain).into_iter().enumerate() {
                let above = 1 + (0..4).map(|rank| left(rank, domain, which)).max().unwrap();
                assert_eq!(get(at, 8), above.to_ne_bytes(), "domain {domain}, number {which}");
                if which == 2 {
                    assert_eq!(get(layout.acks(domain), 4 * 8), above.to_ne_bytes().repeat(4), "domain {domain}");
                }
            }
            assert!(is_clear(layout.ticket(domain), LINE), "domain {domain}");
        }
        assert_eq!([control::STATE, control::CALL, control::ABORT].map(|word| me.load(word)), [0; 3]);
    }
    let algorithms = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency];
    let mut data = [0, 1, 2, 3].map(|rank| comm.buffer::<u32>(rank, 1000).unwrap());
    for (root, algorithm) in algorithms.into_iter().enumerate() {
        data[root].write(&[root as u32 + 1; 1000]).unwrap();
        let what = Broadcast::from_root(root).algorithm(algorithm);
        comm.broadcast_in_place(&mut data, what).unwrap().wait().unwrap();
        assert!(data.iter().all(|one| one.to_vec().unwrap() == [root as u32 + 1; 1000]), "{algorithm}");
    }
}
