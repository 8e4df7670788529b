"""Ranks that stay away, disagree, or are told to stop; and what the package has in common with the header."""

import gc
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import crossccl
from crossccl import _library


def communicator(ranks, **options):
    return crossccl.Communicator(ranks, backend="cpu", **{"timeout": 20.0, **options})


def on_threads(comm, body):
    with ThreadPoolExecutor(len(comm.ranks)) as threads:
        return list(threads.map(body, comm.ranks))


def goes_on(comm):
    arrays = [np.full(1000, rank, np.int64) for rank in range(len(comm.ranks))]
    comm.broadcast(arrays, root=1)
    assert all((one == 1).all() for one in arrays)


def test_a_thread_a_rank():
    with communicator(3) as comm:

        def body(rank):
            for call in range(20):
                array = np.arange(300) + rank.rank + call
                share = rank.reduce_scatter(array)
                assert (share == 3 * (np.arange(100) + 100 * rank.rank + call) + 3).all()
                rank.broadcast(array, root=2)
                assert array[0] == 2 + call
            return rank.rank, rank.count, rank.device, rank.backend

        assert on_threads(comm, body) == [(rank, 3, rank, "cpu") for rank in range(3)]


def test_a_rank_that_stays_away():
    with communicator(2, timeout=0.1) as comm:
        with pytest.raises(crossccl.Timeout, match=r"broadcast number 1 on rank 0: waited \d+ ms for rank 1") as error:
            comm.ranks[0].broadcast(np.zeros(10), root=1)
        assert isinstance(error.value, TimeoutError) and error.value.code == 16
        assert str(comm.failure()) == str(error.value)
        with pytest.raises(crossccl.Poisoned, match=r"waited \d+ ms for rank 1"):
            comm.broadcast([np.zeros(10), np.zeros(10)])
        comm.reset()
        assert comm.failure() is None
        goes_on(comm)


def test_ranks_that_disagree():
    with communicator(2, strict=True) as comm:

        def body(rank):
            with pytest.raises(crossccl.Mismatch, match="disagree on root: rank 0 has 0, rank 1 has 1"):
                rank.broadcast(np.zeros(10), root=rank.rank)
            rank.reset()

        on_threads(comm, body)
        goes_on(comm)


def test_abort_from_another_thread():
    with communicator(2, timeout=None) as comm:
        timer = threading.Timer(0.1, comm.abort)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(crossccl.Aborted):
            comm.ranks[0].broadcast(np.zeros(10), root=1)
        assert time.monotonic() - begin < 10
        # Who waits lets other threads of Python run, or the timer would not have come.
        timer.join()
        comm.reset()
        goes_on(comm)


def test_a_handle_in_two_threads():
    with communicator(2, timeout=None) as comm:
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(lambda: comm.ranks[0].broadcast(np.zeros(10), root=1))
            time.sleep(0.1)
            with pytest.raises(crossccl.InvalidUsage, match="another thread is in a call with the handle of rank 0"):
                comm.ranks[0].synchronize()
            comm.abort()
            assert isinstance(waits.exception(), crossccl.Aborted)
        comm.reset()


def test_arrays_live_as_long_as_they_are_used():
    comm = communicator(2)
    arrays = [np.zeros(100_000), np.ones(100_000)]
    alive = [weakref.ref(one) for one in arrays]
    comm.broadcast(arrays, root=1, wait=False)
    del arrays
    gc.collect()
    assert all(one() is not None for one in alive)
    comm.synchronize()
    gc.collect()
    assert all(one() is None for one in alive)
    comm.close()
    comm.close()
    for call in (lambda: comm.broadcast([np.zeros(1)] * 2), comm.abort, comm.failure, comm.synchronize):
        with pytest.raises(crossccl.InvalidArgument, match="a communicator's handle that was not destroyed"):
            call()


def test_ranks_live_as_long_as_they_are_held():
    def start():
        return communicator(2).ranks

    ranks = start()
    gc.collect()
    arrays = [np.zeros(10), np.ones(10)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: rank.broadcast(arrays[rank.rank], root=1), ranks))
    assert arrays[0].tolist() == [1] * 10


def test_what_another_thread_is_in_is_not_closed_under_it():
    comm = communicator(2, timeout=60)
    array = np.zeros(1000)
    alive = weakref.ref(array)
    rank = comm.ranks[0]
    rank.broadcast(array, root=1, wait=False)
    del array
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(rank.synchronize)
        while True:
            # Until it is in its call: any other then answers that.
            try:
                rank.broadcast(np.zeros(1), stream=64)
            except crossccl.InvalidUsage:
                break
            except crossccl.InvalidArgument:
                pass
        try:
            with pytest.raises(crossccl.InvalidUsage, match="another thread is in a call with the handle of rank 0"):
                comm.close()
            gc.collect()
            # It is still read and written.
            assert alive() is not None
        finally:
            rank.abort()
        assert isinstance(waits.exception(), crossccl.RankGone)
    comm.close()
    gc.collect()
    assert alive() is None


def test_a_communicator_may_go_while_a_group_of_another_is_open():
    gone, comm = communicator(2), communicator(2)
    arrays = [np.zeros(10), np.ones(10)]
    with comm._group("broadcast"):
        comm.ranks[0].broadcast(arrays[0], root=1, wait=False)
        gone.close()
        comm.ranks[1].broadcast(arrays[1], root=1, wait=False)
    comm.synchronize()
    assert arrays[0].tolist() == [1] * 10


def test_a_rank_of_a_communicator_that_was_closed():
    comm = communicator(2)
    rank = comm.ranks[0]
    comm.close()
    with pytest.raises(crossccl.InvalidArgument, match="a communicator's handle that was not destroyed"):
        rank.synchronize()


def test_names_and_numbers_are_the_headers():
    header = (Path(__file__).parents[2] / "include" / "crossccl.h").read_text()
    functions = {}
    for name, arguments in re.findall(r"\b(crossccl[A-Z]\w+)\(([^)]*)\);", header):
        functions[name] = 0 if arguments == "void" else len(arguments.split(","))
    ours = {**_library.FUNCTIONS, **_library.TEXTS}
    assert len(functions) >= 20
    assert functions == {name: len(arguments) for name, arguments in ours.items()}
    numbers = {name: int(number) for name, number in re.findall(r"crossccl(\w+) = (\d+),", header)}
    assert {name: numbers[name.capitalize()] for name in _library.DATATYPES} == _library.DATATYPES
    assert {name: numbers[name.capitalize()] for name in _library.OPS} == _library.OPS
    assert {name: numbers["Backend" + name.capitalize()] for name in _library.BACKENDS} == _library.BACKENDS
    defines = {name: int(number) for name, number in re.findall(r"#define CROSSCCL_(\w+) (\d+)", header)}
    assert (_library.CONFIG_MAGIC, _library.VERSION_CODE) == (defines["CONFIG_MAGIC"], defines["VERSION_CODE"])
    fields = re.search(r"typedef struct \{(.*?)\} crosscclConfig_t", header, re.S).group(1)
    kinds = {"size_t": 8, "unsigned int": 4, "int": 4, "int64_t": 8}
    theirs = [(name, kinds[kind.strip()]) for kind, name in re.findall(r"^  ((?:\w+ )+)(\w+);", fields, re.M)]
    own = [(name, _library.ctypes.sizeof(kind)) for name, kind in _library.Config._fields_]
    assert own == theirs


def test_the_version_is_the_crates():
    manifest = (Path(__file__).parents[2] / "Cargo.toml").read_text()
    crate = re.search(r'^version = "(.*)"', manifest, re.M).group(1)
    assert version("crossccl") == crate
