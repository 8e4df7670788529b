//! Compares `src/backend/hip/sys.rs` with the crate `hip-sys`. See the README.

#[allow(dead_code)]
#[macro_use]
#[path = "../../../src/backend/hip/sys.rs"]
mod sys;

use std::ffi::{c_char, c_int, c_uint, c_void};

use hip_sys::hiprt;
use sys::*;

/// How an argument is passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Pointer,
    Integer { bytes: usize, signed: bool },
}

impl Class {
    const fn same(self, other: Class) -> bool {
        match (self, other) {
            (Class::Pointer, Class::Pointer) => true,
            (Class::Integer { bytes, signed }, Class::Integer { bytes: b, signed: s }) => bytes == b && signed == s,
            _ => false,
        }
    }
}

trait Passed {
    const CLASS: Class;
}

impl<T> Passed for *mut T {
    const CLASS: Class = Class::Pointer;
}
impl<T> Passed for *const T {
    const CLASS: Class = Class::Pointer;
}
macro_rules! integers {
    ($($signed:literal $($kind:ty)*;)*) => { $($(
        impl Passed for $kind {
            const CLASS: Class = Class::Integer { bytes: size_of::<$kind>(), signed: $signed };
        }
    )*)* };
}
integers! {
    true i32;
    false u32 usize;
}
/// The bindings have enums, C has integers. Which sign an enum without negative numbers has does not matter to how it
/// is passed: ours are signed.
macro_rules! enums {
    ($($kind:ident)*) => { $(
        impl Passed for hiprt::$kind {
            const CLASS: Class = Class::Integer { bytes: size_of::<hiprt::$kind>(), signed: true };
        }
    )* };
}
enums! { hipError_t hipDeviceAttribute_t hipMemcpyKind hipStreamCaptureMode }

/// A function's answer and arguments.
trait Signature {
    const CLASSES: &'static [Class];
}

macro_rules! signatures {
    ($(($($argument:ident)*))*) => { $(
        impl<R: Passed, $($argument: Passed),*> Signature for unsafe extern "C" fn($($argument),*) -> R {
            const CLASSES: &'static [Class] = &[R::CLASS, $($argument::CLASS),*];
        }
    )* };
}
signatures! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) (A B C D E F G H I)
    (A B C D E F G H I J) (A B C D E F G H I J K)
}

const fn same(ours: &[Class], theirs: &[Class]) -> bool {
    let mut at = 0;
    while at < ours.len() && at < theirs.len() && ours[at].same(theirs[at]) {
        at += 1;
    }
    at == ours.len() && at == theirs.len()
}

const fn classes_of<F: Signature>(_: &F) -> &'static [Class] {
    F::CLASSES
}

macro_rules! compare {
    (
        required { $($name:ident($($argument:ident: $kind:ty),* $(,)?) -> $answer:ty;)* }
        optional { $old:ident($($old_argument:ident: $old_kind:ty),* $(,)?) -> $old_answer:ty; $($newer:tt)* }
    ) => {
        // The bindings know the older of the two.
        compare! { required { $old($($old_argument: $old_kind),*) -> $old_answer; } }
        compare! { required { $($name($($argument: $kind),*) -> $answer;)* } }
    };
    (required { $($name:ident($($argument:ident: $kind:ty),* $(,)?) -> $answer:ty;)* }) => {
        $(const _: () = {
            type Ours = unsafe extern "C" fn($($kind),*) -> $answer;
            // With as many arguments as ours, or this does not compile.
            let theirs: unsafe extern "C" fn($(compare!(@any $kind)),*) -> _ = hiprt::$name;
            assert!(same(Ours::CLASSES, classes_of(&theirs)), stringify!($name));
        };)*
    };
    (@any $kind:ty) => { _ };
}
for_each_function!(compare);

fn main() {
    let functions = Functions::linked().expect("all are linked");
    let (mut version, mut count) = (0, 0);
    // SAFETY: locals.
    let codes = unsafe { [(functions.hipRuntimeGetVersion)(&mut version), (functions.hipGetDeviceCount)(&mut count)] };
    assert_eq!(codes[0], SUCCESS);
    assert!([SUCCESS, NO_DEVICE, INVALID_DEVICE].contains(&codes[1]), "hipGetDeviceCount answered {}", codes[1]);
    println!("{} functions are declared as in hip-sys; HIP {version}, {count} devices", REQUIRED.len() + 1);
}
