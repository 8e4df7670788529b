"""Tensors of PyTorch, arrays of CuPy and JAX, on the GPUs that are here: two of them, or ranks that share one. What is
not installed is skipped by name. `scripts/gpu-tests` runs this; on the stand-in for the driver, test_devices.py."""

import os
import subprocess
import sys
import threading
import time

# JAX would take most of the memory, before anybody else asks.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import pytest

import crossccl
from crossccl import _memory

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)
try:
    crossccl.Communicator(1, backend="cuda").close()
except crossccl.NoDevice as error:
    pytest.skip(f"the library has no backend for it: {error}", allow_module_level=True)

GPUS = torch.cuda.device_count()
DEVICES = [0, 1] if GPUS > 1 else [0, 0]
MANY = [rank % GPUS for rank in range(8)]
two_gpus = pytest.mark.skipif(GPUS < 2, reason="one GPU: ranks that share it take their own streams")


def communicator(devices=DEVICES, timeout=20.0):
    virtual = len(set(devices)) < len(devices)
    return crossccl.Communicator(devices, backend="cuda", virtual_ranks=virtual, timeout=timeout)


@pytest.fixture(autouse=True)
def torch_goes_on():
    """Whatever a test did: the process's contexts are whole, and the current device is what it was."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0
    for device in range(GPUS):
        assert float(torch.ones(10, device=f"cuda:{device}").sum()) == 10


@pytest.fixture
def comm():
    with communicator() as comm:
        yield comm


def finish():
    for device in range(GPUS):
        torch.cuda.synchronize(device)


def on(device, values, dtype=None):
    return torch.as_tensor(values).to(dtype).to(f"cuda:{device}")


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.uint8)


def reduced(inputs, op):
    """In the order of the ranks: 16-bit floats in 32 bits, with one rounding."""
    dtype = inputs[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    functions = {"sum": torch.add, "avg": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}
    total = inputs[0].cpu().to(wide)
    for one in inputs[1:]:
        total = functions[op](total, one.cpu().to(wide))
    if op == "avg":
        total = total / len(inputs) if wide.is_floating_point else total.div(len(inputs), rounding_mode="trunc")
    return total.to(dtype)


def goes_on(comm):
    tensors = [on(rank.device, [float(rank.rank)] * 100) for rank in comm.ranks]
    comm.broadcast(tensors, root=1)
    assert all(one.tolist() == [1.0] * 100 for one in tensors)


REDUCED = ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("devices", [DEVICES, MANY], ids=["two", "eight"])
@pytest.mark.parametrize("name", REDUCED)
def test_reduce_scatter(devices, name):
    dtype = getattr(torch, name)
    torch.manual_seed(1)
    with communicator(devices) as comm:
        for part in (1, 1000, 1 << 16):
            for op in ("sum", "avg", "max", "min", "prod"):
                values = [torch.rand(part * len(devices)) * 3 for _ in devices]
                inputs = [on(device, one, dtype) for device, one in zip(devices, values)]
                outputs = [torch.empty(part, dtype=dtype, device=f"cuda:{device}") for device in devices]
                comm.reduce_scatter(inputs, outputs, op)
                want = reduced(inputs, op)
                assert torch.equal(bits(torch.cat([one.cpu() for one in outputs])), bits(want)), (part, op)


DTYPES = [*REDUCED, "bool", "int16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("devices", [DEVICES, MANY], ids=["two", "eight"])
@pytest.mark.parametrize("name", DTYPES)
def test_broadcast(devices, name):
    dtype = getattr(torch, name)
    with communicator(devices) as comm:
        for root in (0, len(devices) - 1):
            tensors = [on(device, torch.randint(0, 2, (12345,)), torch.uint8).to(dtype) for device in devices]
            want = bits(tensors[root])
            comm.broadcast(tensors, root)
            assert all(torch.equal(bits(one), want) for one in tensors), root


@pytest.mark.parametrize("current", range(min(GPUS, 2)))
@pytest.mark.parametrize("api", [True, False], ids=["exchange-api", "dlpack-alone"])
@pytest.mark.parametrize("named", [True, False])
def test_whichever_device_is_current(monkeypatch, comm, current, api, named):
    """PyTorch before 2.10 has no exchange API, and refuses `__dlpack__` of any device but the current one."""
    if not api:
        monkeypatch.setattr(_memory, "_exchange_api", lambda kind: None)
    elif not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange API")
    streams = [torch.cuda.Stream(device=device) for device in DEVICES]
    tensors = [on(device, [1.0 + rank] * 1000) for rank, device in enumerate(DEVICES)]
    finish()
    torch.cuda.set_device(current)
    comm.broadcast(tensors, root=1, streams=[one.cuda_stream for one in streams] if named else None)
    for rank, one in zip(comm.ranks, tensors):
        rank.broadcast(one, stream=streams[rank.rank].cuda_stream if named else rank.stream, wait=False)
    comm.synchronize()
    assert torch.cuda.current_device() == current
    torch.cuda.set_device(0)
    assert all(one.tolist() == [2.0] * 1000 for one in tensors)


def test_named_streams(comm):
    """Calls and PyTorch's own kernels in turn, in streams of the caller's: no wait of the host between them."""
    streams = [torch.cuda.Stream(device=device) for device in DEVICES]
    inputs = [on(device, [1.0 + rank] * (1 << 16)) for rank, device in enumerate(DEVICES)]
    outputs = [on(device, [0.0] * (1 << 15)) for device in DEVICES]
    finish()
    for _ in range(100):
        for stream, one in zip(streams, inputs):
            with torch.cuda.stream(stream):
                one.add_(1)
        comm.reduce_scatter(inputs, outputs, streams=[one.cuda_stream for one in streams], wait=False)
    comm.synchronize()
    assert all(bool((one == 203).all()) for one in outputs)


@pytest.mark.parametrize("api", [True, False], ids=["exchange-api", "dlpack-alone"])
def test_what_fills_the_arrays_comes_first(monkeypatch, comm, api):
    """Without a stream named: behind PyTorch's current one, also where the ranks take their own."""
    if not api:
        monkeypatch.setattr(_memory, "_exchange_api", lambda kind: None)
    streams = [torch.cuda.Stream(device=device) for device in DEVICES]
    inputs = [on(device, [0.0] * (1 << 20)) for device in DEVICES]
    outputs = [on(device, [0.0] * (1 << 19)) for device in DEVICES]
    finish()
    with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
        for round in range(1, 6):
            for device, stream, one in zip(DEVICES, streams, inputs):
                with torch.cuda.stream(stream if len(set(DEVICES)) > 1 else streams[0]):
                    torch.cuda._sleep(20_000_000)
                    one.fill_(round)
            comm.reduce_scatter(inputs, outputs)
            assert all(bool((one == 2 * round).all()) for one in outputs), round


@two_gpus
def test_what_reads_the_arrays_comes_afterwards(comm):
    """In PyTorch's current streams, with no wait of the host: the next kernel sees the result."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch does not tell its current stream")
    streams = [torch.cuda.Stream(device=device) for device in DEVICES]
    inputs = [on(device, [0.0] * (1 << 22)) for device in DEVICES]
    outputs = [on(device, [0.0] * (1 << 21)) for device in DEVICES]
    finish()
    with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
        for round in range(1, 21):
            for stream, one in zip(streams, inputs):
                with torch.cuda.stream(stream):
                    one.fill_(round)
            comm.reduce_scatter(inputs, outputs, wait=False)
            for stream, one in zip(streams, outputs):
                with torch.cuda.stream(stream):
                    one.mul_(10)
    comm.synchronize()
    finish()
    assert all(bool((one == 400).all()) for one in outputs)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=two_gpus)])
def test_a_capture_over_two_devices(comm, mode, named):
    """Forked and joined by events; replayed five times with other inputs."""
    if not named and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch does not tell its current stream")
    streams = [torch.cuda.Stream(device=device) for device in DEVICES]
    handles = [one.cuda_stream for one in streams] if named else None
    inputs = [on(device, [0.0] * (1 << 16)) for device in DEVICES]
    outputs = [on(device, [0.0] * (1 << 15)) for device in DEVICES]
    copies = [on(device, [0.0] * (1 << 16)) for device in DEVICES]
    finish()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(streams[1]), torch.cuda.device(DEVICES[0]):
        with torch.cuda.graph(graph, stream=streams[0], capture_error_mode=mode):
            fork, join = torch.cuda.Event(), torch.cuda.Event()
            fork.record(streams[0])
            streams[1].wait_event(fork)
            comm.reduce_scatter(inputs, outputs, streams=handles, wait=False)
            for stream, one, copy in zip(streams, inputs, copies):
                with torch.cuda.stream(stream):
                    copy.copy_(one)
            comm.broadcast(copies, root=1, streams=handles, wait=False)
            join.record(streams[1])
            streams[0].wait_event(join)
    # It has not run.
    comm.synchronize()
    finish()
    assert all(bool((one == 0).all()) for one in outputs)
    for round in range(1, 6):
        for rank, one in enumerate(inputs):
            one.fill_(10 * round + rank)
        finish()
        graph.replay()
        finish()
        assert comm.failure() is None
        assert all(bool((one == 20 * round + 1).all()) for one in outputs), round
        assert all(bool((one == 10 * round + 1).all()) for one in copies), round
    del graph
    goes_on(comm)


def test_views(comm):
    whole = [on(device, torch.arange(40.0) * (rank + 1)) for rank, device in enumerate(DEVICES)]
    comm.broadcast([one[3:13] for one in whole], root=1)
    want = torch.arange(40.0)
    want[3:13] *= 2
    assert whole[0].tolist() == want.tolist() and whole[1].tolist() == [2.0 * one for one in range(40)]
    comm.broadcast([torch.empty(0, device=f"cuda:{device}") for device in DEVICES])
    comm.broadcast([torch.nn.Parameter(one).detach() for one in whole])
    # Of one row, whose stride leads nowhere; and of a lazy view, what it stands for.
    comm.broadcast([on(device, torch.zeros(4, 8))[:1] for device in DEVICES])
    comm.broadcast([torch._neg_view(one).resolve_neg() for one in whole])


REFUSED = {
    "transposed": (lambda at: torch.zeros(10, 10, device=at).t(), "expected a contiguous tensor, got strides (1, 10)"),
    "expanded": (lambda at: torch.zeros(1, device=at).expand(100), "expected a contiguous tensor, got strides (0,)"),
    "with a gradient": (lambda at: torch.zeros(100, device=at, requires_grad=True), "see detach"),
    "negated": (lambda at: torch._neg_view(torch.zeros(100, device=at)), "see resolve_neg"),
    "conjugated": (lambda at: torch.zeros(100, dtype=torch.complex64, device=at).conj(), "see resolve_conj"),
    "sparse": (lambda at: torch.eye(10, device=at).to_sparse(), "from Tensor: "),
    "on the CPU": (lambda at: torch.zeros(100), "got DLPack type 1, device 0"),
    "of NumPy": (lambda at: torch.zeros(100).numpy(), "got ndarray in host memory"),
    "in pinned memory": (lambda at: torch.zeros(100).pin_memory(), "got DLPack type "),
    "of another count": (lambda at: torch.zeros(99, device=at), "expected 100 elements of float32, as rank 0, got 99"),
    "of another device": (lambda at: torch.zeros(100, device="cuda:0"), "expected memory of cuda device 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(comm, name):
    make, text = REFUSED[name]
    if name == "of another device" and GPUS < 2:
        pytest.skip("one GPU: there is no other")
    good = on(DEVICES[0], torch.zeros(100))
    for root in (0, 1):
        with pytest.raises(crossccl.InvalidArgument) as refused:
            comm.broadcast([good, make(f"cuda:{DEVICES[1]}")], root=root)
        assert str(refused.value).startswith("broadcast: array of rank 1: ") and text in str(refused.value)
    assert comm.failure() is None
    goes_on(comm)


def test_a_thread_a_rank():
    with communicator(timeout=2.0) as comm:
        outcomes = [None, None]

        def work(rank, count):
            try:
                array = torch.ones(count, device=f"cuda:{rank.device}") * (rank.rank + 1)
                # The stream alone: ranks may share the device, and a kernel of the other one waits for this call.
                torch.cuda.current_stream(rank.device).synchronize()
                rank.broadcast(array, root=1, stream=rank.stream)
                outcomes[rank.rank] = float(array[-1])
            except crossccl.Error as error:
                outcomes[rank.rank] = error

        def run(counts):
            outcomes[:] = [None, None]
            threads = [
                threading.Thread(target=work, args=(rank, count)) for rank, count in zip(comm.ranks, counts) if count
            ]
            [one.start() for one in threads]
            [one.join() for one in threads]
            return outcomes

        assert run((1000, 1000)) == [2.0, 2.0]
        # The root may be through before it sees the other's.
        assert isinstance(run((1000, 2000))[0], crossccl.Error)
        comm.reset()
        assert run((1000, 1000)) == [2.0, 2.0]
        missing = run((1000, 0))[0]
        assert isinstance(missing, crossccl.Timeout) and "for rank 1" in str(missing)
        comm.reset()
        assert run((1000, 1000)) == [2.0, 2.0]


def test_an_interrupted_wait():
    from test_signals import interrupted

    comm = communicator(timeout=None)
    tensors = [on(device, [float(rank)] * 1000) for rank, device in enumerate(DEVICES)]
    finish()
    interrupted(lambda: comm.ranks[0].broadcast(tensors[0], root=1, stream=comm.ranks[0].stream))
    comm.ranks[1].broadcast(tensors[1], root=1, stream=comm.ranks[1].stream, wait=False)
    comm.synchronize()
    assert tensors[0].tolist() == [1.0] * 1000
    goes_on(comm)
    comm.close()


def test_large(comm):
    count = 1 << 30
    for device in set(DEVICES):
        free = torch.cuda.mem_get_info(device)[0]
        if free < 3 * 2 * count * DEVICES.count(device) * 1.1:
            pytest.skip(f"device {device} has {free >> 30} GiB free: too little for 2 GiB a rank")
    inputs = [
        torch.full((count,), rank + 1, dtype=torch.bfloat16, device=f"cuda:{d}") for rank, d in enumerate(DEVICES)
    ]
    outputs = [torch.empty(count // 2, dtype=torch.bfloat16, device=f"cuda:{device}") for device in DEVICES]
    comm.reduce_scatter(inputs, outputs)
    begin = time.perf_counter()
    comm.reduce_scatter(inputs, outputs)
    print(f"reduce-scatter of 2 GiB a rank: {1e3 * (time.perf_counter() - begin):.2f} ms")
    assert all(bool((one == 3).all()) for one in outputs)
    comm.broadcast(inputs, root=1)
    assert bool((inputs[0] == 2).all())
    del inputs, outputs
    torch.cuda.empty_cache()


@pytest.mark.parametrize("virtual", [False, True])
def test_expandable_segments(virtual):
    """Memory that PyTorch maps piece by piece, to which peers may have no access: right, or refused by name; and the
    process's contexts are whole afterwards. In a process of its own, since PyTorch is told at its start.
    """
    if not virtual and GPUS < 2:
        pytest.skip("one GPU")
    setting = {name: "expandable_segments:True" for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    command = [sys.executable, __file__, "expandable", "virtual" if virtual else "two"]
    ended = subprocess.run(command, env={**os.environ, **setting}, capture_output=True, text=True, timeout=240)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.rstrip().endswith("whole")


def expandable(devices):
    with communicator(devices) as comm:
        for count in (1000, 1 << 22):
            inputs = [torch.full((count,), rank + 1.0, device=f"cuda:{device}") for rank, device in enumerate(devices)]
            outputs = [torch.zeros(count // 2, device=f"cuda:{device}") for device in devices]
            finish()
            try:
                comm.reduce_scatter(inputs, outputs)
            except crossccl.InvalidArgument as error:
                assert "of rank " in str(error)
                print(f"refused: {error}")
            else:
                assert all(bool((one == 3).all()) for one in outputs)
                print("right")
            assert comm.failure() is None
    for device in range(GPUS):
        assert float(torch.ones(10, device=f"cuda:{device}").sum()) == 10
    print("whole")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def of_cupy(cupy, device, values, dtype):
    with cupy.cuda.Device(device):
        array = cupy.asarray(values).astype(dtype)
        cupy.cuda.Device(device).synchronize()
        return array


@pytest.mark.parametrize("name", ["int32", "uint64", "float16", "float32", "float64"])
def test_cupy(cupy, comm, name):
    inputs = [
        of_cupy(cupy, device, [one % 7 + rank for one in range(1000)], name) for rank, device in enumerate(DEVICES)
    ]
    outputs = [of_cupy(cupy, device, [0] * 500, name) for device in DEVICES]
    comm.reduce_scatter(inputs, outputs)
    got = [one for output in outputs for one in cupy.asnumpy(output).tolist()]
    assert got == [2 * (one % 7) + 1 for one in range(1000)]
    comm.broadcast(inputs, root=1)
    assert cupy.asnumpy(inputs[0]).tolist() == [one % 7 + 1 for one in range(1000)]


def test_streams_of_cupy(cupy, comm):
    """Filled in CuPy's current streams, in none that is named; and in named ones."""
    streams = []
    for device in DEVICES:
        with cupy.cuda.Device(device):
            streams.append(cupy.cuda.Stream(non_blocking=True))
    inputs = [of_cupy(cupy, device, [0] * (1 << 20), "float32") for device in DEVICES]
    outputs = [of_cupy(cupy, device, [0] * (1 << 19), "float32") for device in DEVICES]
    for round in range(1, 11):
        for device, one in zip(DEVICES, inputs):
            with cupy.cuda.Device(device):
                one.fill(round)
        comm.reduce_scatter(inputs, outputs)
        assert all((cupy.asnumpy(one) == 2 * round).all() for one in outputs), round
    for round in range(1, 11):
        for device, stream, one in zip(DEVICES, streams, inputs):
            with cupy.cuda.Device(device), stream:
                one.fill(round)
        comm.reduce_scatter(inputs, outputs, streams=[one.ptr for one in streams], wait=False)
    comm.synchronize()
    assert all((cupy.asnumpy(one) == 20).all() for one in outputs)


def test_cupy_and_torch(cupy, comm):
    inputs = [of_cupy(cupy, DEVICES[0], [1.0] * 1000, "float32"), on(DEVICES[1], [2.0] * 1000)]
    outputs = [on(DEVICES[0], [0.0] * 500), of_cupy(cupy, DEVICES[1], [0.0] * 500, "float32")]
    comm.reduce_scatter(inputs, outputs)
    assert outputs[0].tolist() == cupy.asnumpy(outputs[1]).tolist() == [3.0] * 500
    with pytest.raises(crossccl.InvalidArgument, match="array of rank 1: expected a contiguous tensor"):
        comm.broadcast([inputs[0], of_cupy(cupy, DEVICES[1], [[0.0] * 10] * 100, "float32").T])
    goes_on(comm)


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax")
    try:
        gpus = jax.devices("gpu")
    except RuntimeError as error:
        pytest.skip(f"JAX sees no GPU: {error}")
    if len(gpus) < len(set(DEVICES)):
        pytest.skip(f"JAX sees {len(gpus)} GPUs")
    return jax


@pytest.mark.parametrize("name", ["int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("named", [True, False])
def test_jax(jax, comm, name, named):
    """Its arrays are inputs alone: they are immutable."""
    at = jax.devices("gpu")
    square = jax.jit(lambda one: one * one)
    streams = [torch.cuda.Stream(device=device).cuda_stream for device in DEVICES] if named else None
    dtype = getattr(torch, name)
    for round in range(5):
        values = [jax.numpy.full(1 << 16, round + rank + 1, name) for rank in range(2)]
        inputs = [square(jax.device_put(one, at[device])) for one, device in zip(values, DEVICES)]
        outputs = [torch.zeros(1 << 15, dtype=dtype, device=f"cuda:{device}") for device in DEVICES]
        finish()
        comm.reduce_scatter(inputs, outputs, streams=streams)
        want = (round + 1) ** 2 + (round + 2) ** 2
        assert all(bool((one == want).all()) for one in outputs), round
    with pytest.raises(crossccl.InvalidArgument, match="array of rank 1: .*got an array of JAX, which is immutable"):
        comm.broadcast(inputs)
    copy = torch.zeros(1 << 16, dtype=dtype, device=f"cuda:{DEVICES[1]}")
    finish()
    comm.broadcast([inputs[0], copy], streams=streams)
    assert bool((copy == 25).all())


if __name__ == "__main__":
    assert sys.argv[1] == "expandable"
    expandable([0, 0] if sys.argv[2] == "virtual" else [0, 1])
