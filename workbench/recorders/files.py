"""Files that are complete or absent, and who this process is."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Who this process is within its job, as the launcher's environment says."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    pid: int
    attempt: int

    @classmethod
    def here(cls) -> "Place":
        """Read RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the restart count; a single process without them."""
        number = {
            name: int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("TORCHELASTIC_RESTART_COUNT", 0))
        }
        return cls(
            rank=number["RANK"],
            local_rank=number["LOCAL_RANK"],
            world_size=number["WORLD_SIZE"],
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", number["WORLD_SIZE"])),
            host=socket.gethostname(),
            pid=os.getpid(),
            attempt=number["TORCHELASTIC_RESTART_COUNT"],
        )


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that readers see all of it or nothing. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, complete or not at all."""
    write_bytes(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is no readable one."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
