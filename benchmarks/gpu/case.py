"""Define a case: a measurement that runs in a separate process and gives one row of the table."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGEST_FIXTURE = 4 << 20
OUTPUT_TAIL = 2_000

Measured = dict[str, object]


class State(StrEnum):
    """How a case ended. A case is `SKIPPED` if it needs a device that is missing, and `NOT_RUN` if no time was left."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


class CheckFailedError(Exception):
    """A measured value is not as it should be."""

    def __init__(self, problem: str, measured: Measured) -> None:
        super().__init__(problem)
        self.measured = measured


@dataclass(frozen=True)
class Place:
    """The device (`cuda` or `cpu`) that a case runs on, its work folder, and a folder for small files to keep."""

    device: str
    folder: Path
    fixtures: Path

    @property
    def on_cuda(self) -> bool:
        """Whether the case runs on a CUDA device."""
        return self.device == "cuda"

    def keep(self, path: Path, name: str = "") -> None:
        """Copy a small file to the fixtures; larger files are not copied."""
        if path.is_file() and path.stat().st_size <= LARGEST_FIXTURE:
            self.fixtures.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.fixtures / (name or path.name))


@dataclass(frozen=True)
class Case:
    """A measurement: the function to run, its time limit, and the environment variables that it needs from the
    start.
    """

    section: str
    name: str
    run: Callable[[Place], Measured]
    limit_s: int = 120
    needs_cuda: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the case in the table and in its file names."""
        return f"{self.section}.{self.name}"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    section: str
    name: str
    state: State
    seconds: float
    measured: Measured
    problem: str = ""

    def as_json(self) -> str:
        """Return the row as a JSON object."""
        return json.dumps(asdict(self), indent=1)


def check(condition: object, problem: str, measured: Measured) -> None:
    """Raise an error that contains the measured values unless the condition holds."""
    if not condition:
        raise CheckFailedError(problem, measured)


def environment_of(place: Place, **more: str) -> dict[str, str]:
    """Return the environment variables for a process that a case starts; for a CPU case they hide all devices."""
    hidden = {} if place.on_cuda else {"CUDA_VISIBLE_DEVICES": ""}
    paths = {"PYTHONPATH": str(ROOT), "KINETO_LOG_LEVEL": "6"}
    return os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | paths | hidden | more


def run_python(place: Place, *arguments: str, limit_s: int = 100, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run `python ARGUMENTS` with our packages, and return its output as text; a failure raises no error."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
        cwd=place.folder,
        env=environment_of(place, **more),
    )


def run_trainer(place: Place, folder: Path, *flags: str, limit_s: int = 100, **more: str) -> Measured:
    """Run our trainer on one rank, with `--job.dump_folder` set to `folder`.

    Raises:
        CheckFailedError: The trainer failed.
    """
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    done = run_python(
        place, "-m", "trainer", "--job.dump_folder", str(folder), *flags, limit_s=limit_s, **alone, **more
    )
    measured: Measured = {"exit_code": done.returncode}
    if done.returncode:
        measured["output"] = (done.stdout + done.stderr)[-OUTPUT_TAIL:]
    check(done.returncode == 0, "the trainer failed", measured)
    return measured
