"""Write two recordings like `--debug.record_tensors`, of which the second has another scale in one module."""

import json
from pathlib import Path

MODULES = {
    "embed": "Embedding",
    "layers.0.attention": "Attention",
    "layers.0.ffn": "[red]FFN",
    "head": "Linear",
}
FAULT, FIRST_STEP, STEPS = "layers.0.attention", 2, 3


def recordings(folder: Path) -> tuple[Path, Path]:
    """Write the folders `a` and `b`; in b the output of `FAULT` is 1 % larger from step `FIRST_STEP` on."""
    return recording(folder / "a", 0.0), recording(folder / "b", 0.01)


def recording(folder: Path, fault: float) -> Path:
    """Write a run of `STEPS` steps: the input and the output of each module."""
    lines: list[dict[str, object]] = [{"schema": "workbench.values/1", "rank": 0, "world_size": 1}]
    for step in range(1, STEPS + 1):
        scale = 1.0
        for number, module in enumerate(MODULES):
            lines.append(line(step, "input", module, (number + 2) * scale))
            scale *= 1 + fault if module == FAULT and step >= FIRST_STEP else 1
            lines.append(line(step, "activation", module, (number + 3) * scale))
    (folder / "values").mkdir(parents=True)
    (folder / "values" / "rank_0.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return folder


def line(step: int, kind: str, name: str, size: float) -> dict[str, object]:
    """Return the line of a recorded tensor whose sums are all `size`."""
    sums = {"sum": size, "absolute": size, "square": size**2, "projection": size}
    return {
        "step": step,
        "kind": kind,
        "name": name,
        "type": MODULES[name],
        "dtype": "float32",
        "elements": 4,
        "length": 4,
        **sums,
    }
