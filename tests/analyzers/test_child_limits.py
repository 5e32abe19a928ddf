"""The limits that a child process sets itself before it opens a file."""

import ctypes
import multiprocessing
import os
import resource
import subprocess
import sys

import pytest

from analyzers.child import limit_self

KINDS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_DATA)
AS, CPU, CORE, DATA = KINDS
MEMORY, SECONDS = 1 << 40, 3600


def limits_of_child(**before):
    """Return the limits that a child has after `limit_self`, if its limits were `before` (soft and hard)."""
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)

    def work():
        for name, limits in before.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), limits)
        if os.geteuid() == 0:
            # Root may raise a hard limit, other users may not.
            os.setuid(65534)
        limit_self(MEMORY, SECONDS)
        writing.send({kind: resource.getrlimit(kind) for kind in KINDS})

    process = context.Process(target=work)
    process.start()
    writing.close()
    try:
        return reading.recv()
    except EOFError:
        return None
    finally:
        process.join(60)


def test_a_child_writes_no_core_file():
    """That of a reader of 30 GiB would fill the disk, and has the content of the artefact."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    assert limits_of_child(CORE=(most, most))[CORE] == (0, 0)


@pytest.mark.parametrize("most", [(1 << 39, 600), (1 << 41, 7200)], ids=["smaller", "larger"])
def test_the_hard_limits_of_a_batch_system_stay(most):
    memory, seconds = most
    limits = limits_of_child(AS=(memory, memory), CPU=(seconds, seconds))
    assert limits[AS] == (min(MEMORY, memory),) * 2
    assert limits[CPU] == (min(SECONDS, seconds), min(SECONDS + 1, seconds))


def test_the_limit_of_an_analysis_that_waits_is_none_of_the_child():
    """A child has more memory than the analysis that asked for the file."""
    assert limits_of_child(DATA=(1 << 30, 1 << 42))[DATA] == (1 << 42, 1 << 42)


FREED_AND_TAKEN_AGAIN = """
import resource
import numpy as np
from analyzers import child
if {kept}:
    child.keep_freed_memory()
for _ in range(30):
    [np.ones(20 << 17) for _ in range(4)]  # 20 MiB each
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def test_memory_that_a_child_frees_is_not_faulted_in_again():
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("another C library than glibc")

    def faults(kept):
        code = FREED_AND_TAKEN_AGAIN.format(kept=kept)
        return int(subprocess.check_output([sys.executable, "-c", code], text=True))

    assert faults(kept=True) < faults(kept=False) / 2
