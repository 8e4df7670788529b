//! Options and devices, as C gives them: read field by field, after size, magic number and version have said what is there.

use std::{
    ffi::{c_int, c_uint},
    mem::{MaybeUninit, offset_of, size_of},
    time::Duration,
};

use super::{
    CROSSCCL_CONFIG_MAGIC, CROSSCCL_MAJOR, CROSSCCL_MINOR, CROSSCCL_PATCH, crosscclAgreement_t, crosscclBackend_t,
    crosscclConfig_t,
    outcome::{Result, place},
};
use crate::{any::BackendKind, collective::Agreement, collective::invalid};

/// More than a struct of any version can have: so many bytes are looked at, to see whether they are 0.
const LARGEST: usize = 4096;

/// What the first version had: programs that were built with it give no more, whatever is appended.
const FIRST: usize = offset_of!(crosscclConfig_t, payload_bytes) + size_of::<i64>();

// No padding: a field that is appended must not come to lie where programs left whatever was there. Its size is added here,
// to the second.
const _: () = assert!(FIRST == size_of::<usize>() + 6 * size_of::<c_int>() + 2 * size_of::<i64>());
const _: () = assert!(size_of::<crosscclConfig_t>() == FIRST);

/// What was asked for, checked where no builder checks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// `None`: a GPU backend where there is one.
    pub(super) backend: Option<BackendKind>,
    pub(super) agreement: Agreement,
    /// `Some(None)`: no limit.
    pub(super) timeout: Option<Option<Duration>>,
    pub(super) max_blocks: Option<u32>,
    pub(super) virtual_ranks: bool,
    pub(super) payload_bytes: Option<usize>,
}

/// # Safety
/// `devlist` is null or points to `ranks` numbers.
pub(super) unsafe fn devices(call: &'static str, devlist: *const c_int, ranks: usize) -> Result<Vec<usize>> {
    if devlist.is_null() {
        return Ok((0..ranks).collect());
    }
    let devlist = place(call, "devlist", devlist.cast_mut())?;
    // SAFETY: the caller's promise.
    let numbers = unsafe { std::slice::from_raw_parts(devlist, ranks) };
    let device = |(rank, number): (usize, &c_int)| {
        let wrong = || invalid(call, Some(rank), "devlist", "the number of a device, from 0", number).into();
        usize::try_from(*number).map_err(|_| wrong())
    };
    numbers.iter().enumerate().map(device).collect()
}

/// # Safety
/// `config` is null or points to as many bytes as it says, 16 at least.
pub(super) unsafe fn read(call: &'static str, config: *const crosscclConfig_t) -> Result<Options> {
    if config.is_null() {
        return Ok(Options::default());
    }
    let config = place(call, "config", config.cast_mut())?.cast_const();
    // SAFETY: the caller's promise: these are within the 16 bytes.
    let (size, magic, version) = unsafe {
        ((&raw const (*config).size).read(), (&raw const (*config).magic).read(), (&raw const (*config).version).read())
    };
    let wrong = |argument, expected: String, got: String| Err(invalid(call, None, argument, expected, got).into());
    if magic != CROSSCCL_CONFIG_MAGIC {
        let expected = format!("{CROSSCCL_CONFIG_MAGIC:#x}, by CROSSCCL_CONFIG_INITIALIZER");
        return wrong("config.magic", expected, format!("{magic:#x}"));
    }
    if !is_compatible(version) {
        let expected = format!("a header of version {CROSSCCL_MAJOR}.{CROSSCCL_MINOR}, which the library is of");
        return wrong("config.version", expected, version.to_string());
    }
    let known = size_of::<crosscclConfig_t>();
    if !(FIRST..=LARGEST).contains(&size) {
        return wrong("config.size", format!("{FIRST} (to {LARGEST}) bytes"), size.to_string());
    }
    let both = size.min(known);
    // SAFETY: the caller's promise.
    let unknown = unsafe { std::slice::from_raw_parts(config.cast::<u8>().add(both), size - both) };
    if unknown.iter().any(|byte| *byte != 0) {
        let expected =
            format!("no field set that version {CROSSCCL_MAJOR}.{CROSSCCL_MINOR}.{CROSSCCL_PATCH} does not know");
        return wrong("config", expected, format!("one behind the first {known} of {size} bytes"));
    }
    // SAFETY: the caller's promise.
    let config = unsafe { beginning(config, both) };
    let number = |argument, number: c_int, expected: &str| wrong(argument, expected.to_owned(), number.to_string());
    let backend = match config.backend {
        n if n == crosscclBackend_t::crosscclBackendAuto as c_int => None,
        n if n == crosscclBackend_t::crosscclBackendCpu as c_int => Some(BackendKind::Cpu),
        n if n == crosscclBackend_t::crosscclBackendCuda as c_int => Some(BackendKind::Cuda),
        n if n == crosscclBackend_t::crosscclBackendRocm as c_int => Some(BackendKind::Rocm),
        other => return number("config.backend", other, "a value of crosscclBackend_t"),
    };
    let agreement = match config.agreement {
        n if n == crosscclAgreement_t::crosscclAgreementDependent as c_int => Agreement::Dependent,
        n if n == crosscclAgreement_t::crosscclAgreementStrict as c_int => Agreement::Strict,
        other => return number("config.agreement", other, "a value of crosscclAgreement_t"),
    };
    let timeout = match config.timeout_ms {
        0 => None,
        -1 => Some(None),
        ms => match u64::try_from(ms) {
            Ok(ms) => Some(Some(Duration::from_millis(ms))),
            Err(_) => return wrong("config.timeout_ms", "milliseconds, 0 or -1".into(), ms.to_string()),
        },
    };
    let max_blocks = match config.max_blocks {
        0 => None,
        // What the builder refuses as well, with its bound.
        blocks => Some(u32::try_from(blocks).unwrap_or(u32::MAX)),
    };
    let virtual_ranks = match config.virtual_ranks {
        0 => false,
        1 => true,
        other => return number("config.virtual_ranks", other, "0 or 1"),
    };
    let payload_bytes = match config.payload_bytes {
        0 => None,
        -1 => Some(0),
        bytes => match usize::try_from(bytes) {
            Ok(bytes) => Some(bytes),
            Err(_) => return wrong("config.payload_bytes", "bytes, 0 or -1".into(), bytes.to_string()),
        },
    };
    Ok(Options { backend, agreement, timeout, max_blocks, virtual_ranks, payload_bytes })
}

/// The first bytes of a configuration; what an older program does not have has its default, 0.
///
/// # Safety
/// `config` points to as many bytes, no more than the struct has.
unsafe fn beginning(config: *const crosscclConfig_t, bytes: usize) -> crosscclConfig_t {
    let mut all = MaybeUninit::<crosscclConfig_t>::zeroed();
    // SAFETY: as many bytes are in both, and every field is a number, of which 0 is one.
    unsafe {
        all.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(config.cast(), bytes);
        all.assume_init()
    }
}

/// Versions that have the struct's beginning in common.
fn is_compatible(version: c_uint) -> bool {
    let series = |version: c_uint| if version < 10_000 { version / 100 } else { version / 10_000 * 100 };
    series(version) == series(super::CROSSCCL_VERSION_CODE as c_uint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of before the last field gave whatever stood behind its struct.
    #[test]
    fn fields_that_a_program_does_not_have_are_0() {
        let given = crosscclConfig_t {
            size: 0,
            magic: CROSSCCL_CONFIG_MAGIC,
            version: 100,
            backend: 1,
            agreement: 1,
            timeout_ms: 5,
            max_blocks: 7,
            virtual_ranks: 1,
            payload_bytes: 9,
        };
        // SAFETY: within the struct.
        let older = unsafe { beginning(&raw const given, offset_of!(crosscclConfig_t, payload_bytes)) };
        assert_eq!((older.max_blocks, older.virtual_ranks, older.payload_bytes), (7, 1, 0));
        // SAFETY: as above.
        assert_eq!(unsafe { beginning(&raw const given, FIRST) }.payload_bytes, 9);
    }
}
