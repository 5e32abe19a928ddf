"""Load NumPy with a single thread for linear algebra."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy start no threads if it is imported in this context and the user has not set their number.

    Its linear algebra library starts one for each processor when it is loaded, and each waits busily for work, which
    analyzers have none of. The variable is set only meanwhile, as jobs that this process starts would inherit it.
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
