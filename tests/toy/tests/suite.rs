//! The conformance suite on the toy, and what the toy is there to prove: that a backend takes five files.

#![allow(missing_docs)]
// Features of crossccl, which this package has not.
#![allow(unexpected_cfgs)]

use std::{collections::BTreeSet, fs, path::Path};

use crossccl::{Backend, Cpu, DType, ReduceOp, ReduceScatter};
use crossccl_toy::Toy;
use support::Guarded;

#[macro_use]
#[path = "../../support/mod.rs"]
mod support;

for_each_backend! {
    #[path = "../../suite"]
    toy: crossccl_toy::Toy;
}

/// All outputs of broadcasts and reduce-scatters of any bits, one after the other.
fn results<B: Backend>() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut random = support::Random(8);
    for (ranks, count) in [(2, 4098), (5, 3005), (8, 2008)] {
        let comm = support::communicator::<B>(ranks);
        let stream = |rank: usize| comm.stream(rank).expect("a rank");
        for dtype in DType::ALL {
            let inputs: Vec<Guarded<B>> =
                (0..ranks).map(|r| Guarded::with(stream(r), dtype, &random.elements(dtype, count), r)).collect();
            let outputs = |len: &dyn Fn(usize) -> usize| -> Vec<Guarded<B>> {
                (0..ranks).map(|r| Guarded::new(stream(r), dtype, len(r), 1)).collect()
            };
            for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
                let what = ReduceScatter::new(op);
                let len = |r: usize| comm.part(r, count, what.clone()).expect("a part").count() as usize;
                let mut outputs = outputs(&len);
                let (from, to) = (inputs.iter().map(Guarded::input), outputs.iter_mut().map(Guarded::output));
                comm.reduce_scatter(from, to, what.clone()).expect("launch").wait().expect("outcome");
                let name = format!("{op} of {dtype}, {ranks} ranks");
                all.extend(outputs.iter().map(|output| (name.clone(), output.data())));
            }
            let mut outputs = outputs(&|_| count);
            let to = outputs.iter_mut().map(Guarded::output);
            comm.broadcast(inputs[1].input(), to, 1).expect("launch").wait().expect("outcome");
            all.extend(outputs.iter().map(|output| (format!("broadcast of {dtype}, {ranks} ranks"), output.data())));
        }
    }
    all
}

/// The oracle says what is right; this, that two backends in one program agree, each with kernels of its own.
#[test]
fn the_same_bits_as_the_cpu() {
    let (ours, cpus) = (results::<Toy>(), results::<Cpu>());
    assert_eq!(ours.len(), cpus.len());
    for ((name, ours), (_, cpus)) in ours.iter().zip(&cpus) {
        assert!(ours == cpus, "{name}: the toy's bits are not the CPU's");
    }
}

/// All files below `folder`, by their way from it.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).expect("below it").to_str().expect("a name").to_owned());
            }
        }
    }
    found
}

/// The guide's list is what the toy is made of, and nothing of the crate was made for it.
#[test]
fn a_backend_takes_the_files_that_the_guide_lists() {
    let toy = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = toy.join("../..");
    let guide = fs::read_to_string(root.join("src/guide/backends.md")).expect("the guide");
    let listed: BTreeSet<String> =
        guide.split('`').filter_map(|word| word.strip_prefix("tests/toy/")).map(str::to_owned).collect();
    assert_eq!(files(toy), listed);
    assert_eq!(listed.len(), 5);
    for folder in ["src", "build", "kernels-common"] {
        for file in files(&root.join(folder)).into_iter().filter(|name| name != "guide/backends.md") {
            let text = fs::read_to_string(root.join(folder).join(&file)).expect("a text");
            assert!(!text.to_lowercase().contains("toy"), "{folder}/{file} knows of the toy");
        }
    }
}
