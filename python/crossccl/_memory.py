"""From arrays to addresses: NumPy's by its own protocol, everything else by DLPack."""

import contextlib
import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from math import prod
from typing import Any, NamedTuple

from ._errors import Error, ExportError, InvalidArgument, invalid

# DLDeviceType, by backend. Host memory that a GPU reaches is not its own.
DEVICES = {"cpu": 1, "cuda": 2, "rocm": 10}
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class Stream(NamedTuple):
    """Where a call runs. If the caller named it, the caller has seen to the order of what fills the arrays."""

    handle: int
    named: bool


class Memory(NamedTuple):
    """Contiguous elements, what keeps them there, and the stream in which their library works, if it tells."""

    address: int
    count: int
    dtype: str
    itemsize: int
    shape: tuple
    keep: Any
    current: int | None = None


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", ctypes.PYFUNCTYPE(None, c_void_p)),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


class _ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h, since its version 1.2. Its functions want the lock of the interpreter."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("managed_tensor_allocator", c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.PYFUNCTYPE(c_int, ctypes.py_object, POINTER(c_void_p))),
        ("managed_tensor_to_py_object_no_sync", c_void_p),
        ("dltensor_from_py_object_no_sync", c_void_p),
        ("current_work_stream", ctypes.PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))),
    ]


READ_ONLY, COPIED = 1, 2
# Own prototypes: the functions of `ctypes.pythonapi` are everybody's.
_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


def memory_of(call, rank, argument, array, *, written, stream):
    """The memory of `array`, which must be of the rank's device; `stream` is where it will be used, None for where its
    library works now.
    """

    def wrong(expected, got, kind=InvalidArgument):
        return invalid(call, rank.rank, argument, expected, got, kind)

    if _is_a(array, "numpy.ma", "MaskedArray"):
        raise wrong("an array without a mask, which would be ignored (see numpy.ma.filled)", type(array).__name__)
    # A scalar of NumPy has all but `ctypes`.
    if hasattr(array, "__array_interface__") and hasattr(array, "ctypes"):
        if rank.backend != "cpu":
            raise wrong(f"memory of a {rank.backend} device, by DLPack", f"{type(array).__name__} in host memory")
        return _of_numpy(wrong, array, written)
    try:
        api = _exchange_api(type(array))
        if api is not None:
            return _of_exchange(wrong, rank, array, api, written, stream)
        if hasattr(array, "__dlpack__"):
            return _of_dlpack(wrong, rank, array, written, stream)
    except Error:
        raise
    except Exception as error:
        # One family of errors, with rank and argument, whatever the library has for such cases.
        got = f"{type(error).__name__} from {type(array).__name__}: {error}"
        raise wrong("memory by DLPack", got, ExportError) from error
    raise wrong("a NumPy array, or an object with __dlpack__", type(array).__name__)


def _is_a(array, module, name):
    """Of a library that nobody has to have: an object of it is there only after it was imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(array, kind)


def _of_numpy(wrong, array, written):
    dtype, flags = array.dtype, array.flags
    if dtype.hasobject:
        raise wrong("elements that are numbers", f"dtype {dtype}")
    if not dtype.isnative:
        raise wrong("elements of this machine's byte order", f"dtype {dtype.str}")
    if not flags.c_contiguous:
        raise wrong("a contiguous array (see numpy.ascontiguousarray)", f"strides {array.strides}")
    if written and not flags.writeable:
        raise wrong("an array that can be written", "a read-only one")
    return Memory(array.ctypes.data, array.size, dtype.name, dtype.itemsize, array.shape, array)


def _exchange_api(kind):
    """The functions by which a type's objects tell their memory and stream, without a change of device or a
    synchronisation; None if it has none of a version that is known here.
    """
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _is_valid(capsule, b"dlpack_exchange_api"):
        return None
    at = _pointer(capsule, b"dlpack_exchange_api")
    while at:
        # Of a later major version, the header alone is known.
        major, previous = c_uint32.from_address(at).value, c_void_p.from_address(at + 8).value
        if major == 1:
            return _ExchangeApi.from_address(at)
        at = previous
    return None


def _of_exchange(wrong, rank, array, api, written, stream):
    at = c_void_p()
    if api.managed_tensor_from_py_object_no_sync(array, at) != 0 or not at:
        raise BufferError("no DLPack tensor, and no exception that says why")
    lent = _Versioned.from_address(at.value)
    try:
        if lent.major != 1:
            raise BufferError(f"DLPack of version {lent.major}.{lent.minor}, where 1 was asked for")
        tensor, flags = lent.tensor, lent.flags
        _check_device(wrong, rank, tensor.device_type, tensor.device_id)
        if flags & COPIED:
            raise wrong("memory of its own", f"{type(array).__name__}, of which its library lends a copy", ExportError)
        # The array itself is kept: its memory stays where it is without the loan.
        memory = _of_tensor(wrong, array, tensor, flags, written, array)
    finally:
        if lent.deleter:
            lent.deleter(at)
    if rank.backend == "cpu":
        return memory
    current = c_void_p()
    if api.current_work_stream(DEVICES[rank.backend], rank.device, current) != 0:
        raise BufferError("no current stream, and no exception that says why")
    current = current.value or 0
    if stream is not None and not stream.named and stream.handle != current:
        # The library lets that stream wait for its own.
        with _device_of(array, rank.device):
            array.__dlpack__(stream=_dlpack_stream(rank, stream.handle))
    return memory._replace(current=current)


def _dlpack_stream(rank, handle):
    """1 is CUDA's name of its default stream, which DLPack does not let be 0; ROCm's is 0."""
    return handle or (1 if rank.backend == "cuda" else 0)


def _device_of(array, number):
    """Libraries that order streams of the current device alone, whichever the array's is: the array's is made current.
    PyTorch refuses the others ("Can't export tensors on a different CUDA device index"); CuPy orders the wrong one.
    """
    if _is_a(array, "torch", "Tensor"):
        return sys.modules["torch"].cuda.device(number)
    if _is_a(array, "cupy", "ndarray"):
        return sys.modules["cupy"].cuda.Device(number)
    return contextlib.nullcontext()


def _export(array, arguments):
    """A capsule, its tensor, and its flags: before version 1 of DLPack there are none."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:
        capsule = array.__dlpack__(**arguments)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BufferError(f"DLPack of version {versioned.major}.{versioned.minor}, where 1.0 at most was asked for")
        return capsule, versioned.tensor, versioned.flags
    return capsule, _DLTensor.from_address(_pointer(capsule, b"dltensor")), 0


def _of_dlpack(wrong, rank, array, written, stream):
    _check_device(wrong, rank, *array.__dlpack_device__())
    if written and _is_a(array, "jax", "Array"):
        raise wrong("memory that can be written", "an array of JAX, which is immutable")
    there = {}
    if callable(getattr(array, "block_until_ready", None)):
        # JAX has no stream that callers could order. It takes -1 for a stream's handle, and any for one of whichever
        # device is current: so it is waited for.
        array.block_until_ready()
    elif rank.backend != "cpu":
        # The caller's order, or: what was enqueued to fill it comes before what is enqueued here.
        handle = 0 if stream is None else stream.handle
        there["stream"] = -1 if stream is not None and stream.named else _dlpack_stream(rank, handle)
    with contextlib.nullcontext() if rank.backend == "cpu" else _device_of(array, rank.device):
        capsule, tensor, flags = _export(array, there)
    if written and flags & COPIED:
        raise wrong("memory that can be written", "a copy, by DLPack")
    # Nobody takes the capsule over: it gives the tensor back when it goes.
    return _of_tensor(wrong, array, tensor, flags, written, (array, capsule))


def _check_device(wrong, rank, device, number):
    if device != DEVICES[rank.backend] or (rank.backend != "cpu" and number != rank.device):
        expected = f"memory of {rank.backend} device {rank.device} (DLPack type {DEVICES[rank.backend]})"
        raise wrong(expected, f"DLPack type {device:d}, device {number}")


def _of_tensor(wrong, array, tensor, flags, written, keep):
    _check_values(wrong, array)
    if written and flags & READ_ONLY:
        raise wrong("memory that can be written", "read-only memory, by DLPack")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        expected, strides = 1, [tensor.strides[axis] for axis in range(tensor.ndim)]
        for extent, stride in zip(reversed(shape), reversed(strides)):
            # The stride of an axis of one element leads nowhere.
            if stride != expected and extent != 1 and 0 not in shape:
                raise wrong("a contiguous tensor", f"strides {tuple(strides)} of shape {shape}")
            expected *= extent
    # Others can be broadcast, as bytes.
    kind = KINDS.get(tensor.code, f"dlpack{tensor.code}_")
    if tensor.lanes != 1 or tensor.bits % 8 != 0:
        raise wrong("a dtype of whole bytes", f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes")
    if not tensor.data and prod(shape) > 0:
        got = f"{type(array).__name__}, whose address is 0"
        raise wrong("a tensor that has memory itself (of a DTensor, see to_local)", got, ExportError)
    address = (tensor.data or 0) + tensor.byte_offset
    return Memory(address, prod(shape), f"{kind}{tensor.bits}", tensor.bits // 8, shape, keep)


def _check_values(wrong, array):
    """What PyTorch's exchange API does not tell: the memory of a lazy view has other values than the view, and a
    gradient does not see what is written.
    """
    for lazily, word in (("neg", "negated"), ("conj", "conjugated")):
        asked = getattr(array, f"is_{lazily}", None)
        if callable(asked) and asked() is True:
            expected = f"a tensor whose memory has its values (see resolve_{lazily})"
            raise wrong(expected, f"a lazily {word} view", ExportError)
    if getattr(array, "requires_grad", False) is True:
        raise wrong("a tensor that requires no gradient (see detach)", "one that does", ExportError)
