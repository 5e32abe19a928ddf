"""Write sets of Flight Recorder dumps of several kinds, so that the reader is not tuned on one of them.

`pickle` are dumps as NCCL writes them, `no_frames` those without stacks, `json` those of the recorder's JSON, which has
none either. `text`, the kind that is kept aside, is JSON with stacks and indentation.
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


KINDS: dict[str, Callable[[Dump], bytes]] = {
    "pickle": lambda content: pickle.dumps(content, 2),
    "no_frames": lambda content: pickle.dumps(without_frames(content), 2),
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
        target = path if kind == "no_frames" else path.with_name(f"{path.name}.json")
        target.write_bytes(KINDS[kind](content))


if __name__ == "__main__":
    write_set(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
