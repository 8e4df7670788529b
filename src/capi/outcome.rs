//! From errors, and from panics, to a result and a text.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{crosscclResult_t, group};
use crate::error::Error;

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// Why a call failed, as C is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) result: crosscclResult_t,
    pub(super) text: String,
    /// The error that it was made of: others may fail for it.
    pub(super) cause: Option<Box<Error>>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let error = in_words_of_c(error);
        Failure { result: result_of(&error), text: error.to_string(), cause: Some(Box::new(error)) }
    }
}

impl Failure {
    /// What no error of the library's says.
    pub(super) fn new(result: crosscclResult_t, text: String) -> Self {
        Failure { result, text, cause: None }
    }
}

fn result_of(error: &Error) -> crosscclResult_t {
    use crosscclResult_t::*;
    match error {
        Error::Driver { .. } => crosscclUnhandledDriverError,
        Error::PeerAccess { .. } | Error::PeerSelfTest { .. } | Error::SignalMemoryNotCoherent { .. } => {
            crosscclSystemError
        }
        Error::InvalidArgument { .. } | Error::NotPeerAccessible { .. } | Error::Tuning { .. } => {
            crosscclInvalidArgument
        }
        Error::Busy { .. } => crosscclInvalidUsage,
        Error::Timeout { .. } => crosscclTimeout,
        Error::Mismatch { .. } => crosscclMismatch,
        Error::RankGone { .. } => crosscclRankGone,
        Error::Aborted => crosscclAborted,
        Error::Poisoned { .. } => crosscclPoisoned,
        Error::Unsupported { .. } => crosscclUnsupported,
        Error::NotCompiled { .. } => crosscclNotCompiled,
        Error::NoDevice { .. } => crosscclNoDevice,
    }
}

/// A caller's mistake is told by the names that the caller knows.
fn in_words_of_c(error: Error) -> Error {
    let call = |operation| match operation {
        "broadcast" => "crosscclBroadcast",
        "reduce_scatter" => "crosscclReduceScatter",
        "communicator" => "crosscclCommInitAllConfig",
        other => other,
    };
    match error {
        Error::InvalidArgument { operation, rank, argument, expected, got } => {
            let argument = match argument {
                "input" => "sendbuff",
                "output" => "recvbuff",
                "timeout" => "timeout_ms",
                "dtype" => "datatype",
                other => other,
            };
            Error::InvalidArgument { operation: call(operation), rank, argument, expected, got }
        }
        Error::Unsupported { operation, what } => Error::Unsupported { operation: call(operation), what },
        Error::Busy { operation, what } => Error::Busy { operation: call(operation), what },
        other => other,
    }
}

/// An entry point: what every function does around its own work. Inside a group its failure is the group's.
pub(super) fn entry(body: impl FnOnce() -> Result<()>) -> crosscclResult_t {
    enter(|| body().inspect_err(group::failed))
}

/// The same for those that make the group itself.
pub(super) fn enter(body: impl FnOnce() -> Result<()>) -> crosscclResult_t {
    // Whatever a panic leaves behind is behind locks that are taken all the same, and checked again.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => crosscclResult_t::crosscclSuccess,
        Ok(Err(failure)) => tell(failure),
        Err(panic) => {
            let text = format!("a bug of crossccl, please report it: {}", message(&*panic));
            let failure = Failure::new(crosscclResult_t::crosscclInternalError, text);
            group::failed(&failure);
            tell(failure)
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps the text for this thread. A thread that is ending keeps none.
pub(super) fn tell(failure: Failure) -> crosscclResult_t {
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(Some(text)));
    failure.result
}

pub(super) fn last() -> *const c_char {
    let kept = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    kept.ok().flatten().unwrap_or(c"no call of this thread has failed".as_ptr())
}

/// Where an answer goes, or something is read from.
pub(super) fn place<T>(call: &'static str, argument: &'static str, at: *mut T) -> Result<*mut T> {
    let got = match at {
        _ if at.is_null() => "null".to_owned(),
        _ if !at.is_aligned() => format!("{at:p}"),
        _ => return Ok(at),
    };
    let expected = format!("an address aligned to {} bytes", align_of::<T>());
    Err(crate::collective::invalid(call, None, argument, expected, got).into())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: as `crosscclGetLastError` promises.
        unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn no_panic_leaves() {
        assert_eq!(text(), "no call of this thread has failed");
        assert_eq!(entry(|| panic!("planted")), crosscclResult_t::crosscclInternalError);
        assert_eq!(text(), "a bug of crossccl, please report it: planted");
        assert_eq!(entry(|| panic!("planted by {}", "hand")), crosscclResult_t::crosscclInternalError);
        assert_eq!(text(), "a bug of crossccl, please report it: planted by hand");
        assert_eq!(entry(|| std::panic::panic_any(1)), crosscclResult_t::crosscclInternalError);
        assert_eq!(text(), "a bug of crossccl, please report it: a panic without a text");
        // In a group it is the group's failure as well, and nothing of the group is launched.
        assert_eq!(enter(|| group::start("crosscclGroupStart")), crosscclResult_t::crosscclSuccess);
        assert_eq!(entry(|| panic!("planted")), crosscclResult_t::crosscclInternalError);
        // SAFETY: nothing was submitted.
        let end = || enter(|| unsafe { group::end("crosscclGroupEnd") });
        assert_eq!(end(), crosscclResult_t::crosscclInternalError);
        assert_eq!(end(), crosscclResult_t::crosscclInvalidUsage);
    }

    #[test]
    fn a_text_with_a_zero_in_it_is_told_whole() {
        tell(Failure::new(crosscclResult_t::crosscclSystemError, "one\0two".into()));
        assert_eq!(text(), "one?two");
    }
}
