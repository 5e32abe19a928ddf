"""Connect to a Dask cluster whose workers read artefacts; the analyzers use it like any other executor."""

import atexit
import logging

from analyzers.errors import InputError
from analyzers.worker_pool import Refusal, WorkerPool
from workbench.console import note
from workbench.remote.urls import scrubbed

_CONNECT_S = 10
_LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")
"""The loggers with which Dask and its libraries write to stderr; each has a level of its own."""
_SIZE_AT_MOST = 256
"""The most artefacts that are read at the same time; a thread of this process waits for each."""
START = "start one with `dask scheduler`, its workers with `dask worker ADDRESS`, and give its address"


def connect(address: str, jobs: int) -> WorkerPool:
    """Return the workers of the cluster whose scheduler is at `address`.

    `jobs` is the number of local processes, which read the files that the workers cannot read.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    if address == "slurm":
        hint = "start workers with dask_jobqueue.SLURMCluster, and give the address of its scheduler"
        raise InputError("--cluster slurm: starting workers by Slurm is not supported", hint)
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError:
        hint = "run `pip install 'torch-workbench[cluster]'`"
        raise InputError(f"--cluster {address}: distributed is not installed", hint) from None
    # These libraries log each connection that is lost: that is no news for the user, and changes no answer.
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        scheduler = address if "://" in address else f"tcp://{address}"
        get_address_host_port(scheduler, strict=True)  # the client of a wrong address could not be closed
        client = Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        reason = scrubbed(str(error)) or type(error).__name__
        raise InputError(f"--cluster {address}: no scheduler answers there ({reason})", START) from None
    atexit.register(client.close, timeout=1)

    def threads() -> int:
        return sum(client.nthreads().values())

    def has_workers() -> bool:
        if client.status != "running":
            raise ConnectionError("the scheduler is lost")
        return bool(client.scheduler_info().get("workers"))

    # Twice as many as there are threads: a worker need not wait for its next file.
    size = max(jobs, min(2 * threads(), _SIZE_AT_MOST))
    return WorkerPool(client.get_executor(pure=False), size, jobs, has_workers, _report_failure)


def _report_failure(failure: Refusal | BaseException) -> None:
    """Print on stderr why files are read here and not by workers.

    Nothing is printed about an unreadable file, because the report mentions it anyway.
    """
    if failure is Refusal.UNREADABLE:
        return
    if failure is Refusal.OTHER_VERSION:
        reason = "workers have another version of torch-workbench"
    elif failure is Refusal.OTHER_FILES:
        reason = "workers do not see files that are too large to be sent"
    else:
        reason = f"workers failed: {type(failure).__name__}: {scrubbed(str(failure))}"
    note(f"note: --cluster: {reason}; such files are read here")
