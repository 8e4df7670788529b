"""From results to exceptions."""

from ._library import library


class Error(Exception):
    """A call failed. The text says what, where, why; `code` is the crosscclResult_t."""

    code = 0


class InvalidArgument(Error, ValueError):
    """An argument is wrong. Nothing was launched."""


class ExportError(InvalidArgument, BufferError):
    """An array's library does not hand over its memory, or the memory does not hold the array's values. `__cause__` is
    what the library raised, if it did. Nothing was launched.
    """


class InvalidUsage(Error):
    """The call is wrong at this place: a rank in two threads, say. Nothing was launched."""


class Timeout(Error, TimeoutError):
    """A rank did not come in time. `reset` goes on."""


class Mismatch(Error):
    """The ranks called different things. `reset` goes on."""


class Aborted(Error):
    """`abort` was called. `reset` goes on."""


class Poisoned(Error):
    """An earlier collective failed, and nobody has called `reset` since."""


class Unsupported(Error, NotImplementedError):
    """Valid, but not offered. Nothing was launched."""


class RankGone(Error):
    """A rank that the call needs was closed before it made the same call. What needs it takes a new communicator."""


class NoDevice(Error):
    """The backend has no device here, or is not in this library."""


CLASSES = {
    4: InvalidArgument,
    5: InvalidUsage,
    16: Timeout,
    17: Mismatch,
    18: Aborted,
    19: Poisoned,
    20: Unsupported,
    21: NoDevice,
    22: NoDevice,
    23: RankGone,
}


def error_of(code):
    """What the last failure of this thread was, as an exception."""
    error = CLASSES.get(code, Error)(library.crosscclGetLastError(None).decode())
    error.code = code
    return error


def check(code):
    if code != 0:
        raise error_of(code)


def invalid(call, rank, argument, expected, got, kind=InvalidArgument):
    """A mistake that the library would not see, told as the library tells its own."""
    error = kind(f"{call}: {argument} of rank {rank}: expected {expected}, got {got}")
    error.code = 4
    return error


def busy(call, rank):
    """As the library says it, which does not know that a wait in slices is one call."""
    error = InvalidUsage(f"{call}: another thread is in a call with the handle of rank {rank}; use it in one at a time")
    error.code = 5
    return error
