"""Convert the step logs of a run to torchtitan's structured logs, for tools that read these.

    python -m workbench.recorders.timing.structured_log RUN

This creates RUN/structured_logs/training.global_rank_R.<start>-<pid>.jsonl, a file for each start of each rank. A step
log has no start times of phases, only durations. So the phases of a step are written as if they ran one after the
other.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.recorders.files import write_bytes

SPANS = {
    "data_wait": "fetching_batch",
    "h2d": "post_dataloading_process",
    "fwd": "fwd_bwd",
    "bwd": "fwd_bwd",
    "fwd_bwd": "fwd_bwd",
    "grad_clip": "optim",
    "optim": "optim",
    "loss_sync": "collect_dist_metrics",
    "gc": "gc_collect",
    "ckpt_save": "checkpoint_save",
    "eval": "eval",
    "profiler": "kineto_profiler_step_call",
    "snapshot": "memory_profiler_step_call",
}
_TAGS = {"gc": "gc", "eval": "eval", "checkpoint": "checkpoint_save"}
Record = dict[str, Any]


class Writer:
    """Converts lines of a step log to records of torchtitan's structured log, for one start of a rank."""

    def __init__(self, header: Record, path: Path) -> None:
        self._header, self._path = header, path
        self._sequence, self._steps, self._last_ns = 0, 0, int(header["started_ns"])

    def start(self) -> Record:
        """Return the first record of a structured log, which says that logging started on the rank."""
        return self._record("instant", "structured_logger_started", self._last_ns)

    def step(self, line: Record) -> Iterator[Record]:
        """Yield the records of one step: its start, the start and end of each span, its metrics, and its end.

        `line` is the line of the step in the step log.
        """
        self._steps += 1
        facts = {"step": line["step"], "relative_step": self._steps}
        tags = [_TAGS[tag] for tag in line["tags"] if tag in _TAGS]
        now_ns = int(line["start_ns"])
        yield self._record("event", "step_start", now_ns, **facts)
        for name, ns in spans(line["phases"]).items():
            yield self._record("event", f"{name}_start", now_ns, **facts)
            now_ns += ns
            yield self._record("event", f"{name}_end", now_ns, value=ns / 1e6, **facts)
        end_ns = max(now_ns, int(line["start_ns"]) + int(line["dur_ns"]))
        for name, value in metrics(line):
            yield self._record("instant", "metric_value", end_ns, event_name=name, value=value, **facts)
        marked = facts | ({"step_tags": tags} if tags else {})
        yield self._record("event", "step_end", end_ns, value=line["dur_ns"] / 1e6, **marked)

    def _record(self, kind: str, name: str, now_ns: int, **more: object) -> Record:
        header, rank = self._header, self._header["rank"]
        record = {
            "rank": rank,
            "global_rank": rank,
            "local_rank": header["local_rank"],
            "source": "training",
            "host_name": header["host"],
            "pid": header["pid"],
            "tid": header["pid"],
            "time": now_ns // 10**9,
            "time_ms": now_ns // 10**6,
            "time_us": now_ns // 10**3,
            "delta_ms": (now_ns - self._last_ns) / 1e6,
            "seq_id": self._sequence,
            "log_type": kind,
            "log_type_name": name,
            "event_name": None,
            "value": None,
            "caller": "",
            "log_file": str(self._path),
            "log_function": "",
            "log_level": "INFO",
            "logger_name": "structured_log",
            "message": name,
        }
        self._sequence, self._last_ns = self._sequence + 1, now_ns
        return record | more


def spans(phases: dict[str, int]) -> dict[str, int]:
    """Return {span name in torchtitan: nanoseconds}; phases that map to the same span are added.

    `phases` is {phase in the step log: nanoseconds}.
    """
    total: dict[str, int] = {}
    for phase, ns in phases.items():
        name = SPANS.get(phase, phase)
        total[name] = total.get(name, 0) + ns
    return total


def metrics(line: Record) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each metric in a line of the step log; NaN and infinite values are omitted."""
    yield "local_valid_tokens", float(line["tokens"])
    for name in ("loss", "grad_norm"):
        if line[name] is not None and math.isfinite(float(line[name])):
            yield name, float(line[name])


def records(path: Path) -> Iterator[tuple[Record, list[Record]]]:
    """Yield (header, records of the structured log) for each start of a rank in the step log at `path`.

    Truncated lines are skipped.
    """
    writer, header, rank_records = None, None, list[Record]()
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "schema" in line:
            if header:
                yield header, rank_records
            header, writer = line, Writer(line, path)
            rank_records = [writer.start()]
        elif writer:
            rank_records.extend(writer.step(line))
    if header:
        yield header, rank_records


def export(run: Path) -> list[Path]:
    """Write the structured logs of the run in folder `run`, and return their paths."""
    written = []
    for path in sorted((run / "steps").glob("rank_*.jsonl")):
        for header, rank_records in records(path):
            start = time.strftime("%Y%m%d-%H%M%S", time.gmtime(header["started_ns"] / 1e9))
            name = f"training.global_rank_{header['rank']}.{start}-{header['pid']:06d}.jsonl"
            target = run / "structured_logs" / name
            write_bytes(target, "".join(json.dumps(record) + "\n" for record in rank_records).encode())
            written.append(target)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Export step logs as torchtitan's structured logs.")
    parser.add_argument("run", type=Path, help="the run's folder")
    for path in export(parser.parse_args().run):
        print(path)


if __name__ == "__main__":
    main()
