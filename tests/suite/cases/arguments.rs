//! Cases C: roots, in place, what the ranks must agree on.

use std::time::Duration;

use crossccl::{Algorithm, Backend, Broadcast, DType, ReduceOp, ReduceScatter};
use rstest::rstest;

use super::{
    super::{
        broadcast::check,
        reduce_scatter::{Place, check_at},
    },
    B,
};
use crate::support::{communicator, rank_handles};

/// Every root, in place and not, with a payload that says whose it is.
#[rstest]
fn c1_every_root_in_place_and_not(#[values(2, 3, 4, 5, 6, 7, 8)] ranks: usize) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator::<B>(ranks);
    for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
        for root in 0..ranks {
            let what = || Broadcast::from_root(root).algorithm(algorithm);
            let payload = |rank: usize| (0..257).map(|i| (rank * 1000 + i) as i32).collect::<Vec<_>>();
            let mut buffers: Vec<_> = (0..ranks).map(|r| comm.buffer_from(r, &payload(r)).expect("buffer")).collect();
            comm.broadcast_in_place(&mut buffers, what()).expect("launch").wait().expect("outcome");
            assert!(
                buffers.iter().all(|b| b.to_vec().expect("read") == payload(root)),
                "{algorithm}, root {root}, in place"
            );

            let input = comm.buffer_from(root, &payload(root + 1)).expect("buffer");
            comm.broadcast(&input, &mut buffers, what()).expect("launch").wait().expect("outcome");
            assert!(buffers.iter().all(|b| b.to_vec().expect("read") == payload(root + 1)), "{algorithm}, root {root}");
        }
    }
}

/// An input one element shorter than the outputs ask for: found before anything is launched, nothing is read beyond
/// its end and nothing written.
#[rstest]
fn c4_an_input_that_is_too_short() {
    needs_device!();
    let comm = communicator::<B>(3);
    let inputs: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[1.0f32; 3 * 5 - 1]).expect("buffer")).collect();
    let mut outputs: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[7.0f32; 5]).expect("buffer")).collect();
    let error = comm.reduce_scatter(&inputs, &mut outputs, ReduceOp::Sum).expect_err("too short");
    let text = "reduce_scatter: output of rank 2: expected 4 elements, its part of the shape [14] along axis 0, got 5";
    assert_eq!(error.to_string(), text);
    assert!(outputs.iter().all(|o| o.to_vec().expect("read") == [7.0; 5]), "something was written");
    let error = comm
        .reduce_scatter(&inputs, &mut outputs, ReduceScatter::new(ReduceOp::Sum).shape([15]))
        .expect_err("too short");
    let text = "reduce_scatter: input of rank 0: expected 15 elements, the shape being [15], got 14";
    assert_eq!(error.to_string(), text);

    let ranks = rank_handles::<B>(3, Duration::from_secs(1));
    let input = ranks[2].buffer_from(&[1.0f32; 14]).expect("buffer");
    let mut output = ranks[2].buffer::<f32>(5).expect("buffer");
    let error = ranks[2].reduce_scatter(&input, &mut output, ReduceOp::Sum).expect_err("too short");
    let text = "reduce_scatter: output of rank 2: expected 4 elements, its part of the shape [14] along axis 0, got 5";
    assert_eq!(error.to_string(), text);
}

/// Ranks count from 0 in each group, wherever the group's devices are.
#[rstest]
fn c7_groups_on_the_last_devices() {
    needs_device!();
    let last = B::device_count().expect("devices").max(2) - 1;
    let pair = crate::support::builder::<B>([last - 1, last]).build().expect("communicator");
    for root in 0..2 {
        check(&pair, DType::F32, 1001, Broadcast::from_root(root), root, [0, 0], false);
    }
    let four = crate::support::builder::<B>([3, 1, 2, 0]).build().expect("communicator");
    for comm in [pair, four] {
        let shapes: Vec<_> = (0..comm.ranks() / 2).map(|g| vec![1001 + g]).collect();
        for op in ReduceOp::ALL {
            check_at(&comm, DType::F32, op, &shapes, 0, ReduceScatter::new(op), Place::Apart(0, 0));
        }
    }
}
