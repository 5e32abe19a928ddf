"""Write a folder like `workbench parity`: two equal runs of a few steps, and a run that differs from step 3 on."""

import json
from pathlib import Path

from analyzers.parity import NamedRun
from analyzers.parity.report import write_runs

LOSSES = (6.2, 6.14, 6.07, 6.05, 6.06, 5.87)
RUNS = {"dp_shard=2": 0.0, "tp=2": 1e-7, "tp=2,optimizer.lr=4e-3": 0.01}
"""{name of a run: relative difference of its losses}; a difference above 1e-5 begins only at step 3."""
GRADIENT = "layers.1.attention.wk.weight"


def meshes(folder: Path, name: str = "meshes") -> Path:
    """Write such a folder below `folder`, and return its path."""
    root = folder / name
    for number, difference in enumerate(RUNS.values(), 1):
        write_run(root / f"run_{number}", difference)
    write_runs(root, [NamedRun(run, root / f"run_{i}") for i, run in enumerate(RUNS, 1)], 1e-5)
    return root


def write_run(folder: Path, difference: float) -> None:
    """Write a run with the step log of one rank and, for each step, the sums over two tensors."""
    steps = ['{"schema": "workbench.steps/1", "rank": 0}']
    values = ['{"schema": "workbench.values/1", "rank": 0, "world_size": 1}']
    for step, loss in enumerate(LOSSES, 1):
        share = 0.0 if difference > 1e-5 and step < 3 else difference
        line = {"step": step, "start_ns": step, "dur_ns": 9, "loss": loss * (1 - share), "grad_norm": 1.2 * (1 + share)}
        steps.append(json.dumps(line))
        for kind, tensor, size in (("activation", "tok_embeddings", 2.0), ("gradient", GRADIENT, 3.0 * (1 + share))):
            sums = {"sum": size, "absolute": size, "square": size**2, "copies": 1}
            values.append(json.dumps({"step": step, "kind": kind, "name": tensor, **sums}))
    for room, lines in (("steps", steps), ("values", values)):
        (folder / room).mkdir(parents=True)
        (folder / room / "rank_0.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "run.json").write_text('{"world_size": 1, "mesh": {"tp": 1}}')
