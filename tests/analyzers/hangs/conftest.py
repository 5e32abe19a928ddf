"""Synthetic Flight Recorder dumps of hangs with known causes."""

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from analyzers import run
from analyzers.hangs import analyze

START_NS = 1_700_000_000_000_000_000
LINES = {"tp": 10, "dp": 20, "pp": 30, "default": 40}


def entry(group, seq, *, op="all_reduce", done=True, size=(4, 4), line=1, record=None, backend="nccl", **more):
    """Return a Flight Recorder entry of format version 2.10; `group` is (name, description)."""
    record = seq if record is None else record
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 99},
            {"name": "step", "filename": "/home/me/train.py", "line": line},
        ],
        "record_id": record,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{backend}:{op}",
        "time_created_ns": START_NS + record * 1_000_000,
        "input_sizes": [list(size)],
        "output_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if done and backend == "nccl" else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START_NS + record * 1_000_000 + 500 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | more


def p2p(group, seq, name, record, *, done=False):
    return entry(group, 0, op=name, done=done, record=record, p2p_seq_id=seq, is_p2p=True)


def dump(entries, groups):
    """Return a complete dump; `groups` maps group names to (description, ranks)."""
    config = {name: {"name": name, "desc": desc, "ranks": str(list(ranks))} for name, (desc, ranks) in groups.items()}
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.28", "pg_status": {}, "entries": entries}


def as_json(content):
    """Return a dump as Flight Recorder's JSON has it: without frames, and with 0 for unknown times."""
    entries = [
        {k: (v or 0) if k.startswith("time_d") else v for k, v in e.items() if k != "frames"}
        for e in content["entries"]
    ]
    return json.dumps(content | {"entries": entries}).encode()


@dataclass
class Folder:
    """Writes dumps and other files into a folder, for a test."""

    path: Path
    inputs: list[Path] = field(default_factory=list)

    def write(self, dumps, *, name="rank_{}", form=lambda content: pickle.dumps(content, protocol=2)):
        self.path.mkdir(parents=True, exist_ok=True)
        for rank, content in dumps.items():
            (self.path / name.format(rank)).write_bytes(form(content))
        return self

    def side(self, name, content):
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return self

    def report(self):
        return analyze(run.discover(self.path))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "dumps")


@dataclass(frozen=True)
class World:
    """Simulated ranks in a mesh of pp x dp x tp (tp innermost) that all run the same sequence of synchronous
    collectives.
    """

    tp: int
    dp: int
    pp: int

    @property
    def size(self):
        return self.tp * self.dp * self.pp

    def group(self, kind, rank):
        """Return (name, description, ranks) of the group of kind `kind` that `rank` belongs to."""
        t, d, p = rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)
        base = p * self.dp * self.tp
        return {
            "default": ("0", "default_pg", range(self.size)),
            "tp": (f"tp{p}.{d}", "mesh_tp", range(base + d * self.tp, base + (d + 1) * self.tp)),
            "dp": (f"dp{p}.{t}", "mesh_dp", range(base + t, base + self.dp * self.tp, self.tp)),
            "pp": (f"pp{d}.{t}", "mesh_pp", range(d * self.tp + t, self.size, self.dp * self.tp)),
        }[kind]

    def program(self, steps):
        layer = [("dp", "all_gather"), ("tp", "all_reduce"), ("tp", "all_gather"), ("dp", "reduce_scatter")]
        return [*(layer * 2), ("default", "all_reduce")] * steps

    def reached(self, program, stop):
        """Return how many operations each rank enters; `stop` maps ranks to the operation that they never enter."""
        at = [stop.get(rank, len(program)) for rank in range(self.size)]
        changed = True
        while changed:
            changed = False
            for rank in range(self.size):
                for index in range(at[rank]):
                    members = self.group(program[index][0], rank)[2]
                    if any(at[m] < index for m in members):
                        at[rank], changed = index, True
                        break
        return at

    def dumps(self, kind="none", culprit=0, group="tp", *, steps=4, ranks=None):
        """Return dumps of all ranks after `culprit` failed in the last step; `kind` is `missing`, `shape`, `type` or
        `none`.
        """
        program = self.program(steps)
        place = max(i for i, (k, _) in enumerate(program) if k == group) if kind != "none" else len(program)
        stop = {culprit: place - 1} if kind == "missing" else {}
        at = self.reached(program, stop)
        if kind in ("shape", "type"):
            bad = set(self.group(group, culprit)[2])
            at = self.reached(program, dict.fromkeys(bad, place))
        return {
            rank: self.dump(rank, program, at[rank], kind, place, rank == culprit)
            for rank in (range(self.size) if ranks is None else ranks)
        }

    def dump(self, rank, program, at, kind, place, guilty):
        seqs, entries = {}, []
        stuck = guilty and kind == "missing"
        for index, (group, op) in enumerate(program[: at + (not stuck)]):
            seqs[group] = seqs.get(group, 0) + 1
            name, desc, _ = self.group(group, rank)
            wrong = guilty and index == place
            entries.append(
                entry(
                    (name, desc),
                    seqs[group],
                    op="broadcast" if wrong and kind == "type" else op,
                    size=(8, 4) if wrong and kind == "shape" else (4, 4),
                    done=index < at or stuck,
                    line=LINES[group] + index % 9,
                    record=index,
                )
            )
        return dump(entries, {n: (d, r) for n, d, r in (self.group(k, rank) for k in LINES)})


@pytest.fixture
def world():
    return World


@pytest.fixture
def recorder():
    """Fixture: a namespace with the functions `entry`, `p2p`, `dump` and `as_json`."""

    class Recorder:
        entry = staticmethod(entry)
        p2p = staticmethod(p2p)
        dump = staticmethod(dump)
        as_json = staticmethod(as_json)
        start_ns = START_NS

    return Recorder
