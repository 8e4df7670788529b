//! `hipError_t`: the codes that are answered, by HIP's numbers and names.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal;)*) => {
        $(pub(crate) const $name: i32 = $code;)*
        const NAMES: &[(i32, &std::ffi::CStr)] = &[$(($code, $text)),*];
    };
}

codes! {
    SUCCESS = 0 c"hipSuccess";
    INVALID_VALUE = 1 c"hipErrorInvalidValue";
    OUT_OF_MEMORY = 2 c"hipErrorOutOfMemory";
    INVALID_CONFIGURATION = 9 c"hipErrorInvalidConfiguration";
    NO_DEVICE = 100 c"hipErrorNoDevice";
    INVALID_DEVICE = 101 c"hipErrorInvalidDevice";
    INVALID_IMAGE = 200 c"hipErrorInvalidImage";
    INVALID_HANDLE = 400 c"hipErrorInvalidHandle";
    ILLEGAL_STATE = 401 c"hipErrorIllegalState";
    NOT_FOUND = 500 c"hipErrorNotFound";
    NOT_READY = 600 c"hipErrorNotReady";
    PEER_ACCESS_ALREADY_ENABLED = 704 c"hipErrorPeerAccessAlreadyEnabled";
    CONTEXT_IS_DESTROYED = 709 c"hipErrorContextIsDestroyed";
    LAUNCH_FAILURE = 719 c"hipErrorLaunchFailure";
    NOT_SUPPORTED = 801 c"hipErrorNotSupported";
    CAPTURE_UNSUPPORTED = 900 c"hipErrorStreamCaptureUnsupported";
    CAPTURE_INVALIDATED = 901 c"hipErrorStreamCaptureInvalidated";
    CAPTURE_MERGE = 902 c"hipErrorStreamCaptureMerge";
    CAPTURE_UNMATCHED = 903 c"hipErrorStreamCaptureUnmatched";
    CAPTURE_UNJOINED = 904 c"hipErrorStreamCaptureUnjoined";
    CAPTURE_ISOLATION = 905 c"hipErrorStreamCaptureIsolation";
    CAPTURED_EVENT = 907 c"hipErrorCapturedEvent";
    CAPTURE_WRONG_THREAD = 908 c"hipErrorStreamCaptureWrongThread";
}

/// `hipStreamCaptureMode`
pub(crate) const CAPTURE_GLOBAL: i32 = 0;
pub(crate) const CAPTURE_THREAD_LOCAL: i32 = 1;
pub(crate) const CAPTURE_RELAXED: i32 = 2;

pub(crate) fn name(code: i32) -> &'static std::ffi::CStr {
    NAMES.iter().find(|(c, _)| *c == code).map_or(c"hipErrorUnknown", |(_, name)| name)
}
