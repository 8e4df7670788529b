use std::{fmt, str::FromStr};

use half::{bf16, f16};

use crate::abi::form;

/// The element types.
///
/// The discriminants are those of NCCL's `ncclDataType_t` where NCCL has the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// 8-bit signed integer.
    I8 = 0,
    /// 8-bit unsigned integer; also the type for opaque bytes in a broadcast.
    U8 = 1,
    /// 32-bit signed integer.
    I32 = 2,
    /// 32-bit unsigned integer.
    U32 = 3,
    /// 64-bit signed integer.
    I64 = 4,
    /// 64-bit unsigned integer.
    U64 = 5,
    /// IEEE 754 half precision.
    F16 = 6,
    /// IEEE 754 single precision.
    F32 = 7,
    /// IEEE 754 double precision.
    F64 = 8,
    /// The upper half of an `f32`.
    BF16 = 9,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// The short lower-case name, as the command line and kernel names use it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::BF16 => "bf16",
        }
    }

    /// How a fused sum's kernel is told to round to this type; `PLAIN` where it cannot.
    pub(crate) const fn form(self) -> u32 {
        match self {
            DType::F16 => form::TO_F16,
            DType::BF16 => form::TO_BF16,
            DType::F32 => form::TO_F32,
            DType::F64 => form::TO_F64,
            _ => form::PLAIN,
        }
    }

    /// The types that a sum of this type can be rounded to from its accumulator, this type included.
    /// Integers: none but themselves, and no factor or residual.
    pub(crate) const fn fused_outputs(self) -> &'static [DType] {
        match self {
            DType::F16 | DType::BF16 | DType::F32 => &[DType::F16, DType::BF16, DType::F32],
            DType::F64 => &[DType::F64],
            _ => &[],
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        DType::ALL.into_iter().find(|d| *d as u8 == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            format!("unknown dtype `{s}`; the dtypes are {}", names.join(", "))
        })
    }
}

/// A Rust type that is an element type. Sealed: the set is [`DType::ALL`].
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + sealed::Sealed {
    /// The element type at run time.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )* };
}
elements! {
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, f32 => F32, f64 => F64, bf16 => BF16
}
