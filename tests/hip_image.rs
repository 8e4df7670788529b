//! The images of AMD's kernels as the build left them. Nothing is run: that needs a GPU.

#![cfg(all(feature = "rocm", not(crossccl_no_kernels)))]

mod images {
    include!(concat!(env!("OUT_DIR"), "/hip_images.rs"));
}

use std::collections::{BTreeMap, BTreeSet};

use crossccl::Kernel;
use images::{IMAGES, LEAST_TILE, THREADS, TILE};

/// Of e_flags, the lowest byte: `EF_AMDGPU_MACH_AMDGCN_*`, by LLVM's documentation.
const MACHINES: [(&str, u8); 5] =
    [("gfx90a", 0x3f), ("gfx942", 0x4c), ("gfx950", 0x4f), ("gfx1100", 0x41), ("gfx1201", 0x4e)];

#[test]
fn they_are_code_objects_of_their_targets() {
    assert!(!IMAGES.is_empty(), "a build with kernels embeds them");
    for (target, image) in IMAGES {
        assert_eq!(image[..6], *b"\x7fELF\x02\x01", "{target}: an ELF of 64 bits, little-endian");
        // EM_AMDGPU; the loader's version 3 is code object version 5.
        assert_eq!(image[18..20], 224u16.to_le_bytes(), "{target}");
        assert!((2..=4).contains(&image[8]), "{target}: ABI version {}", image[8]);
        if let Some((_, machine)) = MACHINES.iter().find(|(name, _)| name == target) {
            assert_eq!(image[48], *machine, "{target}");
        }
        assert_eq!(image.as_ptr() as usize % 4096, 0, "{target}");
        assert!(image.len() < 4 << 20, "{target}: {} bytes: what makes the image so large?", image.len());
    }
}

/// kernel_list.def and plan/kernel.rs name the same kernels, and every target has all of them.
#[test]
fn every_kernel_is_exported_and_nothing_else() {
    let report = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/crossccl_hip.txt")).unwrap();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in report.lines().filter(|line| line.starts_with("gfx")) {
        let (target, rest) = line.split_once(' ').unwrap();
        let (kernel, _) = rest.split_once(' ').unwrap();
        assert!(found.entry(target).or_default().insert(kernel.into()), "twice: {line}");
    }
    assert_eq!(found.len(), IMAGES.len());
    let known: BTreeSet<_> = Kernel::all().map(Kernel::name).collect();
    for (target, image) in IMAGES {
        assert_eq!(found.get(target), Some(&known), "{target}");
        // By name, as the driver looks for them.
        for kernel in &known {
            let symbol = [b"\0", kernel.as_bytes(), b".kd\0"].concat();
            assert!(image.windows(symbol.len()).any(|bytes| bytes == symbol), "{target}: {kernel}");
        }
    }
}

#[test]
fn what_the_host_must_know_is_there() {
    assert!(THREADS.is_power_of_two() && THREADS <= 1024);
    assert_eq!(TILE % (u64::from(THREADS) * crossccl::VECTOR), 0, "a tile is whole vectors of all threads");
    assert!(LEAST_TILE > 0 && TILE.is_multiple_of(LEAST_TILE), "{TILE} bytes in tiles of {LEAST_TILE}");
}
