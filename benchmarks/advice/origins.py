"""Check what `workbench inspect RUN --prove` says of a NaN or a spike of the loss with a known cause.

`python -m benchmarks.advice.origins [--kept-back]`: each case trains our small model on CPU with one cause, and prints
the answer beside what an engineer would want to be told as one line of JSON.
"""

import json
import random
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainer.data.source import synthetic_documents

ROOT = Path(__file__).parents[2]
SEQUENCE, BATCH, FAULTY = 128, 4, 13
"""Tokens of a sequence, sequences of a rank's step, and the step whose text is bad in the cases with bad text."""
SAVING = ("--checkpoint.enable", "--checkpoint.interval", "4")
OFF = ("--profiling.no_enable_profiling", "--profiling.no_enable_memory_snapshot", "--metrics.no_enable_tensorboard")


class Case(NamedTuple):
    """A run with one cause: its flags, its ranks, the ranks whose text of step `FAULTY` is bad, whether it reads a text
    of the benchmark; and the expected answer: the verdict's class, the step, the ranks, and words of the finding.
    """

    name: str
    kind: str
    step: int | None
    ranks: list[int]
    words: str
    flags: tuple[str, ...]
    world: int = 1
    bad: tuple[int, ...] = ()
    own_text: bool = True


CASES = [
    Case("learning rate too high", "located", None, [], "learning rate", ("--optimizer.lr", "0.3",
         "--lr_scheduler.warmup_steps", "40", "--training.steps", "40", *SAVING), own_text=False),
    Case("bad text in one step", "located", FAULTY, [], "batch of step 13", ("--training.steps", "16", *SAVING),
         bad=(0,)),
    Case("NaN on rank 1", "located", 9, [1], "faults.py", ("--faults.name", "nan", "--faults.step", "9",
         "--faults.rank", "1", "--training.steps", "10", *SAVING), world=2),
    Case("NaN, no checkpoint", "located", 5, [0], "faults.py", ("--faults.name", "nan", "--faults.step", "5",
         "--training.steps", "6")),
]  # fmt: skip
KEPT_BACK = [
    Case("bad text on rank 1", "located", FAULTY, [1], "batch of step 13", ("--training.steps", "16", *SAVING),
         world=2, bad=(1,)),
    Case("learning rate beyond all numbers", "located", None, [0], "learning rate", ("--optimizer.lr", "1e25",
         "--training.max_norm", "1e9", "--training.steps", "8", *SAVING)),
]  # fmt: skip


def text(case: Case) -> str:
    """Return the text of a case: easy to learn, but for what its bad ranks read in step `FAULTY`."""
    step = SEQUENCE * BATCH * case.world
    letters = list(" ".join(islice(synthetic_documents(0), 400))[: 40 * step])
    noise = random.Random(1)
    for rank in case.bad:
        first = (FAULTY - 1) * step + rank * SEQUENCE * BATCH
        letters[first : first + SEQUENCE * BATCH] = [chr(noise.randrange(65, 91)) for _ in range(SEQUENCE * BATCH)]
    return "".join(letters)


def workbench(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the workbench."""
    return subprocess.run([sys.executable, "-P", "-m", "workbench", *words], cwd=ROOT, capture_output=True, text=True,
                          check=False)  # fmt: skip


def answered(case: Case, folder: Path) -> dict[str, Any]:
    """Train, let the broken step be run again, and return the answer beside what is expected."""
    (folder / "text.txt").write_text(text(case))
    own_text = ("--training.dataset_path", str(folder / "text.txt")) if case.own_text else ()
    run, config = folder / "run", str(ROOT / "configs" / "debug_model.toml")
    flags = (*own_text, *OFF, *case.flags)
    workbench(
        "launch", "--no-watch", "--config", config, "--nproc", str(case.world), "--job.dump_folder", str(run), *flags
    )
    proof = workbench("inspect", str(run), "--prove", "--yes", "--json", "--no-cache")
    if proof.returncode:
        return {"case": case.name, "right": False, "error": proof.stderr[-400:]}
    report = json.loads(proof.stdout)
    first = report["findings"][0]
    said = f"{first['title']} {first['next']} {first['evidence']}"
    right = (
        report["verdict"]["class"] == case.kind
        and first["step"] == (case.step or first["step"])
        and first["ranks"] == case.ranks
        and case.words in said
    )
    return {
        "case": case.name, "right": right, "reproduced": report["data"]["reproduced"], "step": first["step"],
        "ranks": first["ranks"], "said": first["title"], "next": first["next"],
    }  # fmt: skip


def main() -> None:
    """Print one line a case; `--kept-back` selects those that were kept back."""
    for case in KEPT_BACK if "--kept-back" in sys.argv else CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(answered(case, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
