"""Against NumPy, bit for bit: sums go in the order of the ranks."""

import weakref

import ml_dtypes
import numpy as np
import pytest

import crossccl
import exchange
from crossccl import _memory

REDUCED = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
RANKS = [1, 2, 3, 5]


def communicator(ranks, **options):
    return crossccl.Communicator(ranks, backend="cpu", **{"timeout": 20.0, **options})


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def random(rng, dtype, shape):
    """Of every size, so that an order other than the ranks' would show."""
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)).astype(dtype)


def expected(inputs, op):
    """As README's numbers say: 16-bit floats accumulate in 32 bits and round once; averages of integers truncate."""
    dtype = inputs[0].dtype
    wide = dtype if dtype.kind in "iu" or dtype.itemsize >= 4 else np.dtype(np.float32)
    if op == "avg" and dtype.kind in "iu":
        wide = np.dtype(np.int64) if dtype.itemsize <= 4 else dtype
    total = inputs[0].astype(wide)
    for one in inputs[1:]:
        one = one.astype(wide)
        function = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
        total = function(total, one)
    if op == "avg":
        count = wide.type(len(inputs))
        # Nothing here is negative, so that dividing down is truncating.
        total = total // count if wide.kind in "iu" else total / count
    return total.astype(dtype)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("ranks", RANKS)
@np.errstate(over="ignore")
def test_reduce_scatter(ranks, name, op):
    rng = np.random.default_rng(ranks)
    with communicator(ranks) as comm:
        for part in (1, 7, 1000):
            inputs = [random(rng, dtype_of(name), (ranks * part, 3)) for _ in range(ranks)]
            before = [one.copy() for one in inputs]
            outputs = comm.reduce_scatter(inputs, op=op)
            assert [one.shape for one in outputs] == [(part, 3)] * ranks
            assert np.concatenate(outputs).tobytes() == expected(before, op).tobytes()
            assert all(one.tobytes() == old.tobytes() for one, old in zip(inputs, before))


@pytest.mark.parametrize("name", [*REDUCED, "bool", "int16", "complex128", "S5", "datetime64[ns]"])
@pytest.mark.parametrize("ranks", RANKS)
def test_broadcast(ranks, name):
    rng = np.random.default_rng(ranks)
    with communicator(ranks) as comm:
        for root in range(ranks):
            arrays = [np.frombuffer(rng.bytes(dtype_of(name).itemsize * 501), dtype_of(name)).copy() for _ in range(ranks)]
            if name == "bool":
                arrays = [rng.integers(0, 2, 501).astype(bool) for _ in range(ranks)]
            sent = arrays[root].tobytes()
            # The root's is only read.
            arrays[root].flags.writeable = False
            comm.broadcast(arrays, root)
            assert all(one.tobytes() == sent for one in arrays)


def test_given_outputs_and_in_place():
    with communicator(3) as comm:
        inputs = [np.arange(12, dtype=np.int32) + rank for rank in range(3)]
        outputs = [np.full(6, -1, np.int32) for _ in range(3)]
        results = comm.reduce_scatter(inputs, [one[1:5] for one in outputs])
        total = sum(inputs)
        assert [one.tolist() for one in outputs] == [[-1, *total[4 * r : 4 * r + 4], -1] for r in range(3)]
        assert all(result.base is output for result, output in zip(results, outputs))
        comm.reduce_scatter(inputs, [one[4 * rank : 4 * rank + 4] for rank, one in enumerate(inputs)])
        assert np.concatenate([one[4 * r : 4 * r + 4] for r, one in enumerate(inputs)]).tolist() == total.tolist()
        # Counts that the first axis does not divide by come flat.
        assert [one.shape for one in comm.reduce_scatter([np.ones((2, 3))] * 3)] == [(2,)] * 3
        assert [one.shape for one in comm.reduce_scatter([np.ones((0, 3))] * 3)] == [(0,)] * 3


class Tensor:
    """What has DLPack and nothing else, as a tensor of another framework."""

    def __init__(self, array, device=None):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Shifted(Tensor):
    """Some frameworks lend a whole allocation, and say where in it the tensor begins."""

    def __dlpack__(self, **options):
        capsule, tensor, _ = _memory._export(self.array, options)
        tensor.data -= 16
        tensor.byte_offset = 16
        return capsule


class Old(Tensor):
    """Frameworks that do not know the form with a version."""

    def __dlpack__(self):
        return self.array.__dlpack__()


class Float8(Tensor):
    """A type that has no number here."""

    def __dlpack__(self, **options):
        capsule, tensor, _ = _memory._export(self.array, options)
        tensor.code = 10
        return capsule


def test_dlpack_before_and_since_version_1():
    with communicator(2) as comm:
        for kind in (Old, Tensor):
            arrays = [np.arange(10.0), np.zeros(10)]
            comm.broadcast([kind(one) for one in arrays])
            assert arrays[1].tolist() == list(range(10))
        names = [str(kind(np.ones(1)).__dlpack__(**({"max_version": (1, 0)} if kind is Tensor else {}))) for kind in (Old, Tensor)]
        assert '"dltensor"' in names[0] and '"dltensor_versioned"' in names[1]
        # What nobody may write is read all the same.
        arrays[0].flags.writeable = False
        comm.broadcast([Tensor(one) for one in arrays], root=0)
        with pytest.raises(crossccl.InvalidArgument) as refused:
            comm.broadcast([Tensor(one) for one in arrays], root=1)
        expected = "broadcast: array of rank 0: expected memory that can be written, got read-only memory, by DLPack"
        assert str(refused.value) == expected
        bits = [np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)]
        comm.broadcast([Float8(one) for one in bits])
        assert bits[1].tolist() == list(range(8))
        with pytest.raises(crossccl.InvalidArgument, match="input of rank 0: expected a dtype of .*, got dlpack10_8"):
            comm.reduce_scatter([Float8(one) for one in bits], [Float8(one) for one in bits])


def test_dlpack():
    with communicator(2) as comm:
        arrays = [np.arange(10.0), np.zeros(12)[2:]]
        comm.broadcast([Tensor(one) for one in arrays])
        assert arrays[1].tolist() == list(range(10))
        outputs = [np.zeros(5), np.zeros(5)]
        comm.reduce_scatter([Tensor(one) for one in arrays], [Tensor(one) for one in outputs], "max")
        assert np.concatenate(outputs).tolist() == list(range(10))
        comm.broadcast([Tensor(np.ones(10)), Shifted(arrays[1])])
        assert arrays[1].tolist() == [1] * 10
        # One with a stride where there is one element only is contiguous all the same.
        comm.broadcast([Tensor(np.zeros((4, 8))[:1]), Tensor(np.zeros((1, 8)))])


def test_the_exchange_api():
    """Without `__dlpack__`, whose streams and devices are then nobody's."""
    with communicator(2) as comm:
        arrays = [exchange.Exchanged(one) for one in (np.arange(12.0), np.zeros(12))]
        comm.broadcast(arrays)
        assert arrays[1].array.tolist() == list(range(12))
        outputs = [exchange.zeros(6), np.zeros(6)]
        comm.reduce_scatter(arrays, outputs)
        assert (*outputs[0].array, *outputs[1]) == tuple(range(0, 24, 2))
        assert [one.asked for one in (*arrays, outputs[0])] == [[]] * 3
        # What was lent was given back.
        assert not exchange.lent
        # A table that is newer than this package leads to one that it knows; else there is `__dlpack__`.
        newer = exchange.Api(2, exchange.ctypes.addressof(exchange.API))
        unknown = exchange.Api(2)
        for api, asked in ((newer, 0), (unknown, 1)):
            array = exchange.with_api(exchange.Array, api)(np.ones(12))
            comm.broadcast([array, np.zeros(12)])
            assert len(array.asked) == asked


class Lazy(exchange.Exchanged):
    def is_conj(self):
        return True


class Negated(Tensor):
    def is_neg(self):
        return True


class WithGradient(exchange.Exchanged):
    requires_grad = True


class Unwilling(Tensor):
    def __dlpack__(self, **options):
        raise RuntimeError("not now")


OTHER_VALUES = "expected a tensor whose memory has its values"
FOREIGN = "expected memory by DLPack, got"


class Nowhere(Tensor):
    def __dlpack_device__(self):
        raise ValueError("spread over two devices")


@pytest.mark.parametrize(
    "given, text",
    [
        (Lazy(np.zeros(3)), f"{OTHER_VALUES} (see resolve_conj), got a lazily conjugated view"),
        (Negated(np.zeros(3)), f"{OTHER_VALUES} (see resolve_neg), got a lazily negated view"),
        (WithGradient(np.zeros(3)), "expected a tensor that requires no gradient (see detach), got one that does"),
        (
            exchange.Exchanged(np.zeros(3), address=0),
            "expected a tensor that has memory itself (of a DTensor, see to_local), got Exchanged, whose address is 0",
        ),
        (
            exchange.Exchanged(np.zeros(3), flags=2),
            "expected memory of its own, got Exchanged, of which its library lends a copy",
        ),
        (
            exchange.Exchanged(np.zeros(3), address=-1),
            f"{FOREIGN} BufferError from Exchanged: no DLPack tensor, and no exception that says why",
        ),
        (Unwilling(np.zeros(3)), f"{FOREIGN} RuntimeError from Unwilling: not now"),
        (Nowhere(np.zeros(3)), f"{FOREIGN} ValueError from Nowhere: spread over two devices"),
    ],
)
def test_what_a_library_does_not_hand_over(given, text):
    """One family of errors, with the library's own exception behind it."""
    with communicator(2) as comm:
        with pytest.raises(crossccl.ExportError) as refused:
            comm.broadcast([np.ones(3), given])
        assert str(refused.value) == f"broadcast: array of rank 1: {text}"
        assert isinstance(refused.value, BufferError) and isinstance(refused.value, crossccl.InvalidArgument)
        assert (refused.value.__cause__ is not None) == (" from " in text)
        assert not exchange.lent
        assert [one.tolist() for one in comm.reduce_scatter([np.ones(2)] * 2)] == [[2], [2]]


def test_read_only_memory_of_the_exchange_api():
    with communicator(2) as comm:
        arrays = [exchange.Exchanged(np.ones(3), flags=1), exchange.zeros(3)]
        comm.broadcast(arrays)
        assert arrays[1].array.tolist() == [1, 1, 1]
        with pytest.raises(crossccl.InvalidArgument, match="array of rank 0: expected memory that can be written"):
            comm.broadcast(arrays, root=1)


def test_masked_arrays():
    """The mask would be ignored: of an input, and of an output."""
    masked = np.ma.masked_array(np.ones(4), [0, 1, 0, 0])
    text = "of rank 0: expected an array without a mask, which would be ignored (see numpy.ma.filled), got MaskedArray"
    with communicator(2) as comm:
        for name, call in (
            ("broadcast: array", lambda: comm.broadcast([masked, np.ones(4)])),
            ("broadcast: array", lambda: comm.broadcast([masked, np.ones(4)], root=1)),
            ("broadcast: array", lambda: comm.ranks[0].broadcast(masked)),
            ("reduce_scatter: input", lambda: comm.reduce_scatter([masked, np.ones(4)])),
            ("reduce_scatter: output", lambda: comm.reduce_scatter([np.ones(8)] * 2, [masked, np.ones(4)])),
        ):
            with pytest.raises(crossccl.InvalidArgument) as refused:
                call()
            assert str(refused.value) == f"{name} {text}"
        assert masked.data.tolist() == [1] * 4
        # What a mask was filled in is an array like any other.
        comm.broadcast([masked.filled(0), np.ones(4)])


def test_numbers_of_numpy():
    """Whole numbers of any kind are numbers; truth values are none."""
    with communicator(np.int64(2), timeout=np.float32(20)) as comm:
        arrays = [np.zeros(4), np.ones(4)]
        comm.broadcast(arrays, np.uint8(1), streams=[np.uint64(rank.stream) for rank in comm.ranks])
        assert arrays[0].tolist() == [1] * 4
        for wrong in (True, np.True_, 1.0, np.float64(1), "1", None):
            text = f"broadcast: root: expected a whole number of 32 bits, got {wrong!r}"
            for call in (comm.broadcast, lambda arrays, root: comm.ranks[0].broadcast(arrays[0], root)):
                with pytest.raises(crossccl.InvalidArgument) as refused:
                    call(arrays, wrong)
                assert str(refused.value) == text
        with pytest.raises(crossccl.InvalidArgument, match="stream: expected the handle of a stream, .*, got True"):
            comm.broadcast(arrays, streams=[None, True])
    assert [rank.device for rank in communicator(np.array([0, 1])).ranks] == [0, 1]
    assert [rank.device for rank in communicator([np.int32(1), 0]).ranks] == [1, 0]
    for wrong in (True, np.True_, "cpu", 1.5, -1):
        with pytest.raises(crossccl.InvalidArgument) as refused:
            communicator(wrong)
        text = f"Communicator: devices: expected a number of ranks, or the device of each, got {wrong!r}"
        assert str(refused.value) == text


@pytest.mark.parametrize("name, other", [("prod", "product"), ("avg", "average")])
def test_both_names_of_an_operation(name, other):
    with communicator(2) as comm:
        inputs = [np.arange(4.0) + 1, np.arange(4.0) * 3]
        results = [np.concatenate(comm.reduce_scatter(inputs, op=op)).tolist() for op in (name, other)]
        assert results[0] == results[1]
        outputs = [np.zeros(2), np.zeros(2)]
        for rank, one, output in zip(comm.ranks, inputs, outputs):
            rank.reduce_scatter(one, output, other, wait=False)
        comm.synchronize()
        assert np.concatenate(outputs).tolist() == results[0]


@pytest.mark.parametrize(
    "given, text",
    [
        (Tensor(np.zeros(3), (2, 1)), "expected memory of cpu device 1 (DLPack type 1), got DLPack type 2, device 1"),
        (Tensor(np.zeros((3, 4)).T), "expected a contiguous tensor, got strides (1, 4) of shape (4, 3)"),
        (np.zeros((3, 4)).T, "expected a contiguous array (see numpy.ascontiguousarray), got strides (8, 32)"),
        (np.zeros(3, ">f8"), "expected elements of this machine's byte order, got dtype >f8"),
        (np.zeros(3, object), "expected elements that are numbers, got dtype object"),
        ([1.0, 2.0], "expected a NumPy array, or an object with __dlpack__, got list"),
        (np.float64(1), "expected a NumPy array, or an object with __dlpack__, got float64"),
        (np.zeros(4), "expected 3 elements of float64, as rank 0, got 4 of float64"),
        (np.zeros(3, np.float32), "expected 3 elements of float64, as rank 0, got 3 of float32"),
        (np.broadcast_to(np.float64(0), (1,)), "expected an array that can be written, got a read-only one"),
    ],
)
def test_arrays_that_are_refused(given, text):
    with communicator(2) as comm:
        with pytest.raises(crossccl.InvalidArgument) as refused:
            comm.broadcast([np.ones(3), given])
        assert str(refused.value) == f"broadcast: array of rank 1: {text}"
        assert isinstance(refused.value, ValueError) and refused.value.code == 4
        # Nothing was launched, and no group is left open.
        arrays = [np.zeros(3), np.ones(3)]
        comm.broadcast(arrays, root=1)
        assert arrays[0].tolist() == [1, 1, 1]


def test_calls_that_are_refused():
    def refused(text, call, *arguments, **options):
        with pytest.raises(crossccl.InvalidArgument) as error:
            call(*arguments, **options)
        assert str(error.value) == text

    ones = [np.ones(4), np.ones(4)]
    with communicator(2) as comm:
        refused("broadcast: arrays: expected one for each of the 2 ranks, got 1", comm.broadcast, ones[:1])
        refused("crosscclBroadcast: root of rank 0: expected a rank from 0 to 1, got 2", comm.broadcast, ones, 2)
        text = "reduce_scatter: op: expected one of sum, prod, max, min, avg, product, average, got 'mean'"
        refused(text, comm.reduce_scatter, ones, op="mean")
        text = "reduce_scatter: input of rank 1: expected a multiple of the 2 ranks as its count, got 3"
        refused(text, comm.reduce_scatter, [np.ones(4), np.ones(3)])
        text = "reduce_scatter: input of rank 1: expected 4 elements of float64, as rank 0, got 6 of float64"
        refused(text, comm.reduce_scatter, [np.ones(4), np.ones(6)])
        # ctypes would take these for rank 0, device 0 and a millisecond.
        text = "broadcast: root: expected a whole number of 32 bits, got 4294967296"
        refused(text, comm.broadcast, ones, 2**32)
        refused(text, comm.ranks[0].broadcast, ones[0], 2**32)
        text = "Communicator: devices: expected a whole number of 32 bits, got 4294967296"
        refused(text, crossccl.Communicator, [2**32], backend="cpu")
        for wrong in (-1, 0, float("inf"), float("nan"), "1"):
            text = f"Communicator: timeout: expected seconds, more than 0, got {wrong!r}"
            refused(text, crossccl.Communicator, 2, backend="cpu", timeout=wrong)
        text = "reduce_scatter: output of rank 0: expected 2 elements of float64, got 3 of float64"
        refused(text, comm.reduce_scatter, ones, [np.ones(3), np.ones(3)])
        text = f"reduce_scatter: input of rank 0: expected a dtype of {', '.join(REDUCED)}, got int16"
        refused(text, comm.reduce_scatter, [np.ones(4, np.int16)] * 2)
        refused("reduce_scatter: outputs: expected one for each of the 2 ranks, got 0", comm.reduce_scatter, ones, [])
        text = "crosscclBroadcast: stream of rank 1: expected NULL, or what crosscclCommStream wrote for the rank, got 0x40"
        refused(text, comm.broadcast, ones, streams=[None, 64])
        # All of it, and nothing was launched.
        assert comm.failure() is None
        assert [one.tolist() for one in comm.reduce_scatter(ones)] == [[2, 2], [2, 2]]
    refused("Communicator: backend: expected one of auto, cpu, cuda, rocm, got 'gpu'", crossccl.Communicator, 2, backend="gpu")
    refused("crosscclCommInitAllConfig: ndev: expected 1 to 64, got 0", crossccl.Communicator, 0, backend="cpu")
    with pytest.raises(crossccl.NoDevice, match="--features rocm"):
        crossccl.Communicator(2, backend="rocm")


def test_arrays_of_different_ranks_do_not_overlap():
    """Each was checked alone: one array as every rank's output gave one wrong result four times, without an error."""

    def refused(text, call, *arguments, **options):
        with pytest.raises(crossccl.InvalidArgument, match=text):
            call(*arguments, **options)

    with communicator(2) as comm:
        inputs = [np.arange(4, dtype=np.float32) + rank for rank in range(2)]
        same = [np.empty(2, np.float32)] * 2
        refused("recvbuff of rank 1: expected no overlap with the output of rank 0", comm.reduce_scatter, inputs, same)
        # Rank 0 writes what rank 1 reads.
        outputs = [inputs[1][2:], np.empty(2, np.float32)]
        refused("recvbuff of rank 0: expected no overlap with the input of rank 1", comm.reduce_scatter, inputs, outputs)
        refused("recvbuff of rank 1: expected no overlap", comm.broadcast, same)
        array = np.arange(60, dtype=np.int32)
        refused("recvbuff of rank 1: expected no overlap", comm.broadcast, [array[:40], array[20:]])
        assert comm.failure() is None
        assert array.tolist() == list(range(60))
        # Parts of one array are fine.
        comm.broadcast([array[:30], array[30:]])
        assert array[30:].tolist() == list(range(30))
        # In place as well: each rank's part of its own input.
        comm.reduce_scatter(inputs, [inputs[0][:2], inputs[1][2:]])
        assert (inputs[0][:2].tolist(), inputs[1][2:].tolist()) == ([1, 3], [5, 7])


def test_arrays_that_nobody_synchronizes_are_let_go():
    with communicator(2) as comm:
        first = [np.zeros(3), np.ones(3)]
        gone = weakref.ref(first[0])
        comm.broadcast(first, root=1, wait=False)
        del first
        for _ in range(5000):
            comm.broadcast([np.zeros(3), np.ones(3)], root=1, wait=False)
            assert len(comm.ranks[0]._kept) <= 4096
        assert gone() is None
