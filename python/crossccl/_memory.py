"""From arrays to addresses: NumPy's by its own protocol, everything else by DLPack."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from math import prod
from typing import Any, NamedTuple

from ._errors import invalid

# DLDeviceType, by backend. Host memory that a GPU reaches is not its own.
DEVICES = {"cpu": 1, "cuda": 2, "rocm": 10}
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class Memory(NamedTuple):
    """Contiguous elements, and what keeps them there."""

    address: int
    count: int
    dtype: str
    itemsize: int
    shape: tuple
    keep: Any


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
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


READ_ONLY = 1
# Own prototypes: the functions of `ctypes.pythonapi` are everybody's.
_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


def memory_of(call, rank, argument, array, *, written, stream):
    """The memory of `array`, which must be of the rank's device; `stream` is where it will be used."""

    def wrong(expected, got):
        return invalid(call, rank.rank, argument, expected, got)

    # A scalar of NumPy has all but `ctypes`.
    if hasattr(array, "__array_interface__") and hasattr(array, "ctypes"):
        if rank.backend != "cpu":
            raise wrong(f"memory of a {rank.backend} device, by DLPack", f"{type(array).__name__} in host memory")
        return _of_numpy(wrong, array, written)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(wrong, rank, array, written, stream)
    raise wrong("a NumPy array, or an object with __dlpack__", type(array).__name__)


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


def _export(array, arguments):
    """A capsule, its tensor, and whether that says that it is read-only: before version 1 of DLPack none does."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:
        capsule = array.__dlpack__(**arguments)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BufferError(f"DLPack of version {versioned.major}.{versioned.minor}, where 1.0 at most was asked for")
        return capsule, versioned.tensor, bool(versioned.flags & READ_ONLY)
    return capsule, _DLTensor.from_address(_pointer(capsule, b"dltensor")), False


def _of_dlpack(wrong, rank, array, written, stream):
    device, number = array.__dlpack_device__()
    if device != DEVICES[rank.backend] or (rank.backend != "cpu" and number != rank.device):
        expected = f"memory of {rank.backend} device {rank.device} (DLPack type {DEVICES[rank.backend]})"
        raise wrong(expected, f"DLPack type {device}, device {number}")
    # On a GPU: what was enqueued to fill it comes before what is enqueued here. 1 is CUDA's name of its default stream,
    # which DLPack does not let be 0; ROCm's is 0.
    there = {"stream": stream or (1 if rank.backend == "cuda" else 0)} if rank.backend != "cpu" else {}
    capsule, tensor, read_only = _export(array, there)
    if written and read_only:
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
    address = (tensor.data or 0) + tensor.byte_offset
    # Nobody takes the capsule over: it gives the tensor back when it goes.
    return Memory(address, prod(shape), f"{kind}{tensor.bits}", tensor.bits // 8, shape, (array, capsule))
