//! A stand-in for the HIP runtime that executes AMD machine code on modelled devices. Development only: a fake for
//! the runtime and the real thing for the kernels' machine code, never evidence of hardware. The README says what is
//! modelled and what is not.
//!
//! - `architecture`: the targets; `isa`: instructions, decoded from the disassembler's text; `code_object`: kernels and their descriptors.
//! - `wave`: registers and instructions; `memory`: allocations and caches; `floats`: what host operators do not do.
//! - `machine`: devices, blocks, and the order in which waves run.
//! - `runtime`: streams, events, graphs; `hip`: HIP's functions.

mod architecture;
mod code_object;
mod codes;
mod floats;
mod hip;
mod isa;
mod machine;
mod memory;
mod random;
mod runtime;
mod settings;
mod wave;

pub use hip::*;
