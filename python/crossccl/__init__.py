"""Broadcast and reduce-scatter between the accelerators of one machine, over arrays of NumPy on the CPU and anything with
DLPack on a GPU.

>>> import crossccl, numpy as np
>>> with crossccl.Communicator(4, backend="cpu") as comm:
...     shares = comm.reduce_scatter([np.full(8, r, np.float32) for r in range(4)], op="avg")
>>> shares[3]
array([1.5, 1.5], dtype=float32)

`Communicator` drives all ranks from one thread; its `ranks` are handles for a thread each. A rank that does not come, or
comes with something else, becomes an exception that names it, and `reset` goes on.

Streams: a call runs in the stream that you name. Then the order of what fills and reads the arrays is yours: no
library is asked to synchronise, so that calls can be captured. If you name none, a call runs in the current stream of
the array's library if that tells it (PyTorch does), else in the device's default stream. What fills the arrays comes
first either way.

Signals: while a call waits, Python runs its signal handlers at least every tenth of a second, in the main thread as
always. If a handler raises, as Ctrl-C's does, its exception leaves the call. What was enqueued stays in flight, and
its arrays are kept: `synchronize` waits on, `abort` and then `reset` give it up. An interrupted reset is as one that
timed out.
"""

import contextlib
import ctypes
import math
import operator
import signal
import threading
import time

from ._errors import (
    Aborted,
    Error,
    ExportError,
    InvalidArgument,
    InvalidUsage,
    Mismatch,
    NoDevice,
    Poisoned,
    RankGone,
    Timeout,
    Unsupported,
    busy,
    check,
    error_of,
    invalid,
)
from ._library import BACKENDS, CONFIG_MAGIC, DATATYPES, OP_NAMES, VERSION_CODE, Config, library
from ._memory import Stream, memory_of

__all__ = [
    "Aborted",
    "Communicator",
    "Error",
    "ExportError",
    "InvalidArgument",
    "InvalidUsage",
    "Mismatch",
    "NoDevice",
    "Poisoned",
    "RankGone",
    "Rank",
    "Timeout",
    "Unsupported",
]


def _choice(call, argument, table, value):
    if value not in table:
        raise _mistake(call, argument, f"one of {', '.join(table)}", repr(value))
    return table[value]


def _mistake(call, argument, expected, got):
    error = InvalidArgument(f"{call}: {argument}: expected {expected}, got {got}")
    error.code = 4
    return error


def _int(call, argument, value):
    """A number that C takes as it is: ctypes would cut a larger one to some rank or device that was not meant."""
    return _whole(call, argument, value, "a whole number of 32 bits", -(2**31), 2**31)


def _whole(call, argument, value, expected, least, end):
    """Of NumPy's integers as well; none of the truth values."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or not least <= number < end:
        raise _mistake(call, argument, expected, repr(value))
    return number


def _devices(call, given):
    """The device of each rank, of a number of ranks or of their devices."""
    try:
        numbers = None if isinstance(given, str) else list(given)
    except TypeError:
        numbers = range(_whole(call, "devices", given, "a number of ranks, or the device of each", 0, 2**31))
    if numbers is None:
        raise _mistake(call, "devices", "a number of ranks, or the device of each", repr(given))
    return [_int(call, "devices", number) for number in numbers]


def _stream(call, handle):
    if handle is None:
        return None
    return Stream(_whole(call, "stream", handle, "the handle of a stream, a whole number", 0, 2**64), named=True)


def _milliseconds(call, seconds):
    try:
        fits = 0 < seconds < 2**50
    except TypeError:
        fits = False
    if not fits:
        raise _mistake(call, "timeout", "seconds, more than 0", repr(seconds))
    return math.ceil(seconds * 1000)


# How long a wait may keep Python from its signal handlers.
_SLICE_MS = 100
# How much longer than its limit a call may take at the end of a communicator, in seconds: as crosscclCommDestroy's.
_PATIENCE = 30.0


# How many arrays of a rank are kept before a call waits until it may let them go. Fewer than the calls that a rank may be
# ahead of its peers, so that a signal is heard.
_MOST_KEPT = 4096


# What may be touched for as long as the process lives.
_kept_for_good = []


class _Handles:
    """The ranks' handles, and what is in flight by them. Whoever has a rank has all: they end when nobody has one."""

    def __init__(self, comms, limit):
        self.comms = [ctypes.c_void_p(comm) for comm in comms]
        self.limit = limit
        # Of each rank: what is in flight, or may be touched until a reset.
        self.kept = [[] for _ in self.comms]
        # Of each rank: the thread that waits with it, in slices; and whether an exception ended its last wait early.
        self.waits, self.interrupted = [None] * len(self.comms), [False] * len(self.comms)
        self.guard = threading.Lock()

    def refuse_others(self, rank, call):
        """Between two slices of another thread's wait the library would let this one in."""
        if self.waits[rank] not in (None, threading.get_ident()):
            raise busy(call, rank)

    def slices(self, rank, call, step, last):
        """Calls `step` until it answers that the wait is over, then `last`: to Python's other threads, one call. In
        between, Python runs its signal handlers, whose exceptions leave it.
        """
        me, mine = threading.get_ident(), False
        try:
            # No context manager of our own: a signal between its parts would leave the rank taken.
            with self.guard:
                if self.waits[rank] is None:
                    self.waits[rank] = me
                    mine = True
            self.refuse_others(rank, call)
            while not step():
                pass
            last()
            self.interrupted[rank] = False
        except Error:
            raise
        except BaseException:
            self.interrupted[rank] = True
            raise
        finally:
            if mine:
                self.waits[rank] = None

    def wait_step(self, rank):
        """Whether all that the rank enqueued is complete, asked for as long as a slice."""
        done = ctypes.c_int()
        check(library.crosscclCommWait(self.comms[rank], _SLICE_MS, done))
        return bool(done.value)

    def close(self, at_once=False):
        """Waits for what is in flight, unless `at_once`: then it is aborted."""
        failures = []
        if at_once:
            self.abort()
        for rank in range(len(self.comms)):
            try:
                self._destroy(rank)
            except Error as error:
                failures.append(error)
        if any("did not come to rest" in str(failure) for failure in failures):
            _kept_for_good.extend(self.kept)
            self.kept = [[] for _ in self.comms]
        # Peers read a rank's memory: not before all are through.
        if not any(self.comms):
            for kept in self.kept:
                kept.clear()
        if failures:
            raise failures[0]

    def _destroy(self, rank):
        if not self.comms[rank]:
            return
        end = time.monotonic() + (self.limit or 0.0) + _PATIENCE

        def step():
            if time.monotonic() >= end:
                self.abort()
                return True
            try:
                return self.wait_step(rank)
            except InvalidUsage:
                raise
            except Error:
                # Of the driver: the end of the handle tells.
                return True

        def last():
            code = library.crosscclCommDestroy(self.comms[rank])
            error = error_of(code) if code else None
            # Where another thread is in a call with it, it is still there.
            if not isinstance(error, InvalidUsage):
                self.comms[rank] = ctypes.c_void_p()
            if error is not None:
                raise error

        self.slices(rank, "close", step, last)

    def abort(self):
        for comm in self.comms:
            if comm:
                library.crosscclCommAbort(comm)
                return

    def __del__(self):
        # Whoever was interrupted in a wait, and came back to it no more, does not wait here.
        try:
            self.close(at_once=any(self.interrupted))
        except Error:
            pass
        except BaseException as error:
            with contextlib.suppress(Error):
                self.close(at_once=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            # No exception leaves a finalizer: Ctrl-C comes again, when this one is over.
            threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()


def _handle(memory, stream):
    """The stream's, or that of the array's library; None for the default stream."""
    return memory.current if stream is None else stream.handle


class Rank:
    """One rank of a communicator, for one thread at a time.

    `rank`, `count` (of ranks), `backend` and `device` say which. Streams are handles (integers): `cudaStream_t`, `hipStream_t`;
    `None` is the device's default stream, on the CPU the rank's own, whose handle is `stream`. It lives for as long as anybody
    has a rank of its communicator, unless that is closed.
    """

    def __init__(self, handles, rank):
        self._handles, self._index = handles, rank
        self.rank = self._ask("crosscclCommUserRank")
        self.count = self._ask("crosscclCommCount")
        self.device = self._ask("crosscclCommDevice")
        backend = self._ask("crosscclCommBackend")
        self.backend = next(name for name, number in BACKENDS.items() if number == backend)
        self.stream = self._ask("crosscclCommStream", ctypes.c_void_p)

    @property
    def _comm(self):
        return self._handles.comms[self._index]

    @property
    def _kept(self):
        return self._handles.kept[self._index]

    def _make_room(self, call):
        """Lets arrays of calls that nobody synchronizes go, once they are complete: kept without end, they were a leak."""
        if len(self._kept) >= _MOST_KEPT:
            handles, rank = self._handles, self._index
            handles.slices(rank, call, lambda: handles.wait_step(rank), lambda: None)
            # After a failure they stay until a reset.
            if self.failure() is None:
                self._kept.clear()

    def _ask(self, question, of=ctypes.c_int):
        answer = of()
        check(getattr(library, question)(self._comm, answer))
        return answer.value

    def broadcast(self, array, root=0, *, stream=None, wait=True):
        """This rank's part of a broadcast of the root's array into the others', of any dtype, equal in count.

        With `wait` false it only enqueues: `synchronize` tells the outcome, and keeps the array until then.
        """
        call = "broadcast"
        root, stream = _int(call, "root", root), _stream(call, stream)
        self._handles.refuse_others(self._index, call)
        self._make_room(call)
        memory = memory_of(call, self, "array", array, written=self.rank != root, stream=stream)
        self._broadcast(memory, root, _handle(memory, stream))
        if wait:
            self.synchronize()

    def _broadcast(self, memory, root, stream):
        # What has no number of its own is as many bytes.
        dtype = DATATYPES.get(memory.dtype)
        count, dtype = (memory.count, dtype) if dtype is not None else (memory.count * memory.itemsize, DATATYPES["uint8"])
        self._kept.append(memory.keep)
        check(library.crosscclBroadcast(memory.address, memory.address, count, dtype, root, self._comm, stream))

    def reduce_scatter(self, input, output=None, op="sum", *, stream=None, wait=True):
        """This rank's part of a reduce-scatter; its part of the result, 1/count of the input along the first axis.

        `op` is sum, prod (or product), max, min or avg (or average). Without an output there is a new array of NumPy,
        on the CPU alone. An output at the rank's own part of the input is in place.
        """
        call = "reduce_scatter"
        op, stream = _choice(call, "op", OP_NAMES, op), _stream(call, stream)
        self._handles.refuse_others(self._index, call)
        self._make_room(call)
        output, memory, to, stream = self._parts(input, output, stream)
        self._reduce_scatter(memory, to, op, stream)
        if wait:
            self.synchronize()
        return output

    def _parts(self, input, output, stream):
        """The output, the memory of input and output, and the handle of the stream where both may be used."""
        call = "reduce_scatter"
        memory = memory_of(call, self, "input", input, written=False, stream=stream)
        if memory.dtype not in DATATYPES:
            raise invalid(call, self.rank, "input", f"a dtype of {', '.join(DATATYPES)}", memory.dtype)
        if memory.count % self.count != 0:
            expected = f"a multiple of the {self.count} ranks as its count"
            raise invalid(call, self.rank, "input", expected, memory.count)
        part = memory.count // self.count
        if output is None:
            output = self._new(memory, part, input)
        handle = _handle(memory, stream)
        # Where the caller names none, the output's library may work elsewhere than the input's.
        where = stream if self.backend == "cpu" else stream or Stream(handle or 0, named=False)
        to = memory_of(call, self, "output", output, written=True, stream=where)
        if (to.count, to.dtype) != (part, memory.dtype):
            expected = f"{part} elements of {memory.dtype}"
            raise invalid(call, self.rank, "output", expected, f"{to.count} of {to.dtype}")
        return output, memory, to, handle

    def _reduce_scatter(self, memory, to, code, stream):
        self._kept.extend((memory.keep, to.keep))
        dtype = DATATYPES[memory.dtype]
        check(library.crosscclReduceScatter(memory.address, to.address, to.count, dtype, code, self._comm, stream))

    def _new(self, memory, part, like):
        if self.backend != "cpu" or not hasattr(like, "__array_interface__"):
            raise invalid("reduce_scatter", self.rank, "output", "one, where the input is not NumPy's", "None")
        import numpy

        rows = memory.shape[0] if memory.shape else 0
        shape = (rows // self.count, *memory.shape[1:]) if rows % self.count == 0 and rows else (part,)
        return numpy.empty(shape, like.dtype)

    def synchronize(self):
        """Waits until everything that this rank enqueued is complete; raises what failed. After an exception of a
        signal handler it is still in flight, and can be waited for again.
        """
        handles, rank = self._handles, self._index

        def last():
            check(library.crosscclCommSynchronize(self._comm))

        handles.slices(rank, "synchronize", lambda: handles.wait_step(rank), last)
        self._kept.clear()

    def reset(self, timeout=30.0):
        """Makes the communicator usable again after a failure. Every rank's thread calls it; `timeout` is in seconds.
        After an exception of a signal handler this rank is not there any more, as after a `Timeout`; call it again.
        """
        end = time.monotonic() + _milliseconds("reset", timeout) / 1000
        # Not 0: this rank is in no reset yet.
        done = ctypes.c_int(1)

        def step():
            left = math.ceil((end - time.monotonic()) * 1000)
            if left > 0:
                check(library.crosscclCommResetWait(self._comm, min(left, _SLICE_MS), done))
            return left <= 0 or bool(done.value)

        def last():
            if not done.value:
                # Whatever it answers, this rank has left.
                done.value = 1
                check(library.crosscclCommReset(self._comm, 1))

        try:
            self._handles.slices(self._index, "reset", step, last)
        except BaseException:
            if not done.value:
                library.crosscclCommReset(self._comm, 1)
            raise
        self._kept.clear()

    def abort(self):
        """Ends every wait in flight, of all ranks, with `Aborted`. From any thread."""
        check(library.crosscclCommAbort(self._comm))

    def failure(self):
        """Why the communicator refuses work, as an exception that is not raised; None where it does not. From any thread."""
        code = self._ask("crosscclCommGetAsyncError")
        return error_of(code) if code else None

    def __repr__(self):
        return f"Rank({self.rank} of {self.count} on {self.backend} device {self.device})"


class Communicator:
    """All ranks, from one thread.

    `devices` is a number of ranks, on devices 0, 1, ..., or the device of each rank. `backend` is auto (a GPU's where the library
    has one, else the CPU), cpu, cuda or rocm; `timeout` how many seconds a rank waits for another, None for ever; with `strict`
    all ranks fail where they disagree; with `virtual_ranks` they may share devices: calls without streams then take the ranks' own,
    since in one default stream the ranks' work would wait for itself. It ends when it is closed, or nobody has it or a rank of
    it.

    As a context it waits, at the end, for what is in flight. If a signal's exception ended a wait, or leaves the block
    (`KeyboardInterrupt`, `SystemExit`), it aborts that instead.
    """

    def __init__(self, devices, *, backend="auto", timeout=30.0, strict=False, virtual_ranks=False):
        call = "Communicator"
        numbers = _devices(call, devices)
        config = Config(size=ctypes.sizeof(Config), magic=CONFIG_MAGIC, version=VERSION_CODE)
        config.backend = _choice(call, "backend", BACKENDS, backend)
        config.agreement, config.virtual_ranks = int(bool(strict)), int(bool(virtual_ranks))
        config.timeout_ms = -1 if timeout is None else _milliseconds(call, timeout)
        comms = (ctypes.c_void_p * max(1, len(numbers)))()
        check(library.crosscclCommInitAllConfig(comms, len(numbers), (ctypes.c_int * len(comms))(*numbers), config))
        self._handles = _Handles(comms, timeout)
        self.ranks = tuple(Rank(self._handles, rank) for rank in range(len(numbers)))

    def broadcast(self, arrays, root=0, *, streams=None, wait=True):
        """Copies the array of `root` into the others', one a rank, equal in dtype and count."""
        call = "broadcast"
        root = _int(call, "root", root)
        arrays, streams = self._one_each(call, "arrays", arrays), self._streams(call, streams)
        memories = [
            memory_of(call, rank, "array", array, written=rank.rank != root, stream=stream)
            for rank, array, stream in zip(self.ranks, arrays, streams)
        ]
        self._equal(call, "array", memories)
        self._make_room(call)
        with self._group(call):
            for rank, memory, stream in zip(self.ranks, memories, streams):
                rank._broadcast(memory, root, _handle(memory, stream))
        if wait:
            self.synchronize()

    def reduce_scatter(self, inputs, outputs=None, op="sum", *, streams=None, wait=True):
        """Reduces the inputs, one a rank, and gives each rank its part: the outputs. See `Rank.reduce_scatter`."""
        call = "reduce_scatter"
        inputs, streams = self._one_each(call, "inputs", inputs), self._streams(call, streams)
        outputs = [None] * len(self.ranks) if outputs is None else self._one_each(call, "outputs", outputs)
        code = _choice(call, "op", OP_NAMES, op)
        parts = [
            rank._parts(input, output, stream) for rank, input, output, stream in zip(self.ranks, inputs, outputs, streams)
        ]
        self._equal(call, "input", [memory for _, memory, _, _ in parts])
        self._make_room(call)
        with self._group(call):
            for rank, (_, memory, to, stream) in zip(self.ranks, parts):
                rank._reduce_scatter(memory, to, code, stream)
        if wait:
            self.synchronize()
        return [output for output, _, _, _ in parts]

    def _make_room(self, call):
        for rank in self.ranks:
            rank._make_room(call)

    def _equal(self, call, argument, memories):
        """Before anything is launched: ranks that disagree would fail together, and need a reset."""
        first = memories[0]
        for rank, memory in zip(self.ranks, memories):
            if (memory.count, memory.dtype) != (first.count, first.dtype):
                expected = f"{first.count} elements of {first.dtype}, as rank 0"
                raise invalid(call, rank.rank, argument, expected, f"{memory.count} of {memory.dtype}")

    def _one_each(self, call, argument, given):
        given = list(given)
        if len(given) != len(self.ranks):
            raise _mistake(call, argument, f"one for each of the {len(self.ranks)} ranks", len(given))
        return given

    def _streams(self, call, streams):
        if streams is not None:
            return [_stream(call, handle) for handle in self._one_each(call, "streams", streams)]
        devices = [rank.device for rank in self.ranks]
        if self.ranks[0].backend != "cpu" and len(set(devices)) < len(devices):
            return [Stream(rank.stream, named=False) for rank in self.ranks]
        return [None] * len(self.ranks)

    @contextlib.contextmanager
    def _group(self, call):
        """Launches what is called inside together, or, after an exception, nothing of it."""
        for rank in range(len(self.ranks)):
            self._handles.refuse_others(rank, call)
        try:
            # Inside: an interrupt behind it must not leave the group open.
            check(library.crosscclGroupStart())
            yield
        except BaseException:
            # A group with a failure in it launches nothing; one that Python alone saw is told to it.
            library.crosscclCommSynchronize(None)
            library.crosscclGroupEnd()
            raise
        check(library.crosscclGroupEnd())

    def synchronize(self):
        """Waits for all ranks; raises what failed first."""
        failures = []
        for rank in self.ranks:
            try:
                rank.synchronize()
            except Error as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def reset(self):
        """Makes the communicator usable again after a failure, in about a second at most."""
        for rank in range(len(self.ranks)):
            self._handles.refuse_others(rank, "reset")
        comms = (ctypes.c_void_p * len(self.ranks))(*(rank._comm.value for rank in self.ranks))
        check(library.crosscclCommResetAll(comms, len(comms)))
        for rank in self.ranks:
            rank._kept.clear()
        self._handles.interrupted = [False] * len(self.ranks)

    def abort(self):
        """Ends every wait in flight with `Aborted`. From any thread."""
        self.ranks[0].abort()

    def failure(self):
        """As `Rank.failure`."""
        return self.ranks[0].failure()

    def close(self):
        """Waits for what is in flight, within the time limit, and ends the communicator. Twice is fine. Raises what nobody had
        asked for; `InvalidUsage` where another thread is in a call with a rank, which is there until it is closed again.
        After an exception of a signal handler what is left is there until it is closed again.
        """
        self._handles.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.close()
            return
        with contextlib.suppress(Error):
            self._handles.close(at_once=not issubclass(kind, Exception) or any(self._handles.interrupted))

    def __repr__(self):
        return f"Communicator({', '.join(map(repr, self.ranks))})"
