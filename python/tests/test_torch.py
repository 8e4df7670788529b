"""PyTorch's own tensors, on the CPU: what its exchange API answers, and what it does not say. Skipped where it is not
installed."""

import warnings

import numpy as np
import pytest

import crossccl
from crossccl import _memory

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this PyTorch has no DLPack exchange API"
)


@pytest.fixture
def comm():
    with crossccl.Communicator(2, backend="cpu", timeout=20.0) as comm:
        yield comm


def test_the_table_is_as_the_header_says():
    api = _memory._exchange_api(torch.Tensor)
    assert (api.major, api.minor) >= (1, 2)
    tensor = torch.arange(24.0).reshape(4, 6)[1:]

    class Rank:
        backend, device = "cpu", 0

    memory = _memory._of_exchange(lambda *_: AssertionError(), Rank, tensor, api, True, None)
    assert memory[:5] == (tensor.data_ptr(), 18, "float32", 4, (3, 6)) and memory.keep is tensor


DTYPES = ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn"]


@pytest.mark.parametrize("name", DTYPES)
def test_broadcast(comm, name):
    dtype = getattr(torch, name)
    tensors = [(torch.arange(101) % 2 + rank).to(dtype) for rank in (0, 0)]
    tensors[1].zero_()
    want = tensors[0].clone()
    comm.broadcast(tensors)
    assert all(torch.equal(one.view(torch.uint8), want.view(torch.uint8)) for one in tensors)


@pytest.mark.parametrize("name", ["int32", "float16", "bfloat16", "float32", "float64"])
def test_reduce_scatter(comm, name):
    dtype = getattr(torch, name)
    inputs = [torch.arange(64).to(dtype) + rank for rank in range(2)]
    outputs = [torch.empty(32, dtype=dtype) for _ in range(2)]
    comm.reduce_scatter(inputs, outputs)
    assert torch.equal(torch.cat(outputs), inputs[0] + inputs[1])
    # In place, and with NumPy's on the other side.
    comm.reduce_scatter(inputs, [inputs[0][:32], inputs[1][32:]])
    assert torch.equal(torch.cat([inputs[0][:32], inputs[1][32:]]), torch.cat(outputs))
    if name == "float32":
        mixed = [np.zeros(32, np.float32), torch.empty(32)]
        comm.reduce_scatter([np.ones(64, np.float32), torch.ones(64)], mixed)
        assert (mixed[0] == 2).all() and (mixed[1] == 2).all()


def test_views(comm):
    whole = torch.zeros(20)
    comm.broadcast([torch.arange(10.0), whole[3:13]])
    assert whole.tolist() == [0] * 3 + list(range(10)) + [0] * 7
    comm.broadcast([torch.empty(0), torch.empty(0, 3)])
    comm.broadcast([torch.tensor(5.0), whole[0]])
    assert whole[0] == 5
    # Copied when it is first written: its own memory by then.
    lazy = torch._lazy_clone(whole)
    comm.broadcast([torch.ones(20), lazy])
    assert lazy.tolist() == [1] * 20 and whole[0] == 5
    # Parameters are written without their gradients seeing it, where the caller says so.
    parameter = torch.nn.Parameter(torch.zeros(4))
    comm.broadcast([torch.ones(4), parameter.detach()])
    assert parameter.tolist() == [1] * 4


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.zeros(4))


def distributed():
    from torch.distributed import FileStore, destroy_process_group, init_process_group
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        init_process_group("gloo", store=FileStore(file.name, 1), rank=0, world_size=1)
        try:
            return distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (1,)), [Shard(0)])
        finally:
            destroy_process_group()


REFUSED = {
    "transposed": (lambda: torch.zeros(2, 2).t(), "expected a contiguous tensor, got strides (1, 2) of shape (2, 2)"),
    "expanded": (lambda: torch.zeros(1).expand(4), "expected a contiguous tensor, got strides (0,) of shape (4,)"),
    "negated": (lambda: torch._neg_view(torch.zeros(4)), "resolve_neg"),
    "conjugated": (lambda: torch.zeros(4, dtype=torch.complex64).conj(), "resolve_conj"),
    "half of a conjugated": (lambda: torch.zeros(1, dtype=torch.complex64).conj().imag, "resolve_neg"),
    "with a gradient": (lambda: torch.zeros(4, requires_grad=True), "a tensor that requires no gradient (see detach)"),
    "parameter": (lambda: torch.nn.Parameter(torch.zeros(4)), "a tensor that requires no gradient (see detach)"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "from Tensor: "),
    "on no device": (lambda: torch.empty(4, device="meta"), "from Tensor: Cannot pack tensors on meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.qint8), "from Tensor: "),
    "fake": (fake, "got FakeTensor, whose address is 0"),
    "masked": (lambda: torch.masked.masked_tensor(torch.zeros(4), torch.ones(4).bool()), "MaskedTensor"),
    "distributed": (distributed, "got DTensor, whose address is 0"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged), "NestedTensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(comm, name):
    """Read or written, by name; and the communicator goes on."""
    make, text = REFUSED[name]
    if name == "distributed" and not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no distributed tensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = make()
    good = torch.zeros(4)
    for rank, tensors in enumerate(([given, good], [good, given])):
        for root in (0, 1):
            with pytest.raises(crossccl.InvalidArgument) as refused:
                comm.broadcast(tensors, root=root)
            said = str(refused.value)
            assert said.startswith(f"broadcast: array of rank {rank}: ") and text in said, said
            assert name in ("expanded", "transposed") or isinstance(refused.value, crossccl.ExportError)
            if " from " in said:
                assert isinstance(refused.value.__cause__, (BufferError, RuntimeError))
    comm.broadcast([good, torch.ones(4)], root=1)
    assert good.tolist() == [1] * 4


def test_jax():
    """Inputs alone: its arrays are immutable."""
    jax = pytest.importorskip("jax")
    with crossccl.Communicator(2, backend="cpu", timeout=20.0) as comm:
        # Where there is a GPU, that is JAX's default.
        cpu = jax.devices("cpu")[0]
        inputs = [jax.device_put(np.arange(8, dtype="float32") + rank, cpu) for rank in range(2)]
        outputs = [np.zeros(4, np.float32), torch.zeros(4)]
        comm.reduce_scatter(inputs, outputs)
        assert np.concatenate(outputs).tolist() == [2 * one + 1 for one in range(8)]
        with pytest.raises(
            crossccl.InvalidArgument, match="array of rank 1: .*got an array of JAX, which is immutable"
        ):
            comm.broadcast(inputs)
        comm.broadcast([inputs[0], np.zeros(8, np.float32)])
