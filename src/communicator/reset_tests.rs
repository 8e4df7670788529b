//! What a reset does to the words that kernels keep, and what the host remembers of calls and failures.

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

/// The newest failures are told as they were; of older ones it is known that they were.
#[test]
fn the_newest_failures_are_kept_whole() {
    let comm = Communicator::<Cpu>::builder(0..2).timeout(Duration::from_millis(20)).build().unwrap();
    let ranks = comm.into_ranks();
    let mut data: Vec<_> = (0..FAILURES_KEPT + 2).map(|_| ranks[0].buffer::<u8>(10).unwrap()).collect();
    let mut flights = Vec::new();
    for buffer in &mut data {
        flights.push(ranks[0].broadcast_in_place(buffer, 1).unwrap());
        let end = Cpu::record(ranks[0].stream()).unwrap();
        assert!(Cpu::wait(&end, None).unwrap());
        ranks[0].shared().reset().unwrap();
    }
    let told: Vec<_> = flights.into_iter().map(|flight| flight.wait().unwrap_err()).collect();
    let (forgotten, kept) = told.split_at(2);
    assert!(forgotten.iter().all(|error| *error == Error::Poisoned { cause: Box::new(Error::Aborted) }), "{told:?}");
    assert!(kept.iter().all(|error| matches!(error, Error::Timeout { .. })), "{told:?}");
}

/// Of the last calls it is known what they were. One for all ranks that moves nothing is none.
#[test]
fn the_last_calls_are_remembered() {
    let comm = Communicator::<Cpu>::builder(0..2).build().unwrap();
    let mut data = [0, 1].map(|rank| comm.buffer::<u8>(rank, 10).unwrap());
    let mut nothing = [0, 1].map(|rank| comm.buffer::<u8>(rank, 0).unwrap());
    for _ in 0..HISTORY + 2 {
        comm.broadcast_in_place(&mut nothing, 1).unwrap().wait().unwrap();
        comm.broadcast_in_place(&mut data, 1).unwrap().wait().unwrap();
    }
    let newest = HISTORY as u64 + 2;
    for rank in &comm.shared.ranks {
        let calls: Vec<u64> = lock(&rank.state).history.iter().map(|called| called.call).collect();
        assert_eq!(calls, (3..=newest).collect::<Vec<_>>());
    }
}
