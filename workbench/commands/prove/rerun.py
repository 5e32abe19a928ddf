"""Run a job again with changed settings, under the memory limits of the first run."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analyzers import memory, steps
from analyzers.errors import InputError, WorkbenchError
from analyzers.files import read_json, write_whole
from analyzers.run import TIMED, Kind, Run, discover
from analyzers.store import Options
from analyzers.words import duration
from workbench.console import note
from workbench.documents import Rerun, Settings
from workbench.launch.own_folder import refuse_links
from workbench.python_path import command, environment

STEPS = 2
"""The number of steps of a second run: the first creates the optimizer's state, the second has the full memory."""
_COMMAND_STEPS = 12
"""The steps after which a second run of a user's command is ended; a recorder writes a snapshot every 10 by default."""
LIMITS = {"data": resource.RLIMIT_DATA, "address_space": resource.RLIMIT_AS}
CONFIGURATION = "proof.toml"
LONGEST_S, POLL_S = 900.0, 2.0
WAIT_S = 30.0


def proof_folder(run: Path) -> Path:
    return run.resolve().with_name(f"{run.resolve().name}-proof")


def configuration(config: Mapping[str, Mapping[str, Any]], changes: Settings, folder: Path) -> str:
    """Return the configuration of the second run as TOML text.

    It is the first run's configuration `config` with `changes`, and with settings that record a few steps in `folder`.
    """
    new: dict[str, dict[str, Any]] = {section: dict(keys) for section, keys in config.items()}
    recorded: Settings = {
        "job.dump_folder": str(folder), "training.steps": STEPS, "profiling.enable_memory_snapshot": True,
        "profiling.enable_profiling": False, "profiling.profile_freq": STEPS, "checkpoint.enable": False,
        "metrics.enable_wandb": False, "metrics.enable_tensorboard": False,
    }  # fmt: skip
    for key, value in (recorded | changes).items():
        section, _, name = key.partition(".")
        new.setdefault(section, {})[name] = value
    new["profiling"]["memory_snapshot_freq"] = STEPS
    lines: list[str] = []
    for section, keys in new.items():
        lines.append(f"[{section}]")
        # TOML has no null.
        lines += [
            f"{name} = {msgspec.json.encode(value).decode()}" for name, value in keys.items() if value is not None
        ]
    return "\n".join(lines) + "\n"


def written(text: str, folder: Path) -> Path:
    """Write the TOML text of a configuration into a folder, and return the file's path.

    Raises:
        InputError: The folder cannot be written.
    """
    refuse_links(folder, with_itself=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CONFIGURATION
        write_whole(path, text)
    except OSError as error:
        raise InputError(
            f"--prove: {folder} cannot be written ({error.strerror})", "copy the run to a folder of yours"
        ) from error
    return path


def launch_words(options: Sequence[str]) -> list[str]:
    return command("workbench", "launch", "--no-watch", *options)


def rerun(words: Sequence[str], folder: Path, limits: Mapping[str, int], *, is_command: bool = False) -> Rerun:
    """Start a second run (`words`, see `launch_words`) under memory limits; return how it ended and its peak memory.

    A user's command (`is_command`) may run for days: it is ended after `_COMMAND_STEPS` steps, and counts as passed.
    """
    steps = f"at most {_COMMAND_STEPS}" if is_command else f"{STEPS}"
    note(f"running {steps} steps with the advice; logs in {folder / 'logs'}")

    began = time.time()

    def enough() -> bool:
        return is_command and is_logged_since(folder, began) and _steps_logged(folder) >= _COMMAND_STEPS

    status = run_limited(words, limits, enough)
    run = discover(folder)
    return Rerun(
        folder=str(folder),
        command=["workbench", *words[words.index("launch") :]],
        passed=status == 0 and not _failed_allocation(run),
        steps=_steps_done(folder),
        peak_bytes=max((device.peak_allocated_bytes for device in _devices(run)), default=None),
    )


def run_limited(words: Sequence[str], limits: Mapping[str, int], enough: Callable[[], bool] = lambda: False) -> int:
    """Run a command under memory limits, {name: bytes}, and return its exit status; 0 if it was ended as `enough`.

    Raises:
        InputError: The command did not end within `LONGEST_S` seconds, and was stopped.
    """
    with subprocess.Popen(
        words,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=limited_by(limits),  # noqa: PLW1509  # this process has no other threads
        start_new_session=True,
    ) as job:
        latest = time.monotonic() + LONGEST_S
        try:
            while time.monotonic() < latest:
                try:
                    return job.wait(min(POLL_S, LONGEST_S))
                except subprocess.TimeoutExpired:
                    if enough():
                        return 0
            why = f"--prove: the second run did not end within {duration(LONGEST_S)}"
            raise InputError(why, "look at its logs, in the folder with -proof at its end")
        finally:
            end(job)


def end(job: "subprocess.Popen[bytes]") -> None:
    """End a process if it is still running: interrupt it; if this does not help, kill its process group."""
    if job.poll() is not None:
        return
    # Only to the launcher, which ends its ranks itself.
    job.send_signal(signal.SIGINT)
    try:
        job.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)


def limited_by(limits: Mapping[str, int]) -> Callable[[], None]:
    """Return a function that sets soft memory limits, {name: bytes}, on the process in which it is called.

    It also makes an interrupt end the process: a shell lets its jobs in the background ignore interrupts.
    """
    wanted = [(LIMITS[name], bytes_) for name, bytes_ in limits.items() if name in LIMITS]

    def limit() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for kind, soft in wanted:
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))

    return limit


def _failed_allocation(run: Run) -> bool:
    return any(device.oom for device in _devices(run))


def _devices(run: Run) -> list[memory.Device]:
    snapshots = run.of(Kind.SNAPSHOT)
    return memory.analyze(snapshots, Options()).data.devices if snapshots else []


def _steps_done(folder: Path) -> int:
    """Return the number of steps that every rank of a run has finished; 0 if it is not recorded."""
    try:
        ended = int(read_json(folder / "run.json").get("last_step") or 0)
    except (OSError, ValueError, WorkbenchError):
        return 0
    return ended or _steps_logged(folder)


def is_logged_since(folder: Path, began: float) -> bool:
    """Return whether a step log in `folder` was written after `began`, a Unix time: older ones are of another run."""
    try:
        return any(path.stat().st_mtime >= began for path in folder.glob("steps/rank_*.jsonl"))
    except OSError:
        return False


def _steps_logged(folder: Path) -> int:
    """Return the number of steps that every rank has finished by the step logs in `folder`; 0 if there are none."""
    try:
        report = steps.analyze(discover(folder).of(*TIMED), Options())
        return min((rank.last_step for rank in report.data.ranks), default=0)
    except (OSError, ValueError, WorkbenchError):
        return 0
