"""A training in a process of its own: what happens to it there does not happen to the node.

An exception can be caught. A segmentation fault, the kernel's end of a process without memory, `os._exit` or a loop
without end cannot: the ClientApp would be gone, and Flower would tell the server so by name, in the very rounds in
which a node's data does it. So a training runs in a child that is forked for it. The child has the app and the data as
they are loaded; what comes back is one vector of a known length, in memory that both share, and nothing else: not what
the app changes in its context, and no file of any other shape.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.bounds.numeric import FloatArray
from shoal.deployment.log import LOG

PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux: which signal a child gets when its parent is gone."""


def vector_apart(work: Callable[[], FloatArray], *, size: int, seconds: float) -> FloatArray | None:
    """What a function returns, computed in a process of its own.

    Args:
        work: the function.
        size: how many numbers it returns.
        seconds: how long it may take; 0 for no limit.

    Returns:
        The vector; None if the process did not come to its end.
    """
    width = np.dtype(np.float64).itemsize
    with contextlib.closing(mmap.mmap(-1, size * width)) as shared:
        child = multiprocessing.get_context("fork").Process(target=_write_vector, args=(work, shared, size))
        child.start()
        try:
            child.join(seconds or None)
        finally:
            # On the way out as well: a node that is stopped takes its training with it.
            if child.is_alive():
                LOG.error("training was ended after %g seconds", seconds)
                child.kill()
                child.join()
        if child.exitcode != 0:
            LOG.error("training ended with code %s", child.exitcode)
            return None
        return np.frombuffer(bytes(shared[: size * width]), dtype=np.float64).copy()


def end_with_parent(number: signal.Signals) -> None:
    """Let this process get a signal when its parent is gone, where the system (Linux) can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(number))


def _write_vector(work: Callable[[], FloatArray], shared: mmap.mmap, size: int) -> None:
    """The child's part: compute, and leave the numbers in the shared memory."""
    # Not the handlers of the node: a signal ends the child, and the child only.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # If the node is killed, its lock must not live on in the child; and if memory runs out, the child is the one.
    end_with_parent(signal.SIGKILL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    vector = np.ascontiguousarray(work(), dtype=np.float64)
    if vector.shape != (size,):
        os._exit(1)
    shared[: vector.nbytes] = vector.tobytes()
    # At once: threads that the app has left behind must not keep the child, and with it the node, from its end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
