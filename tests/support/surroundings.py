"""Run a training script twice, without and with recorders, and compare what a user can see of the two runs.

Importing torch takes seconds of processor time. So scripts are forked from a process that has imported it (run this
file as a program to get one), unless they need an interpreter of their own. A forked script ends as its interpreter
ends, with `atexit` and the rest. With the recorders of `workbench launch`, the process with torch was itself started as
the launcher starts ranks.
"""

import contextlib
import gc
import hashlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from textwrap import indent
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60
PRELOADED = ("torch", "torch.distributed.distributed_c10d", "torch._dynamo", "torch.profiler", "torch.nn.parallel")
WITHOUT, TWO_LINES, LAUNCHER = "without", "two lines", "launcher"
MARK = b"workbench"
MOST_CPU_S = 8.0
"""The CPU seconds that the recorders may take more: they import parts of torch, on a machine that others use, too."""
FORK = """
if n == 2:
    pid = os.fork()
    if pid == 0:
        {child}
    print("child", os.waitpid(pid, 0)[1], flush=True)
"""
"""Code of a step in which a child is forked; `child` is its part."""
EVERY_SIGNAL = "[s for s in range(1, signal.NSIG) if s not in (9, 19, 32, 33)]"
PROFILER_LINE = re.compile(rb"^([A-Z]+):[-\d]+ [:\d]+ \d+:\d+ ", re.MULTILINE)
"""The beginning of a line of torch's profiler, with the time and the process, which differ from run to run."""
TEMPLATE = """\
import os, signal, sys, threading, time
FOLDER, MODE = sys.argv[1:3]
{early}
import torch
import torch.distributed as dist
torch.manual_seed(0)
{before}
{group}
if MODE == "two lines":
    from workbench import recorders
    recorders.start(FOLDER, steps=True)
{after}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for n in range(5):
{step}
    loss = model(torch.ones(2, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item(), flush=True)
{end}
{destroy}
print("done", flush=True)
"""
GROUPS = {
    "": "",
    "gloo": "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())",
    "fake": "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
    "dist.init_process_group('fake', rank=0, world_size=1, store=FakeStore())",
}


@dataclass(frozen=True)
class Row:
    """A training script in one surrounding: the code that is added to the script at certain positions.

    `early` comes before the import of torch, `before` before the process group is created, `after` after the recorders
    have started, `step` into each of the five steps (numbered n from 0), and `end` after the last step. `group` is the
    backend; the script has no process group if it is empty. With `python` (options) or `own`, the script gets an
    interpreter of its own. `folder` is the recorders' folder, relative to the script's working folder.
    """

    name: str
    early: str = ""
    before: str = ""
    after: str = ""
    step: str = ""
    end: str = ""
    group: str = "gloo"
    destroy: bool = True
    own: bool = False
    python: tuple[str, ...] = ()
    environment: dict[str, str | None] = field(default_factory=dict)
    folder: str = "../outputs"

    @property
    def script(self) -> str:
        """The text of the script."""
        return TEMPLATE.format(
            early=self.early,
            before=self.before,
            group=GROUPS.get(self.group, self.group),
            after=self.after,
            step=indent(self.step or "pass", "    "),
            end=self.end,
            destroy="dist.destroy_process_group()" if self.group and self.destroy else "",
        )


@dataclass(frozen=True)
class Ended:
    """What a user sees of a run: wait status (or "timeout"), output, files in the working folder; and its seconds."""

    status: int | str
    stdout: bytes
    stderr: bytes
    files: dict[str, str]
    cpu_s: float
    wall_s: float


class Torch:
    """A process that has imported torch, and forks a process for each script; in a context, it ends with that."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, request: dict[str, object]) -> tuple[int | str, float]:
        """Run a script in a forked process; return (wait status or "timeout", CPU seconds)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        status, cpu_s = json.loads(self._process.stdout.readline())
        return status, cpu_s

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Surroundings:
    """Runs rows in each mode; the processes with torch are started when they are first needed."""

    def __init__(self) -> None:
        self._with_torch: dict[bool, Torch] = {}

    def close(self) -> None:
        """End the processes with torch."""
        for process in self._with_torch.values():
            process.close()

    def run(self, row: Row, mode: str, home: Path) -> Ended:
        """Run the script of a row in a new folder `home`, and return what a user sees of it."""
        work = home / "work"
        work.mkdir(parents=True)
        script = home / "train.py"
        script.write_text(row.script)
        folder = os.path.normpath(os.fsencode(work / row.folder))
        environment = environment_of(mode, os.fsdecode(folder)) | {"TMPDIR": str(home)}
        for name, value in row.environment.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        arguments = [os.fsdecode(folder), mode]
        streams = [str(home / "stdout"), str(home / "stderr")]
        began = time.monotonic()
        if row.own or row.python:
            status, cpu_s = run_alone([*row.python, str(script), *arguments], environment, work, streams)
        else:
            request = {
                "script": str(script),
                "arguments": arguments,
                "environment": environment,
                "work": str(work),
                "streams": streams,
            }
            status, cpu_s = self._torch(hooked=mode == LAUNCHER).run(request)
        wall_s = time.monotonic() - began
        out, err = (Path(path).read_bytes().replace(os.fsencode(home), b"HOME") for path in streams)
        err = PROFILER_LINE.sub(rb"\1:", err)
        return Ended(status, out, err, contents(work, folder), cpu_s, wall_s)

    def _torch(self, *, hooked: bool) -> Torch:
        if hooked not in self._with_torch:
            self._with_torch[hooked] = Torch(environment_of(LAUNCHER if hooked else WITHOUT, "/nonexistent"))
        return self._with_torch[hooked]


def parameters(rows: Sequence[Row], quick: Collection[str]) -> list[Any]:
    """Return the rows as parameters of a test; of those not in `quick`, every sixth is slow and the others are rare."""
    import pytest  # a process that only runs scripts does not need it

    marks = cycle((pytest.mark.slow, *[pytest.mark.rare] * 5))
    return [pytest.param(row, id=row.name, marks=() if row.name in quick else next(marks)) for row in rows]


def assert_same(row: Row, surroundings: Surroundings, home: Path) -> None:
    """Assert that the script of a row runs with the recorders as without; one line of ours on stderr is permitted."""
    expected = surroundings.run(row, WITHOUT, home / "without")
    for mode in (TWO_LINES, LAUNCHER):
        ended = surroundings.run(row, mode, home / mode)
        said = f"{mode}: {ended.status}, not {expected.status}\n{ended.stderr.decode(errors='replace')}"
        assert ended.status == expected.status, said
        assert (mode, ended.stdout) == (mode, expected.stdout)
        assert (mode, without_our_line(ended.stderr)) == (mode, without_our_line(expected.stderr))
        assert (mode, ended.files) == (mode, expected.files)
        assert ended.cpu_s < expected.cpu_s + MOST_CPU_S


def environment_of(mode: str, folder: str) -> dict[str, str]:
    """Return the environment of a script; with the recorders of `workbench launch`, as the launcher sets it."""
    from workbench.launch.plan import flight_recorder_settings
    from workbench.launch.recording import recorder_settings

    kept = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if mode == LAUNCHER:
        environment |= flight_recorder_settings(Path(folder) / "dumps", 2000)
        environment |= recorder_settings({"folder": folder})
    return environment


def run_alone(
    arguments: list[str], environment: dict[str, str], work: Path, streams: list[str]
) -> tuple[int | str, float]:
    """Run a script in an interpreter of its own; return (wait status or "timeout", CPU seconds)."""
    with Path(streams[0]).open("wb") as out, Path(streams[1]).open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        ended = wait_for(process.pid)
        process.returncode = 0
    return ended


def wait_for(pid: int) -> tuple[int | str, float]:
    """Wait for a child process, and kill it if it takes too long; return (wait status or "timeout", CPU seconds)."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            return "timeout", usage.ru_utime + usage.ru_stime
        time.sleep(0.005)


def contents(folder: Path, recorded: bytes) -> dict[str, str]:
    """Return {relative path: digest of the content} of all files below a folder, except those that were recorded."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not os.fsencode(path).startswith(recorded + b"/")
    }


def without_our_line(text: bytes) -> bytes:
    """Return the text without the first line that is ours, because one line of ours is permitted."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(MARK):
            return b"".join([*lines[:number], *lines[number + 1 :]])
    return text


def become(request: dict[str, object]) -> None:
    """Turn this forked process into an interpreter of the requested script; it ends with this program's end."""
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    for stream, path in zip((0, 1, 2), (os.devnull, *request["streams"]), strict=True):  # type: ignore[misc]
        flags = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, flags)
        os.dup2(opened, stream)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(str(request["work"]))
    os.setpgid(0, 0)
    sys.argv = [str(request["script"]), *request["arguments"]]  # type: ignore[misc]
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))


def serve() -> str:
    """Fork a process for each request on stdin, and report its end on stdout; return the script in the forked one."""
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    requests = os.fdopen(os.dup(0), "rb")
    while line := requests.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            requests.close()
            become(request)
            return str(request["script"])
        ended = wait_for(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the script has left behind
        answers.write(json.dumps(ended).encode() + b"\n")
    return ""


if __name__ == "__main__" and (script := serve()):
    del sys.modules["__main__"].__dict__["__file__"]
    runpy.run_path(script, run_name="__main__")
