"""Write sets of Flight Recorder dumps of several kinds, so that the reader is not tuned on one of them.

`pickle` are dumps as NCCL writes them, `no_frames` those without stacks, `launches` those of a job that launches sends
and receives together, `json` those of the recorder's JSON, which has no stacks. `text`, the kind that is kept aside, is
JSON with stacks and indentation.
"""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import hangs

Dump = dict[str, Any]


def without_frames(content: Dump) -> Dump:
    entries = [{key: value for key, value in entry.items() if key != "frames"} for entry in content["entries"]]
    return content | {"entries": entries}


def with_launches(content: Dump) -> Dump:
    """Return a dump whose completed entries are launches of a send and a receive, each with its closing entry."""
    entries = content["entries"]
    done = sum(entry["state"] == "completed" for entry in entries) // 3 * 3
    names = ("nccl:send 0->1", "nccl:recv 0<-1", "nccl:coalesced")
    states = ({"state": "scheduled", "retired": False}, {"state": "scheduled", "retired": False}, {})
    for i in range(done):
        ids = {"collective_seq_id": 0, "p2p_seq_id": i // 3 + 1, "is_p2p": True, "profiling_name": names[i % 3]}
        ids |= {key: entries[i - i % 3][key] for key in ("pg_id", "process_group")}
        entries[i] = entries[i] | ids | states[i % 3]
    return content


KINDS: dict[str, Callable[[Dump], bytes]] = {
    "pickle": lambda content: pickle.dumps(content, 2),
    "no_frames": lambda content: pickle.dumps(without_frames(content), 2),
    "launches": lambda content: pickle.dumps(with_launches(content), 2),
    "json": lambda content: json.dumps(without_frames(content), separators=(",", ":")).encode(),
    "text": lambda content: json.dumps(content, indent=1).encode(),
}
ASIDE = "text"


def write_set(folder: Path, kind: str, ranks: int, entries: int) -> None:
    """Write the dumps of all ranks of a job that hangs."""
    hangs.big_set(folder, ranks, entries)
    if kind == "pickle":
        return
    for path in list(folder.iterdir()):
        content = pickle.loads(path.read_bytes())
        path.unlink()
        written = KINDS[kind](content)
        target = path.with_name(f"{path.name}.json") if written.startswith(b"{") else path
        target.write_bytes(written)


if __name__ == "__main__":
    write_set(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
