"""Run one rank of a trainer: python -m benchmarks.torchtitan_speed.rank ours|torchtitan TIMES ARGUMENTS.

Rank 0 writes the start time of each step to the file TIMES.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def note_steps(trainer: type, times: Path) -> None:
    """Make the trainer append wall-clock and processor time to a file at the start of each step, the same for both
    trainers.
    """
    train_step: Any = trainer.train_step  # type: ignore[attr-defined]

    def noted(self: Any, *given: Any) -> Any:
        if os.environ["RANK"] == "0":
            with times.open("a", encoding="utf-8") as file:
                file.write(f"{time.perf_counter()} {time.process_time()}\n")
        return train_step(self, *given)

    trainer.train_step = noted  # type: ignore[attr-defined]


def use_our_shape() -> None:
    """Give torchtitan's debug model the shape of ours."""
    from torchtitan.models.llama3 import llama3_args

    from trainer.models.llama3.config_registry import FLAVORS

    ours, theirs = FLAVORS["debugmodel_large"], llama3_args["debugmodel"]
    for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "rope_theta"):
        setattr(theirs, name, getattr(ours, name))
    # torchtitan computes the width of the feed-forward layers from these: that of ours.
    theirs.ffn_dim_multiplier, theirs.multiple_of = 1, 32


def main() -> None:
    """Train as one rank."""
    who, times, *arguments = sys.argv[1:]
    sys.argv = [who, *arguments]
    if who == "ours":
        from trainer.train import Trainer as Ours

        note_steps(Ours, Path(times))
        runpy.run_module("trainer", run_name="__main__")
        return
    from benchmarks.torchtitan_speed.on_cpu import prepare

    prepare()
    from torchtitan.train import Trainer as Theirs
    from torchtitan.train import main as train

    use_our_shape()
    note_steps(Theirs, Path(times))
    train(Theirs)


if __name__ == "__main__":
    main()
