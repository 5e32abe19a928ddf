"""How far a job has come, read from the lines that its ranks write: a bar on a terminal, plain lines elsewhere."""

import sys
import threading
from pathlib import Path
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from workbench.present.units import size

POLL_SECONDS = 0.2


class StepLog:
    """The growing `steps/rank_R.jsonl` of one rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def fresh(self) -> list[dict[str, Any]]:
        """The steps written since the last call; a line that is still being written waits for its end."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        return [step for line in whole.splitlines() if (step := decoded(line))]


def decoded(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and "step" in found else None


def described(step: dict[str, Any]) -> dict[str, str]:
    """A step's loss, tokens per second of one rank, and memory, as text."""
    loss, seconds = step.get("loss"), step.get("dur_ns", 0) / 1e9
    return {
        "loss": f"{loss:.4f}" if isinstance(loss, float) else str(loss or "-"),
        "tps": f"{step.get('tokens', 0) / seconds:,.0f}" if seconds else "-",
        "memory": size(step.get("memory_bytes")),
    }


class Watcher:
    """Shows progress from a thread of its own while the job runs: `with Watcher(folder, steps): ...`."""

    def __init__(self, folder: Path, steps: int | None, started_after: float) -> None:
        self._folder, self._steps, self._started_after = folder / "steps", steps, started_after
        self._logs: dict[Path, StepLog] = {}
        self._stop = threading.Event()
        self._console = Console(stderr=True, highlight=False)
        self._thread = threading.Thread(target=self._bar if sys.stderr.isatty() else self._lines, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _fresh(self) -> list[dict[str, Any]]:
        """New steps of the rank that knows the loss; the first rank's until one does."""
        for path in self._folder.glob("rank_*.jsonl"):
            if path not in self._logs and path.stat().st_mtime >= self._started_after:
                self._logs[path] = StepLog(path)
        by_step: dict[int, dict[str, Any]] = {}
        for log in self._logs.values():
            for step in log.fresh():
                known = by_step.get(step["step"])
                if known is None or known.get("loss") is None:
                    by_step[step["step"]] = step
        return [by_step[number] for number in sorted(by_step)]

    def _rounds(self) -> "Rounds":
        return Rounds(self._stop)

    def _lines(self) -> None:
        last = 0
        for _ in self._rounds():
            for step in self._fresh():
                if step["step"] <= last:
                    continue
                last, text = step["step"], described(step)
                of = f"/{self._steps}" if self._steps else ""
                print(
                    f"step {last}{of}  loss {text['loss']}  tps {text['tps']}  memory {text['memory']}",
                    file=sys.stderr,
                    flush=True,
                )

    def _bar(self) -> None:
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self._console, transient=False) as progress:
            task = progress.add_task("starting", total=self._steps or 0)
            for _ in self._rounds():
                for step in self._fresh():
                    text = described(step)
                    shown = f"loss {text['loss']}  tps {text['tps']}  memory {text['memory']}"
                    progress.update(task, completed=step["step"], description=shown)


class Rounds:
    """Iterates until told to stop, and once more after that, so that the last lines are seen."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._last = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> None:
        if self._last:
            raise StopIteration
        self._last = self._stop.wait(POLL_SECONDS)
