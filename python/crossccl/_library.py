"""The C interface, as `include/crossccl.h` has it: tests compare the names and numbers here with those there."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path

DATATYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# What callers may say; the names above are the header's.
OP_NAMES = {**OPS, "product": OPS["prod"], "average": OPS["avg"]}
BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2, "rocm": 3}
CONFIG_MAGIC = 0x0CC1C0DE
VERSION_CODE = 100


class Config(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("backend", c_int),
        ("agreement", c_int),
        ("timeout_ms", c_int64),
        ("max_blocks", c_int),
        ("virtual_ranks", c_int),
        ("payload_bytes", c_int64),
    ]


# The argument types of each function. All answer a result, but for those that answer a text.
TEXTS = {"crosscclGetErrorString": [c_int], "crosscclGetLastError": [c_void_p]}
FUNCTIONS = {
    "crosscclGetVersion": [POINTER(c_int)],
    "crosscclCommInitAll": [POINTER(c_void_p), c_int, POINTER(c_int)],
    "crosscclCommInitAllConfig": [POINTER(c_void_p), c_int, POINTER(c_int), POINTER(Config)],
    "crosscclCommDestroy": [c_void_p],
    "crosscclCommAbort": [c_void_p],
    "crosscclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "crosscclCommSynchronize": [c_void_p],
    "crosscclCommWait": [c_void_p, c_int64, POINTER(c_int)],
    "crosscclCommReset": [c_void_p, c_int64],
    "crosscclCommResetWait": [c_void_p, c_int64, POINTER(c_int)],
    "crosscclCommResetAll": [POINTER(c_void_p), c_int],
    "crosscclCommCount": [c_void_p, POINTER(c_int)],
    "crosscclCommUserRank": [c_void_p, POINTER(c_int)],
    "crosscclCommDevice": [c_void_p, POINTER(c_int)],
    "crosscclCommBackend": [c_void_p, POINTER(c_int)],
    "crosscclCommStream": [c_void_p, POINTER(c_void_p)],
    "crosscclBroadcast": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "crosscclReduceScatter": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "crosscclGroupStart": [],
    "crosscclGroupEnd": [],
}


def load():
    """The library that `CROSSCCL_LIBRARY` names, else the one that came with the package."""
    path = os.environ.get("CROSSCCL_LIBRARY") or str(Path(__file__).with_name("libcrossccl.so"))
    try:
        # Calls give up the lock of the interpreter: ranks may wait in threads of Python.
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path}: {error}; set CROSSCCL_LIBRARY, or build the wheel (scripts/build-wheel)") from error
    for name, arguments in {**FUNCTIONS, **TEXTS}.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_char_p if name in TEXTS else c_int
    version = c_int()
    library.crosscclGetVersion(version)
    if version.value // 100 != VERSION_CODE // 100:
        raise ImportError(f"{path} is of version {version.value}, the package of {VERSION_CODE}")
    return library


library = load()
