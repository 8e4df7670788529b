"""Broadcast and reduce-scatter between the accelerators of one machine, over arrays of NumPy on the CPU and anything with
DLPack on a GPU.

>>> import crossccl, numpy as np
>>> with crossccl.Communicator(4, backend="cpu") as comm:
...     shares = comm.reduce_scatter([np.full(8, r, np.float32) for r in range(4)], op="avg")
>>> shares[3]
array([1.5, 1.5], dtype=float32)

`Communicator` drives all ranks from one thread; its `ranks` are handles for a thread each. A rank that does not come, or
comes with something else, becomes an exception that names it, and `reset` goes on.
"""

import contextlib
import ctypes
import math

from ._errors import (
    Aborted,
    Error,
    InvalidArgument,
    InvalidUsage,
    Mismatch,
    NoDevice,
    Poisoned,
    Timeout,
    Unsupported,
    check,
    error_of,
    invalid,
)
from ._library import BACKENDS, CONFIG_MAGIC, DATATYPES, OPS, VERSION_CODE, Config, library
from ._memory import memory_of

__all__ = [
    "Aborted",
    "Communicator",
    "Error",
    "InvalidArgument",
    "InvalidUsage",
    "Mismatch",
    "NoDevice",
    "Poisoned",
    "Rank",
    "Timeout",
    "Unsupported",
]


def _choice(call, argument, table, value):
    if value not in table:
        error = InvalidArgument(f"{call}: {argument}: expected one of {', '.join(table)}, got {value!r}")
        error.code = 4
        raise error
    return table[value]


class Rank:
    """One rank of a communicator, for one thread at a time.

    `rank`, `count` (of ranks), `backend` and `device` say which. Streams are handles (integers): `cudaStream_t`, `hipStream_t`;
    `None` is the device's default stream, on the CPU the rank's own.
    """

    def __init__(self, comm):
        self._comm = ctypes.c_void_p(comm)
        # What is in flight, or may be touched until a reset.
        self._kept = []
        self.rank = self._ask("crosscclCommUserRank")
        self.count = self._ask("crosscclCommCount")
        self.device = self._ask("crosscclCommDevice")
        backend = self._ask("crosscclCommBackend")
        self.backend = next(name for name, number in BACKENDS.items() if number == backend)

    def _ask(self, question):
        answer = ctypes.c_int()
        check(getattr(library, question)(self._comm, answer))
        return answer.value

    def broadcast(self, array, root=0, *, stream=None, wait=True):
        """This rank's part of a broadcast of the root's array into the others', of any dtype, equal in count.

        With `wait` false it only enqueues: `synchronize` tells the outcome, and keeps the array until then.
        """
        memory = memory_of("broadcast", self, "array", array, written=self.rank != root, stream=stream)
        self._broadcast(memory, root, stream)
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

        `op` is sum, prod, max, min or avg. Without an output there is a new array of NumPy, on the CPU alone. An output at the
        rank's own part of the input is in place.
        """
        call = "reduce_scatter"
        code = _choice(call, "op", OPS, op)
        memory = memory_of(call, self, "input", input, written=False, stream=stream)
        if memory.dtype not in DATATYPES:
            raise invalid(call, self.rank, "input", f"a dtype of {', '.join(DATATYPES)}", memory.dtype)
        if memory.count % self.count != 0:
            expected = f"a multiple of the {self.count} ranks as its count"
            raise invalid(call, self.rank, "input", expected, memory.count)
        part = memory.count // self.count
        if output is None:
            output = self._new(memory, part, input)
        to = memory_of(call, self, "output", output, written=True, stream=stream)
        if (to.count, to.dtype) != (part, memory.dtype):
            expected = f"{part} elements of {memory.dtype}"
            raise invalid(call, self.rank, "output", expected, f"{to.count} of {to.dtype}")
        self._kept += [memory.keep, to.keep]
        check(library.crosscclReduceScatter(memory.address, to.address, part, DATATYPES[memory.dtype], code, self._comm, stream))
        if wait:
            self.synchronize()
        return output

    def _new(self, memory, part, like):
        if self.backend != "cpu" or not hasattr(like, "__array_interface__"):
            raise invalid("reduce_scatter", self.rank, "output", "one, where the input is not NumPy's", "None")
        import numpy

        rows = memory.shape[0] if memory.shape else 0
        shape = (rows // self.count, *memory.shape[1:]) if rows % self.count == 0 and rows else (part,)
        return numpy.empty(shape, like.dtype)

    def synchronize(self):
        """Waits until everything that this rank enqueued is complete; raises what failed."""
        check(library.crosscclCommSynchronize(self._comm))
        self._kept.clear()

    def reset(self, timeout=30.0):
        """Makes the communicator usable again after a failure. Every rank's thread calls it; `timeout` is in seconds."""
        check(library.crosscclCommReset(self._comm, max(1, math.ceil(timeout * 1000))))
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
    all ranks fail where they disagree; with `virtual_ranks` they may share devices.
    """

    def __init__(self, devices, *, backend="auto", timeout=30.0, strict=False, virtual_ranks=False):
        self.ranks = ()
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        config = Config(size=ctypes.sizeof(Config), magic=CONFIG_MAGIC, version=VERSION_CODE)
        config.backend = _choice("Communicator", "backend", BACKENDS, backend)
        config.agreement, config.virtual_ranks = int(strict), int(virtual_ranks)
        config.timeout_ms = -1 if timeout is None else max(1, math.ceil(timeout * 1000))
        comms = (ctypes.c_void_p * max(1, len(numbers)))()
        check(library.crosscclCommInitAllConfig(comms, len(numbers), (ctypes.c_int * len(comms))(*numbers), config))
        self.ranks = tuple(Rank(comm) for comm in comms)

    def broadcast(self, arrays, root=0, *, streams=None, wait=True):
        """Copies the array of `root` into the others', one a rank, equal in dtype and count."""
        call = "broadcast"
        arrays, streams = self._one_each(call, "arrays", arrays), self._streams(call, streams)
        memories = [
            memory_of(call, rank, "array", array, written=rank.rank != root, stream=stream)
            for rank, array, stream in zip(self.ranks, arrays, streams)
        ]
        first = memories[0]
        for rank, memory in zip(self.ranks, memories):
            if (memory.count, memory.dtype) != (first.count, first.dtype):
                expected = f"{first.count} elements of {first.dtype}, as rank 0"
                raise invalid(call, rank.rank, "array", expected, f"{memory.count} of {memory.dtype}")
        with self._group():
            for rank, memory, stream in zip(self.ranks, memories, streams):
                rank._broadcast(memory, root, stream)
        if wait:
            self.synchronize()

    def reduce_scatter(self, inputs, outputs=None, op="sum", *, streams=None, wait=True):
        """Reduces the inputs, one a rank, and gives each rank its part: the outputs. See `Rank.reduce_scatter`."""
        call = "reduce_scatter"
        inputs, streams = self._one_each(call, "inputs", inputs), self._streams(call, streams)
        outputs = [None] * len(self.ranks) if outputs is None else self._one_each(call, "outputs", outputs)
        with self._group():
            results = [
                rank.reduce_scatter(input, output, op, stream=stream, wait=False)
                for rank, input, output, stream in zip(self.ranks, inputs, outputs, streams)
            ]
        if wait:
            self.synchronize()
        return results

    def _one_each(self, call, argument, given):
        given = list(given)
        if len(given) != len(self.ranks):
            error = InvalidArgument(f"{call}: {argument}: expected one for each of the {len(self.ranks)} ranks, got {len(given)}")
            error.code = 4
            raise error
        return given

    def _streams(self, call, streams):
        return [None] * len(self.ranks) if streams is None else self._one_each(call, "streams", streams)

    @contextlib.contextmanager
    def _group(self):
        """Launches what is called inside together, or, after an exception, nothing of it."""
        check(library.crosscclGroupStart())
        try:
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
        """Makes the communicator usable again after a failure."""
        comms = (ctypes.c_void_p * len(self.ranks))(*(rank._comm.value for rank in self.ranks))
        check(library.crosscclCommResetAll(comms, len(comms)))
        for rank in self.ranks:
            rank._kept.clear()

    def abort(self):
        """Ends every wait in flight with `Aborted`. From any thread."""
        self.ranks[0].abort()

    def failure(self):
        """As `Rank.failure`."""
        return self.ranks[0].failure()

    def close(self):
        """Waits for what is in flight, within the time limit, and ends the communicator. Twice is fine."""
        failures = []
        ranks, self.ranks = self.ranks, ()
        for rank in ranks:
            code = library.crosscclCommDestroy(rank._comm)
            if code != 0:
                failures.append(error_of(code))
        # Peers read a rank's memory: not before all are through.
        for rank in ranks:
            rank._kept.clear()
        if failures:
            raise failures[0]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.close()
            return
        with contextlib.suppress(Error):
            self.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self):
        return f"Communicator({', '.join(map(repr, self.ranks))})"
