"""Arrays of a library that has the C exchange API of DLPack, over any memory: what a real library answers is tested by
test_torch.py and test_gpus.py, where there is one."""

import ctypes
from ctypes import c_void_p

import numpy as np

from crossccl import _memory

Versioned, Tensor = _memory._Versioned, _memory._DLTensor
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
# What was lent and not given back, by address.
lent = {}
# The stream in which the library works, by device.
streams = {}


class Array:
    """`device` is DLPack's pair; without an address it is NumPy's memory. Its `__dlpack__` says that it was asked."""

    def __init__(self, array, device=(1, 0), address=None, flags=0):
        self.array, self.device, self.flags = array, device, flags
        self.address = array.ctypes.data if address is None else address
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        self.loan = self.lend()
        return _new_capsule(ctypes.addressof(self.loan[0]), b"dltensor_versioned", None)

    def lend(self):
        loan = Versioned(1, 1)
        array = self.array
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))
        loan.flags, loan.deleter = self.flags, DELETER
        loan.tensor = Tensor(
            self.address, *self.device, array.ndim, CODES[array.dtype.kind], 8 * array.itemsize, 1, shape, strides, 0
        )
        return loan, shape, strides


def _type(struct, field):
    """A prototype of `ctypes` is another one each time that it is made."""
    return dict(struct._fields_)[field]


DELETER = _type(Versioned, "deleter")(lambda at: lent.pop(at) and None)


def _managed(array, out):
    if array.address == -1:
        return -1
    loan = array.lend()
    out[0] = ctypes.addressof(loan[0])
    lent[out[0]] = loan
    return 0


def _current(kind, number, out):
    out[0] = streams.get(number, 0)
    return 0


class Api(_memory._ExchangeApi):
    """With the functions that a consumer may call; the others would end the process."""

    def __init__(self, major=1, previous=None):
        super().__init__(major, 3, previous)
        for name, function in (("managed_tensor_from_py_object_no_sync", _managed), ("current_work_stream", _current)):
            setattr(self, name, _type(_memory._ExchangeApi, name)(function))


def with_api(base, api):
    """A type beside `base`, whose objects are exchanged by `api`."""
    return type(
        "Exchanged",
        (base,),
        {"__dlpack_c_exchange_api__": _new_capsule(ctypes.addressof(api), b"dlpack_exchange_api", None)},
    )


API = Api()
Exchanged = with_api(Array, API)


def zeros(count, dtype=np.float64):
    return Exchanged(np.zeros(count, dtype))
