"""Load NumPy with a single thread for linear algebra."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy start no threads if it is imported in this context, unless the user has set the number of threads.

    When NumPy is loaded, its linear algebra library starts a thread for each processor. The threads wait busily for
    work, and the analyzers have no such work. The environment variable is set only inside this context, because jobs
    that this process starts would inherit it.
    """
    given = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = given
