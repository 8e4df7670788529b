//! From C's numbers to ours. C passes any number for an enum: none is taken for a value before it was looked up.

use std::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
};

use super::{
    CROSSCCL_MAJOR, CROSSCCL_MINOR, CROSSCCL_PATCH, CROSSCCL_VERSION_CODE, crosscclDataType_t, crosscclRedOp_t,
    crosscclResult_t, handle::Handle, outcome::Result,
};
use crate::{abi::MAX_RANKS, collective::invalid, dtype::DType, error::Error, op::ReduceOp};

/// The enums of C have the numbers of ours, whose owners say that they are NCCL's.
const _: () = {
    use crosscclDataType_t::*;
    use crosscclRedOp_t::*;
    let dtypes = [
        (crosscclInt8, DType::I8),
        (crosscclUint8, DType::U8),
        (crosscclInt32, DType::I32),
        (crosscclUint32, DType::U32),
        (crosscclInt64, DType::I64),
        (crosscclUint64, DType::U64),
        (crosscclFloat16, DType::F16),
        (crosscclFloat32, DType::F32),
        (crosscclFloat64, DType::F64),
        (crosscclBfloat16, DType::BF16),
    ];
    assert!(dtypes.len() == DType::ALL.len());
    let mut at = 0;
    while at < dtypes.len() {
        assert!(dtypes[at].0 as u8 == dtypes[at].1 as u8);
        at += 1;
    }
    let ops = [
        (crosscclSum, ReduceOp::Sum),
        (crosscclProd, ReduceOp::Product),
        (crosscclMax, ReduceOp::Max),
        (crosscclMin, ReduceOp::Min),
        (crosscclAvg, ReduceOp::Average),
    ];
    assert!(ops.len() == ReduceOp::ALL.len());
    let mut at = 0;
    while at < ops.len() {
        assert!(ops[at].0 as u8 == ops[at].1 as u8);
        at += 1;
    }
    assert!(CROSSCCL_VERSION_CODE == 10_000 * CROSSCCL_MAJOR + 100 * CROSSCCL_MINOR + CROSSCCL_PATCH);
    assert!(CROSSCCL_MAJOR == of_text(env!("CARGO_PKG_VERSION_MAJOR")));
    assert!(CROSSCCL_MINOR == of_text(env!("CARGO_PKG_VERSION_MINOR")));
    assert!(CROSSCCL_PATCH == of_text(env!("CARGO_PKG_VERSION_PATCH")));
};

const fn of_text(text: &str) -> c_int {
    let (mut number, mut at) = (0, 0);
    while at < text.len() {
        number = 10 * number + (text.as_bytes()[at] - b'0') as c_int;
        at += 1;
    }
    number
}

/// The number that C passed for an enum.
pub(super) fn number<T>(value: MaybeUninit<T>) -> c_int {
    const { assert!(size_of::<T>() == size_of::<c_int>()) };
    // SAFETY: an argument of a C function has a value, of this size, whichever it is.
    unsafe { std::mem::transmute_copy(&value) }
}

pub(super) fn dtype(call: &'static str, handle: &Handle, code: c_int) -> Result<DType> {
    if let Some(dtype) = u8::try_from(code).ok().and_then(DType::from_code) {
        return Ok(dtype);
    }
    // NCCL's types that we lack.
    let float8 = match code {
        10 => "float8 e4m3",
        11 => "float8 e5m2",
        _ => {
            let expected = "a value of crosscclDataType_t";
            return Err(invalid(call, Some(handle.rank), "datatype", expected, code).into());
        }
    };
    let what = format!("datatype {code} ({float8}) is not offered; a broadcast can take it as crosscclUint8");
    Err(Error::Unsupported { operation: call, what }.into())
}

pub(super) fn op(call: &'static str, handle: &Handle, code: c_int) -> Result<ReduceOp> {
    let op = u8::try_from(code).ok().and_then(ReduceOp::from_code);
    Ok(op.ok_or_else(|| invalid(call, Some(handle.rank), "op", "a value of crosscclRedOp_t", code))?)
}

pub(super) fn root(call: &'static str, handle: &Handle, root: c_int) -> Result<usize> {
    let inside = usize::try_from(root).ok().filter(|root| *root < handle.ranks);
    let expected = || format!("a rank from 0 to {}", handle.ranks - 1);
    Ok(inside.ok_or_else(|| invalid(call, Some(handle.rank), "root", expected(), root))?)
}

/// The elements of a rank's input.
pub(super) fn input_count(call: &'static str, handle: &Handle, recvcount: usize, dtype: DType) -> Result<u64> {
    let most = isize::MAX as usize / dtype.size() / handle.ranks;
    if recvcount > most {
        let expected = format!("at most {most} elements of {dtype} for each of the {} ranks", handle.ranks);
        return Err(invalid(call, Some(handle.rank), "recvcount", expected, recvcount).into());
    }
    Ok((recvcount * handle.ranks) as u64)
}

/// A number of ranks.
pub(super) fn ranks(call: &'static str, argument: &'static str, number: c_int) -> Result<usize> {
    let inside = usize::try_from(number).ok().filter(|n| (1..=MAX_RANKS).contains(n));
    Ok(inside.ok_or_else(|| invalid(call, None, argument, format!("1 to {MAX_RANKS}"), number))?)
}

/// What a result means, also of a number that is none.
pub(super) fn meaning(number: c_int) -> &'static CStr {
    use crosscclResult_t::*;
    let meanings = [
        (crosscclSuccess, c"no error"),
        (crosscclUnhandledDriverError, c"a driver or the operating system refused something"),
        (crosscclSystemError, c"the devices of this machine cannot be used together"),
        (crosscclInternalError, c"a bug of crossccl"),
        (crosscclInvalidArgument, c"an argument is wrong"),
        (crosscclInvalidUsage, c"the call is wrong at this place"),
        (crosscclTimeout, c"a rank did not come in time"),
        (crosscclMismatch, c"the ranks called different things"),
        (crosscclAborted, c"aborted"),
        (crosscclPoisoned, c"an earlier collective failed, and the communicator was not reset"),
        (crosscclUnsupported, c"not offered"),
        (crosscclNotCompiled, c"the library was built without this backend"),
        (crosscclNoDevice, c"no device"),
        (crosscclRankGone, c"a rank is gone"),
    ];
    meanings.iter().find(|(result, _)| *result as c_int == number).map_or(c"not a result of crossccl", |(_, text)| text)
}
