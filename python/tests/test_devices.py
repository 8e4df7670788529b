"""Arrays on two devices, of types that stand for PyTorch, CuPy and JAX, on the stand-in for CUDA's driver (tests/cuda):
which stream a call takes, what the library is asked, and that none of it needs another current device. test_gpus.py has
the libraries themselves, on GPUs."""

import contextlib
import ctypes
import sys
import types

import numpy as np
import pytest

import crossccl
import exchange
from test_signals import interrupted

COUNT = 1000


def load():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.standin_alive
    except (OSError, AttributeError):
        pytest.skip("no stand-in for the driver: see tests/cuda/build-stand-in", allow_module_level=True)
    try:
        crossccl.Communicator(1, backend="cuda").close()
    except crossccl.NoDevice as error:
        pytest.skip(f"the library has no backend for it: {error}", allow_module_level=True)
    return driver


DRIVER = load()


def call(name, *arguments):
    assert getattr(DRIVER, name)(*arguments) == 0, name


def context(number):
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    return context


CONTEXTS = [context(number) for number in (0, 1)]


@contextlib.contextmanager
def device(number):
    before = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(before))
    call("cuCtxSetCurrent", CONTEXTS[number])
    try:
        yield
    finally:
        call("cuCtxSetCurrent", before)


def new_stream(number):
    stream = ctypes.c_void_p()
    with device(number):
        call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


def finish(number, stream):
    with device(number):
        call("cuStreamSynchronize", ctypes.c_void_p(stream))


class OnDevice(exchange.Array):
    """Its memory is the host's, and lives as long as the process."""

    def __init__(self, number, value, count=COUNT, dtype=np.float32):
        address = ctypes.c_uint64()
        bytes = np.dtype(dtype).itemsize * count
        with device(number):
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
        like = np.zeros(count, dtype)
        super().__init__(like, (2, number), address.value)
        self.values = np.frombuffer((ctypes.c_char * bytes).from_address(address.value), dtype)
        self.values[:] = value


# As PyTorch: with the exchange API. As CuPy: without.
Torch = exchange.with_api(OnDevice, exchange.API)


class Ready(OnDevice):
    """As JAX, which has no stream that could be named to it."""

    waited = False

    def block_until_ready(self):
        self.waited = True


@pytest.fixture
def streams():
    """The libraries' current ones."""
    own = [new_stream(number) for number in (0, 1)]
    exchange.streams.update(enumerate(own))
    yield own
    exchange.streams.clear()


@pytest.fixture
def used(monkeypatch):
    """The streams of the calls that were made."""
    seen = []
    for name in ("crosscclBroadcast", "crosscclReduceScatter"):
        function = getattr(crossccl.library, name)

        def record(*arguments, function=function):
            seen.append(arguments[-1])
            return function(*arguments)

        monkeypatch.setattr(crossccl.library, name, record)
    return seen


@pytest.fixture
def comm():
    with crossccl.Communicator(2, backend="cuda", timeout=20.0) as comm:
        yield comm


def asked(*arrays):
    return [[options.get("stream") for options in one.asked] for one in arrays]


def test_the_librarys_current_stream(comm, streams, used):
    arrays = [Torch(0, 1), Torch(1, 2)]
    comm.broadcast(arrays, root=1)
    assert used == streams
    assert arrays[0].values.tolist() == [2] * COUNT
    inputs, outputs = [Torch(0, 3), Torch(1, 4)], [Torch(0, 0, COUNT // 2), Torch(1, 0, COUNT // 2)]
    comm.reduce_scatter(inputs, outputs)
    assert used == streams * 2 and outputs[1].values.tolist() == [7] * (COUNT // 2)
    # Nobody is asked to synchronise, and no device was made current.
    assert asked(*arrays, *inputs, *outputs) == [[]] * 6
    now = ctypes.c_void_p(1)
    call("cuCtxGetCurrent", ctypes.byref(now))
    assert now.value is None


def test_named_streams_are_the_callers(comm, streams, used):
    named = [new_stream(number) for number in (0, 1)]
    arrays = [Torch(0, 1), OnDevice(1, 2)]
    comm.broadcast(arrays, root=1, streams=named)
    assert used == named and arrays[0].values.tolist() == [2] * COUNT
    # -1 is DLPack's word for: do not synchronise.
    assert asked(*arrays) == [[], [-1]]
    # The default stream can be named as well, and one's own.
    comm.broadcast(arrays, root=1, streams=[0, comm.ranks[1].stream])
    assert used[2:] == [0, comm.ranks[1].stream] and asked(*arrays) == [[], [-1, -1]]
    for rank, array in zip(comm.ranks, arrays):
        rank.broadcast(array, stream=named[rank.rank], wait=False)
    comm.synchronize()
    assert used[4:] == named and asked(*arrays) == [[], [-1] * 3]


def test_libraries_that_do_not_tell_their_stream(comm, streams, used):
    arrays = [OnDevice(0, 1), OnDevice(1, 2)]
    comm.broadcast(arrays, root=1)
    # 1 is DLPack's name of CUDA's default stream.
    assert used == [None, None] and asked(*arrays) == [[1], [1]]
    assert arrays[0].values.tolist() == [2] * COUNT


def test_two_libraries_in_one_call(comm, streams, used):
    """The call goes where the input's library works, and the output's lets that wait for its own stream."""
    inputs = [Torch(0, 1), OnDevice(1, 2)]
    outputs = [OnDevice(0, 0, COUNT // 2), Torch(1, 0, COUNT // 2)]
    comm.reduce_scatter(inputs, outputs)
    assert used == [streams[0], None]
    assert asked(*inputs, *outputs) == [[], [1], [streams[0]], [1]]
    assert outputs[0].values.tolist() == outputs[1].values.tolist() == [3] * (COUNT // 2)


def test_ranks_that_share_a_device(streams, used):
    """They take their own streams, which the arrays' library lets wait for its own."""
    with crossccl.Communicator([0, 0], backend="cuda", virtual_ranks=True, timeout=20.0) as comm:
        own = [rank.stream for rank in comm.ranks]
        arrays = [Torch(0, 1), OnDevice(0, 2)]
        comm.broadcast(arrays, root=1)
        assert used == own and asked(*arrays) == [[own[0]], [own[1]]]
        # Where they are one, there is nothing to wait for.
        exchange.streams[0] = own[0]
        comm.broadcast(arrays, root=1)
        assert asked(*arrays) == [[own[0]], [own[1]] * 2]


def test_a_library_that_has_no_streams(comm, used):
    arrays = [Ready(0, 1), OnDevice(1, 2)]
    comm.broadcast(arrays, streams=[new_stream(0), new_stream(1)])
    assert arrays[0].waited and asked(*arrays) == [[None], [-1]]
    assert arrays[1].values.tolist() == [1] * COUNT


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("shared", [False, True])
def test_libraries_that_want_their_device_current(monkeypatch, streams, used, name, shared):
    """PyTorch refuses `__dlpack__` of any device but the current one, and CuPy takes that one's stream."""
    now = []

    class Own(Torch if shared else OnDevice):
        def __dlpack__(self, **options):
            if now[-1:] != [self.device[1]]:
                raise BufferError("Can't export tensors on a different CUDA device index")
            return super().__dlpack__(**options)

    @contextlib.contextmanager
    def current(number):
        now.append(number)
        yield
        now.pop()

    cuda = types.SimpleNamespace(**{"device" if name == "torch" else "Device": current})
    library = types.SimpleNamespace(cuda=cuda, **{"Tensor" if name == "torch" else "ndarray": Own})
    monkeypatch.setitem(sys.modules, name, library)
    # With the exchange API it is asked for the ranks' own streams alone.
    with crossccl.Communicator([0, 1, 1, 0] if shared else [0, 1], backend="cuda", virtual_ranks=True) as comm:
        arrays = [Own(rank.device, rank.rank) for rank in comm.ranks]
        comm.broadcast(arrays, root=1)
        assert all(one.values.tolist() == [1] * COUNT for one in arrays)
        handles = [rank.stream for rank in comm.ranks] if shared else [1, 1]
        assert asked(*arrays) == [[handle] for handle in handles] and not now


def test_memory_elsewhere(comm, streams):
    good = [Torch(0, 1), Torch(1, 2)]
    cpu = exchange.Exchanged(np.zeros(COUNT, np.float32))
    for given, text in (
        (
            [good[1], good[0]],
            "array of rank 0: expected memory of cuda device 0 (DLPack type 2), got DLPack type 2, device 1",
        ),
        (
            [good[0], cpu],
            "array of rank 1: expected memory of cuda device 1 (DLPack type 2), got DLPack type 1, device 0",
        ),
        (
            [good[0], OnDevice(0, 1)],
            "array of rank 1: expected memory of cuda device 1 (DLPack type 2), got DLPack type 2, device 0",
        ),
        (
            [good[0], cpu.array],
            "array of rank 1: expected memory of a cuda device, by DLPack, got ndarray in host memory",
        ),
    ):
        with pytest.raises(crossccl.InvalidArgument) as refused:
            comm.broadcast(given)
        assert str(refused.value) == f"broadcast: {text}"
    assert not exchange.lent
    comm.broadcast(good)
    assert good[1].values.tolist() == [1] * COUNT


def test_captured_calls(comm, streams):
    """A graph a device, replayed five times with other inputs. A library that synchronised would end the capture."""
    inputs = [Torch(number, 0) for number in (0, 1)]
    outputs = [Torch(0, 0, COUNT // 2), OnDevice(1, 0, COUNT // 2)]
    for number, stream in enumerate(streams):
        with device(number):
            # THREAD_LOCAL
            call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 1)
    comm.reduce_scatter(inputs, outputs, streams=streams, wait=False)
    captured, graphs = [ctypes.c_void_p() for _ in streams], [ctypes.c_void_p() for _ in streams]
    for stream, graph in zip(streams, captured):
        call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    for number, (graph, executable) in enumerate(zip(captured, graphs)):
        with device(number):
            call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    # It has not run, so there is nothing to wait for.
    comm.synchronize()
    assert outputs[0].values.tolist() == [0] * (COUNT // 2)
    for round in range(5):
        for number, one in enumerate(inputs):
            one.values[:] = 10 * round + number
        for number, (graph, stream) in enumerate(zip(graphs, streams)):
            with device(number):
                call("cuGraphLaunch", graph, ctypes.c_void_p(stream))
        for number, stream in enumerate(streams):
            finish(number, stream)
        assert all(one.values.tolist() == [20 * round + 1] * (COUNT // 2) for one in outputs)
        assert comm.failure() is None


def test_a_wait_on_a_device_is_interrupted(streams):
    comm = crossccl.Communicator(2, backend="cuda", timeout=None)
    arrays = [Torch(0, 1), Torch(1, 2)]
    interrupted(comm.ranks[0].broadcast, arrays[0], 1)
    comm.ranks[1].broadcast(arrays[1], root=1, wait=False)
    comm.synchronize()
    assert arrays[0].values.tolist() == [2] * COUNT
    comm.close()
