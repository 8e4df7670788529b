//! The conformance suite, stamped once per compiled backend.
//!
//! Names read `cpu::broadcast::matches_the_input::ranks_3_3::...`, so that `cargo test --test matrix
//! cpu::broadcast` is a filter. A new backend adds one line at the bottom.

#![allow(missing_docs)]
// That is what stamping is.
#![allow(clippy::duplicate_mod)]

#[macro_use]
mod support;

for_each_backend! {
    #[cfg(feature = "cpu")]
    #[path = "suite"]
    cpu: crossccl::Cpu, which has inline_streams;
    #[cfg(feature = "cuda")]
    #[path = "suite"]
    cuda: crossccl::Cuda, which has default_streams;
    #[cfg(feature = "rocm")]
    #[path = "suite"]
    hip: crossccl::Hip, which has default_streams;
}

/// What calls for each rank on a thread of its own, with streams that these threads work off themselves.
#[cfg(feature = "cpu")]
#[path = "suite"]
#[allow(dead_code, unused_imports)]
// As the others' macro does.
#[rustfmt::skip]
mod inline {
    pub(crate) type B = crossccl::Cpu;

    macro_rules! needs_device {
        ($($ranks:expr)?) => {
            let _inline = crate::support::inline_streams();
        };
    }
    macro_rules! one_call {
        ($($tests:tt)*) => {};
    }

    mod failures;
    mod missing;
    mod packets;
    mod ranks;
    mod recovery;
    mod cases {
        use super::B;

        mod lifetimes;
        mod order;
    }
}
