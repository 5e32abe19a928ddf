"""Check whether a resumed run continues as the interrupted run would have continued.

The settings of the run that saved a checkpoint are compared with the settings of the run that loads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.config import JobConfig, as_dict
from trainer.config.checks import accumulation_steps
from trainer.config.mesh import Degrees
from trainer.config.sections import LRScheduler
from trainer.data.loader import Loader
from trainer.step import lr_factor
from workbench.recorders.files import read_json, write_json

FILE = "made_with.json"
"""Name of the file in a checkpoint's folder that holds the settings of the run that saved the checkpoint."""
Made = Mapping[str, Any]
_SAMPLED_STEPS = 1000
"""Largest number of steps after the resume whose learning rates are compared."""
_SETTINGS = {
    "model": "another model",
    "optimizer.name": "other updates",
    "optimizer.beta1": "other updates",
    "optimizer.beta2": "other updates",
    "optimizer.eps": "other updates",
    "optimizer.weight_decay": "other updates",
    "training.seq_len": "sequences are cut at other tokens",
    "training.max_norm": "gradients are clipped otherwise",
    "training.dtype": "another precision",
    "training.mixed_precision_param": "another precision",
    "debug.moe_force_load_balance": "tokens go to other experts",
}
"""{configuration key: what a change of its value means for the steps after the resume}."""
_REBUILT = ("torch", "mesh")
"""The settings whose change alters only the order of additions, so that results differ by rounding alone."""


class Agreement(Enum):
    """How closely a resumed run continues the interrupted run: exactly, up to rounding, or not at all."""

    EXACT = "exact"
    ROUNDING = "equal but for rounding"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Mismatch:
    """A setting `what` with the value `before` when the checkpoint was saved, and the value `now` in this run.

    `meaning` is the consequence for the following steps, and `agreement` how closely they can still agree.
    """

    what: str
    before: object
    now: object
    meaning: str
    agreement: Agreement = Agreement.DIFFERENT

    def __str__(self) -> str:
        return f"{self.what} was {self.before}, is {self.now}: {self.meaning}"


@dataclass(frozen=True)
class Audit:
    mismatches: tuple[Mismatch, ...]

    @property
    def agreement(self) -> Agreement:
        """How closely the resumed run can continue the interrupted run: exactly, up to rounding, or not at all."""
        grades = [mismatch.agreement for mismatch in self.mismatches]
        if Agreement.DIFFERENT in grades:
            return Agreement.DIFFERENT
        return Agreement.ROUNDING if grades else Agreement.EXACT

    def text(self, path: Path, step: int) -> str:
        """Return the log message about a resume and the differences between the runs.

        `path` is the checkpoint, and `step` its last finished step.
        """
        differences = "".join(f"\n  - {mismatch}" for mismatch in self.mismatches)
        verdict = {
            Agreement.EXACT: "the run goes on exactly: weights, optimizer, data order, random numbers and schedule",
            Agreement.ROUNDING: f"the run goes on, equal but for rounding:{differences}",
            Agreement.DIFFERENT: f"the run does NOT go on as it would have:{differences}",
        }[self.agreement]
        return f"Resumed {path} after step {step}: {verdict}"

    def as_json(self) -> dict[str, object]:
        return {"agreement": self.agreement.value, "mismatches": list(map(str, self.mismatches))}


def made_with(config: JobConfig, degrees: Degrees, loader: Loader, seed: int, torch_version: str) -> Made:
    """Return the settings that determine the later steps of a run but are not part of a checkpoint.

    They are the model, batch, schedule, data, seed, mesh, torch version and the configuration keys in `_SETTINGS`.
    """
    values = as_dict(config)
    shown = {key: values[section][name] for key in _SETTINGS if "." in key for section, name in [key.split(".")]}
    return {
        "model": f"{config.model.name} {config.model.flavor}",
        "settings": shown,
        "sequences_per_step": accumulation_steps(config.training, degrees)
        * config.training.local_batch_size
        * degrees.data_parallel,
        "schedule": {**values["lr_scheduler"], "steps": config.training.steps, "lr": config.optimizer.lr},
        "data": {"bytes": loader.data.size, "checksum": loader.checksum()},
        "seed": seed,
        "mesh": degrees.described(),
        "torch": torch_version,
    }


def write(path: Path, made: Made) -> None:
    """Write the settings of the run that saved a checkpoint into the checkpoint's folder `path`, atomically."""
    write_json(path / FILE, made)


def read(path: Path) -> Made | None:
    """Return the settings of the run that saved the checkpoint in folder `path`; None if they are not recorded."""
    made = read_json(path / FILE, by_links=True)
    return made if isinstance(made, dict) else None


def audit(before: Made | None, now: Made, step: int, excluded: Sequence[str] = ()) -> Audit:
    """Compare the settings of the run that saved a checkpoint after `step` (`before`) with those of this run (`now`).

    `excluded` names parts of the checkpoint that are not loaded; each of these counts as a difference too.
    """
    left_out = tuple(Mismatch(part, "saved", "not loaded", "it starts anew") for part in excluded)
    try:
        return Audit((*left_out, *mismatches(before or {}, now, step)))
    except (KeyError, TypeError, AttributeError, ValueError):
        missing = Mismatch(FILE, "not readable", "needed", "what the checkpoint was made with is unknown")
        return Audit((*left_out, missing))


def mismatches(before: Made, now: Made, step: int) -> Iterator[Mismatch]:
    """Yield a `Mismatch` for each setting that differs between two runs and affects the steps after `step`.

    `before` has the settings of the run that saved the checkpoint, `now` the settings of the run that loads it.
    """
    if before["model"] != now["model"]:
        yield Mismatch("model", before["model"], now["model"], _SETTINGS["model"])
    for key, value in now["settings"].items():
        if before["settings"].get(key) != value:
            yield Mismatch(key, before["settings"].get(key), value, _SETTINGS[key])
    if before["sequences_per_step"] != now["sequences_per_step"]:
        meaning = "each step takes other data"
        yield Mismatch("sequences of a step", before["sequences_per_step"], now["sequences_per_step"], meaning)
    if before["data"] != now["data"]:
        yield Mismatch(
            "training data", _data_text(before["data"]), _data_text(now["data"]), "other data or another tokenizer"
        )
    # One step is enough: another schedule usually changes all that follow.
    yield from islice(_schedule_mismatches(before["schedule"], now["schedule"], step), 1)
    if before["seed"] != now["seed"]:
        yield Mismatch("seed", before["seed"], now["seed"], "other random numbers")
    for name in _REBUILT:
        if before[name] != now[name]:
            meaning = "sums are rounded in another order"
            yield Mismatch(name, shown(before[name]), shown(now[name]), meaning, Agreement.ROUNDING)


def _schedule_mismatches(before: Made, now: Made, step: int) -> Iterator[Mismatch]:
    """Yield a `Mismatch` for each step after `step` whose learning rate differs, up to the end of the shorter schedule.

    At most `_SAMPLED_STEPS` steps are compared. If the earlier run had completed its schedule, only the starting rates
    of the two schedules can be compared.
    """
    last = min(length(before), length(now))
    for number in range(step + 1, min(last, step + _SAMPLED_STEPS) + 1):
        was, becomes = rate(before, number), rate(now, number)
        if was != becomes:
            yield Mismatch(f"learning rate of step {number}", f"{was:.4g}", f"{becomes:.4g}", "another schedule")
    if step >= last and before["lr"] != now["lr"]:
        yield Mismatch("optimizer.lr", f"{before['lr']:.4g}", f"{now['lr']:.4g}", "another schedule")


def length(schedule: Made) -> int:
    """Return the number of steps of a learning-rate schedule, which may be longer than the training."""
    return int(schedule.get("total_steps") or schedule["steps"])


def rate(schedule: Made, step: int) -> float:
    config = LRScheduler(**{key: value for key, value in schedule.items() if key not in ("steps", "lr")})
    return float(schedule["lr"]) * lr_factor(step, int(schedule["steps"]), config)


def _data_text(data: Made) -> str:
    return f"{data['bytes']:,} bytes (checksum {data['checksum']:08x})"


def shown(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return " x ".join(f"{name} {degree}" for name, degree in value.items() if degree > 1) or "one rank"
