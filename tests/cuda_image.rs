//! The image of NVIDIA's kernels as the build left it. Nothing is run: that needs a GPU.

#![cfg(all(feature = "cuda", not(crossccl_no_kernels)))]

mod image {
    include!(concat!(env!("OUT_DIR"), "/cuda_images.rs"));
}

use std::collections::{BTreeMap, BTreeSet};

use crossccl::Kernel;
use image::{ARCHITECTURES, IMAGE, LEAST_TILE, THREADS, TILE};

#[test]
fn it_is_a_fatbin_that_a_driver_may_read_in_place() {
    let image = IMAGE.expect("a build with kernels embeds them");
    assert_eq!(image[..4], 0xba55_ed50u32.to_le_bytes(), "the magic number of fatbins");
    assert_eq!(image.as_ptr() as usize % 64, 0);
    assert!(image.len() < 4 << 20, "{} bytes: what makes the image so large?", image.len());
}

/// kernel_list.def and plan/kernel.rs name the same kernels, and every architecture has all of them.
#[test]
fn every_kernel_is_exported_and_nothing_else() {
    let report = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/crossccl_cuda.txt")).unwrap();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in report.lines().filter(|line| line.starts_with("sm_")) {
        let (architecture, rest) = line.split_once(' ').unwrap();
        let (kernel, _) = rest.split_once(' ').unwrap();
        assert!(found.entry(architecture).or_default().insert(kernel.into()), "twice: {line}");
    }
    let machine: Vec<_> = ARCHITECTURES.iter().filter(|a| a.starts_with("sm_")).collect();
    assert_eq!(found.len(), machine.len());
    let known: BTreeSet<_> = Kernel::all().map(Kernel::name).collect();
    for (architecture, kernels) in found {
        assert_eq!(kernels, known, "{architecture}");
    }
}

#[test]
fn what_the_host_must_know_is_there() {
    assert!(THREADS.is_power_of_two() && THREADS <= 1024);
    assert_eq!(TILE % (u64::from(THREADS) * crossccl::VECTOR), 0, "a tile is whole vectors of all threads");
    assert!(LEAST_TILE > 0 && TILE.is_multiple_of(LEAST_TILE), "{TILE} bytes in tiles of {LEAST_TILE}");
}
