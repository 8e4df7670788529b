"""Signals while a call waits: Python hears them, and what an exception of theirs leaves behind is defined. Each wait
here is for a rank that does not come."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import crossccl

LIMITS = [None, 20.0]


def communicator(limit):
    return crossccl.Communicator(2, backend="cpu", timeout=limit)


def interrupted(call, *arguments, after=0.25):
    """Ctrl-C, while it waits."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            call(*arguments)
            # Of what goes on in a thread of its own.
            time.sleep(5)
    finally:
        timer.join()
    assert after - 0.05 < time.monotonic() - begin < 4


def goes_on(comm):
    arrays = [np.zeros(100), np.ones(100)]
    comm.broadcast(arrays, root=1)
    assert arrays[0].tolist() == [1] * 100


def waits(name, comm, array):
    """A call that waits, the last of what rank 0 enqueued; its first call writes `array`."""
    rank = comm.ranks[0]
    if name == "broadcast":
        return lambda: rank.broadcast(array, root=1)
    if name == "all reduce_scatter":
        rank.reduce_scatter(np.zeros(2 * len(array)), array, wait=False)
        return lambda: comm.reduce_scatter([np.ones(20), np.ones(20)])
    rank.broadcast(array, root=1, wait=False)
    if name == "synchronize":
        return rank.synchronize
    if name == "all synchronize":
        return comm.synchronize
    return lambda: comm.broadcast([np.zeros(10), np.full(10, 7.0)], root=1)


CALLS = ["broadcast", "synchronize", "all synchronize", "all broadcast", "all reduce_scatter"]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_wait_can_be_taken_up_again(name, limit):
    comm = communicator(limit)
    array = np.zeros(10)
    alive = weakref.ref(array)
    call = waits(name, comm, array)
    interrupted(call)
    assert comm.failure() is None
    del array, call
    gc.collect()
    # In flight, and so kept.
    assert alive() is not None
    if name in ("broadcast", "synchronize", "all synchronize"):
        # The rank that was waited for comes after all.
        comm.ranks[1].broadcast(np.full(10, 3.0), root=1, wait=False)
        comm.synchronize()
        gc.collect()
        assert alive() is None
        goes_on(comm)
        comm.close()
        return
    # Rank 1 has made one call of two. That is given up.
    comm.abort()
    with pytest.raises(crossccl.Error):
        comm.synchronize()
    comm.reset()
    gc.collect()
    assert alive() is None
    goes_on(comm)
    comm.close()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_reduce_scatter_of_one_rank(limit):
    with communicator(limit) as comm:
        output = np.zeros(2)
        interrupted(comm.ranks[0].reduce_scatter, np.ones(4), output)
        comm.ranks[1].reduce_scatter(np.full(4, 2.0), wait=False)
        comm.synchronize()
        assert output.tolist() == [3, 3]


def test_an_interrupted_reset_has_left():
    comm = communicator(None)
    comm.abort()
    interrupted(comm.ranks[0].reset)
    # As after a time-out: nobody takes it for one who is there.
    with pytest.raises(crossccl.Timeout, match=r"reset number 1 on rank 1: waited 1\d\d ms for rank 0"):
        comm.ranks[1].reset(0.1)
    assert isinstance(comm.failure(), crossccl.Aborted)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: rank.reset(10), comm.ranks))
    goes_on(comm)
    comm.close()


def test_a_reset_between_whose_slices_another_rank_comes():
    with communicator(20.0) as comm, ThreadPoolExecutor(1) as threads:
        for delay in (0.0, 0.1, 0.25):
            comm.abort()
            other = threads.submit(comm.ranks[0].reset, 10)
            time.sleep(delay)
            comm.ranks[1].reset(10)
            other.result()
            goes_on(comm)
        # No slice's end is told as the wait's.
        begin = time.monotonic()
        with pytest.raises(crossccl.Timeout, match=r"waited 3\d\d ms for rank 1 \(every handle must call reset\)"):
            comm.ranks[0].reset(0.3)
        assert time.monotonic() - begin < 3


def test_a_handler_that_raises_nothing():
    """It runs, and the wait goes on."""
    ran = []
    with communicator(0.6) as comm:
        old = signal.signal(signal.SIGALRM, lambda *_: ran.append(time.monotonic()))
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        try:
            with pytest.raises(crossccl.Timeout, match=r"waited 6\d\d ms for rank 1"):
                comm.ranks[0].broadcast(np.zeros(10), root=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        # Not all at the end.
        assert len(ran) >= 3 and ran[2] - ran[0] > 0.1
        comm.reset()
        goes_on(comm)


def test_a_handler_that_uses_the_rank():
    """In the thread that waits: it is in no other's call."""
    with communicator(20.0) as comm:
        rank, seen = comm.ranks[0], []

        def handler(*_):
            # The rank that is waited for, and the one that waits.
            comm.ranks[1].broadcast(np.ones(10), root=1, wait=False)
            rank.synchronize()
            seen.append(True)

        old = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        try:
            array = np.zeros(10)
            rank.broadcast(array, root=1)
        finally:
            signal.signal(signal.SIGALRM, old)
        assert seen and array.tolist() == [1] * 10
        comm.synchronize()


def test_no_other_thread_comes_in_between_two_slices(monkeypatch):
    monkeypatch.setattr(crossccl, "_SLICE_MS", 0)
    with communicator(3.0) as comm, ThreadPoolExecutor(1) as threads:
        slice = comm._handles.wait_step

        def step(rank):
            over = slice(rank)
            # Here the library has nobody in a call.
            time.sleep(0.02)
            return over

        monkeypatch.setattr(comm._handles, "wait_step", step)
        rank = comm.ranks[0]
        rank.broadcast(np.zeros(10), root=1, wait=False)
        waiting = threads.submit(rank.synchronize)
        time.sleep(0.1)
        calls = [
            lambda: rank.broadcast(np.zeros(10), root=1),
            lambda: rank.reduce_scatter(np.zeros(10)),
            rank.synchronize,
            rank.reset,
            lambda: comm.broadcast([np.zeros(10)] * 2),
            comm.reset,
        ]
        try:
            end = time.monotonic() + 0.35
            while time.monotonic() < end:
                for call in calls:
                    with pytest.raises(
                        crossccl.InvalidUsage, match="another thread is in a call with the handle of rank 0"
                    ):
                        call()
            # By the library, which found two waits at one time, it could be refused after it was enqueued.
            assert len(comm._handles.kept[0]) == 1
        finally:
            rank.abort()
        assert isinstance(waiting.exception(), crossccl.Aborted)
        comm.reset()
        goes_on(comm)


def test_a_context_that_is_interrupted_waits_for_nobody():
    def body():
        with communicator(None) as comm:
            comm.ranks[0].broadcast(np.zeros(10), root=1)

    interrupted(body)


def test_an_interrupted_close_goes_on():
    comm = communicator(None)
    comm.ranks[0].broadcast(np.zeros(10), root=1, wait=False)
    interrupted(comm.close)
    comm.abort()
    with pytest.raises(crossccl.Aborted):
        comm.close()
    comm.close()


def test_a_communicator_that_nobody_has():
    """No exception leaves a finalizer: Ctrl-C comes after it."""
    held = [communicator(None)]
    held[0].ranks[0].broadcast(np.zeros(10), root=1, wait=False)
    interrupted(held.clear)


def test_a_program_ends_at_once():
    """Its communicator goes with the interpreter, and a wait that nobody takes up again with it."""
    program = """
import os, signal, threading, numpy, crossccl
comm = crossccl.Communicator(2, backend="cpu", timeout=None)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
comm.ranks[0].broadcast(numpy.zeros(8), root=1)
"""
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGINT, ended
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt") and "ignored" not in ended.stderr
    assert time.monotonic() - begin < 10
