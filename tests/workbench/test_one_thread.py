"""NumPy is loaded with a single thread for linear algebra, and jobs that are started later know nothing of it."""

import os
import subprocess
import sys

CODE = """
import os
from pathlib import Path
from workbench.commands.answers import VARIABLE, one_blas_thread
with one_blas_thread():
    import numpy
[threads] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Threads:")]
print(threads.split()[1], os.environ.get(VARIABLE))
"""


def started(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return subprocess.check_output([sys.executable, "-c", CODE], text=True, env=kept | variables).split()


def test_numpy_starts_no_threads_and_the_variable_is_gone_afterwards():
    assert started() == ["1", "None"]


def test_the_number_of_the_user_is_kept():
    assert started(OPENBLAS_NUM_THREADS="1") == ["1", "1"]
    assert started(OPENBLAS_NUM_THREADS="3")[1] == "3"
