"""Define the quantities that columns of other trainers' logs stand for, and the sources of step numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np

from analyzers.columns import Column, Floats, Mask


class Quantity(StrEnum):
    """A quantity that a column in a log of another trainer can stand for.

    `memory` and `reserved_memory` are the memory that PyTorch allocated and reserved. `data_time` is the time spent
    waiting for data. `time` is the clock time at which a row was written.
    """

    STEP = "step"
    LOSS = "loss"
    LEARNING_RATE = "learning_rate"
    GRAD_NORM = "grad_norm"
    STEP_TIME = "step_time"
    STEP_RATE = "steps_per_s"
    TOKENS_PER_S = "tokens_per_s"
    MEMORY = "memory"
    RESERVED = "reserved_memory"
    DATA_TIME = "data_time"
    EPOCH = "epoch"
    RANK = "rank"
    CLOCK = "time"


class NumberedBy(StrEnum):
    """The source of the step numbers of a log's rows.

    `column`: a column of the log has them. `epoch`: the number of the epoch is used. `line`: the rows are counted.
    """

    COLUMN = "column"
    EPOCH = "epoch"
    LINE = "line"


# Find the quantity and unit that the name of a column stands for, by aliases of the quantities that trainers log.
#
# A name is split into words (`MaxMemAllocated`, `max-mem allocated` and `max_mem_allocated` are the same). A unit at
# the end is removed (`step_time_ms`, `Step Time (s)`, `train_step_timing in s`). Words at the beginning that only say
# "training" are removed, too. The rest is looked up in the aliases, which are in order of preference.
#
# Example: `trainer/global_step` -> step; `Elapsed time per iteration (ms)` -> step_time in ms; `val/loss` -> nothing,
# because it is not a training loss.

_SCOPES = {"train", "training", "trainer", "metrics", "metric", "log", "logs", "scalars", "optim", "perf", "stats"}
"""Words at the beginning of a column's name which only say that the column belongs to training."""
_OTHER_SPLITS = {"eval", "evaluation", "val", "valid", "validation", "test", "dev", "ema", "best"}
"""Words which show that a column is not about training steps, as in the name of a validation loss."""
_STATISTICS = {"min", "std", "var", "median"}
"""Words at the end of a name which show a statistic that is logged beside the value itself, such as `loss_std`."""

_ALIASES: Mapping[Quantity, tuple[str, ...]] = {
    Quantity.STEP: (
        "global_step", "global_steps", "num_updates", "current_steps?", "optimizer_steps?", "step", "iteration", "iter",
        "iter_num", "global_iteration", "num_steps", "steps", "batch", "batch_idx", "n_iter", "it",
    ),
    Quantity.LOSS: (
        "loss", "total_loss", "loss_total", "loss_train_total", "loss_train", "loss_step", "lm_loss",
        "reduced_train_loss", "cross_entropy_loss", "ce_loss", "loss_ce", "nll_loss",
        "(?:loss_metrics_)?global_avg_loss",
        "(?:avg|mean|average|batch|running|smoothed)_loss", "loss_(?:avg|mean)", "loss_epoch", "nll", "cross_entropy",
        "language_cross_entropy",
    ),
    Quantity.LEARNING_RATE: (
        "learning_rate", "lr", "(?:learning_rate|lr)_(?:\\w+_)?(?:group|pg)_?[01]", "lr_\\w+", "base_lr",
        "(?:actor|optimizer)_lr", "learning_rate_\\w+", "lr_abs",
    ),
    Quantity.GRAD_NORM: (
        "grad_norm", "gradient_norm", "gnorm", "total_grad_norm", "(?:global_)?grad_norm(?:_total|_all)?",
        "global_grad_norm", "l2_norm_grad_global", "(?:actor|optimizer)_grad_norm", "grad_l2_norm", "norm",
    ),
    Quantity.STEP_TIME: (
        "step_time", "iter(?:ation)?_time", "time_per_(?:step|iter|iteration|batch)",
        "elapsed_time_per_(?:step|iteration)", "step_timing", "step_duration", "batch_time", "sec_per_(?:step|iter)",
        "s_per_it(?:er)?", "timing_s_step", "timing_step", "time_metrics_end_to_end", "step_s", "dt", "step_avg",
        "time",        "duration", "elapsed",
    ),
    Quantity.STEP_RATE: (
        "(?:steps?|iter|iters|iterations?|it|its|batches)_per_s(?:ec|econd)?", "throughput_batches_per_sec", "ups",
    ),
    Quantity.TOKENS_PER_S: (
        "(?:tokens?|tok|toks|tks)_per_s(?:ec|econd)?", "throughput_tokens_per_sec(?:ond)?", "throughput_tps", "tps",
        "wps",
        "(?:tokens?|tok)_per_s(?:ec|econd)?_per_(?:gpu|device|rank)",
        "throughput_device_tokens_per_sec(?:ond)?", "tgs",
    ),
    Quantity.MEMORY: (
        "(?:memory_)?(?:max|peak)_(?:gpu_|cuda_|device_)?(?:mem|memory)_(?:allocated|alloc|active)",
        "(?:memory_)?(?:max|peak)_(?:allocated|active)(?:_mem|_memory)?",
        "(?:system_)?(?:max|peak)_(?:gpu_|cuda_|device_)?(?:mem|memory)(?:_used|_usage)?",
        "(?:mem|memory)_(?:peak|max)", "(?:mem|memory)_(?:allocated|alloc|active)",
        "(?:memory_)?current_(?:allocated|active)_mem",
        "(?:gpu|cuda|device|vram)_(?:mem|memory)(?:_used|_usage)?",
        "mem", "memory", "vram",
    ),
    Quantity.RESERVED: (
        "(?:memory_)?(?:max|peak)_(?:gpu_|cuda_)?(?:mem|memory)?_?reserved(?:_mem|_memory)?", "(?:mem|memory)_reserved",
        "reserved_(?:mem|memory)", "(?:memory_)?current_reserved_mem",
    ),
    Quantity.DATA_TIME: (
        "(?:data|dataloader|data_loading|dataloading)_time", "time_metrics_data_loading", "data_loading", "data_wait",
    ),
    Quantity.EPOCH: ("epoch", "epochs", "current_epoch", "epoch_num"),
    Quantity.RANK: ("rank", "global_rank"),
    Quantity.CLOCK: ("timestamp", "wall_time", "walltime", "unix_time", "time_unix", "log_time"),
}  # fmt: skip
"""{quantity: regular expressions for names of its column}, the preferred ones first; `_` joins the words of a name."""

TIME_UNITS = {
    "ns": 1.0, "us": 1e3, "ms": 1e6, "msec": 1e6, "msecs": 1e6, "millis": 1e6, "milliseconds": 1e6, "s": 1e9,
    "sec": 1e9, "secs": 1e9, "seconds": 1e9, "second": 1e9, "minutes": 6e10, "hours": 3.6e12,
}  # fmt: skip
"""{unit of time: its length in ns}."""
SIZE_UNITS = {
    "b": 1.0, "byte": 1.0, "bytes": 1.0, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30,
    "gib": 1 << 30, "tb": 1 << 40, "tib": 1 << 40, "m": 1 << 20, "g": 1 << 30,
}  # fmt: skip
"""{unit of memory: its size in bytes}.

Training code divides by 1024 whatever it calls the result, so GB is read as GiB.
"""
UNITS_OF: Mapping[Quantity, Mapping[str, float]] = {
    Quantity.STEP_TIME: TIME_UNITS,
    Quantity.DATA_TIME: TIME_UNITS,
    Quantity.CLOCK: TIME_UNITS,
    Quantity.MEMORY: SIZE_UNITS,
    Quantity.RESERVED: SIZE_UNITS,
}
_IMPLIED_UNITS = {"timing_s_step": "s", "sec_per_step": "s", "sec_per_iter": "s", "s_per_it": "s", "s_per_iter": "s"}
"""{name: its unit}, for names that have their unit in the middle."""
COMPILED = {quantity: tuple(map(re.compile, patterns)) for quantity, patterns in _ALIASES.items()}
_PER_SECOND = re.compile(r"(?:/|\bper\s*)s(?:ec|econd)?s?\b")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BINARY_UNIT = re.compile(r"(?<![A-Za-z])[KMGT]i?B(?![A-Za-z])")
_BOUNDARY = re.compile(r"[^a-z0-9%]+")
_RUN_PREFIX = re.compile(r"^.{1,100}? - (?=\S)")
"""Matches the name of the run, which precedes each column's name in a table exported from wandb."""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a column's name: a quantity and its unit (empty if the name does not contain it).

    If several columns stand for one quantity, the column with the lowest `preference` is used (0 is the best).
    """

    quantity: Quantity
    preference: int
    unit: str = ""


@lru_cache(maxsize=4096)
def meaning_of(name: str) -> Meaning | None:
    """Return the quantity and unit that the name of a column stands for.

    The result is None if the name stands for no known quantity of a training step.
    """
    words = words_of(_RUN_PREFIX.sub("", name))
    if not words or _OTHER_SPLITS.intersection(words) or words[-1] in _STATISTICS:
        return None
    # The peak of memory is the quantity itself; any other maximum is a statistic beside it.
    if words[-1] == "max" and words[0] not in ("memory", "mem"):
        return None
    words, unit = split_unit(words)
    whole, scoped = "_".join(words), "_".join(_without_scope(words))
    for quantity, patterns in COMPILED.items():
        for preference, pattern in enumerate(patterns):
            if pattern.fullmatch(scoped) or pattern.fullmatch(whole):
                known = unit if unit in UNITS_OF.get(quantity, ()) else ""
                return Meaning(quantity, preference, known or _IMPLIED_UNITS.get(scoped, ""))
    return None


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case; a rate such as `tokens/s` has the words `tokens per s`."""
    # In lower case first, because CAMEL would split `GiB` into two words.
    spelled = _CAMEL.sub("_", _BINARY_UNIT.sub(lambda match: match[0].lower(), name.strip()))
    return [word for word in _BOUNDARY.split(_PER_SECOND.sub(" per s", spelled.lower())) if word]


def split_unit(words: list[str]) -> tuple[list[str], str]:
    """Return the words of a name without the unit at their end, and this unit (empty if there is none)."""
    # After `per` the last word belongs to a rate, as in tokens per s.
    if len(words) < 2 or words[-2] == "per" or not (words[-1] in TIME_UNITS or words[-1] in SIZE_UNITS):
        return words, ""
    kept = words[:-1]
    return (kept[:-1] if kept[-1] == "in" and len(kept) > 1 else kept), words[-1]


def _without_scope(words: list[str]) -> list[str]:
    """Return the words of a column's name without leading words that only say "training", such as `train`."""
    begin = 0
    while begin < len(words) - 1 and words[begin] in _SCOPES:
        begin += 1
    return words[begin:]


COLUMNS_AT_MOST = 512
"""The most columns of one file that are read; a hostile header might have a million."""
_NAME_LENGTH = 200


@dataclass
class RawTable:
    """A log in its original form: float64 columns under the writer's names, NaN if a row has no value.

    `written_nan` is {column: mask of the rows in which NaN itself was written}. `texts` has the names of columns whose
    values are not numbers. `omitted` counts the values (in CSV, the columns) beyond the first COLUMNS_AT_MOST columns.
    `damaged` counts unreadable lines. `torn` is whether the last line is truncated.
    """

    columns: dict[str, Floats] = field(default_factory=dict)
    written_nan: dict[str, Mask] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    omitted: int = 0
    damaged: int = 0
    torn: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def stored(self, file: int) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the columns under names that the cache can store, and the rest of the table as data for JSON.

        `file` is the index of the log among the logs read together; the index becomes a part of the names.
        """
        names = list(self.columns)
        columns: dict[str, Column] = {f"raw{file}.{i}": self.columns[name] for i, name in enumerate(names)}
        columns |= {f"nan{file}.{names.index(name)}": mask for name, mask in self.written_nan.items()}
        meta = {"names": names, "texts": self.texts, "omitted": self.omitted}
        return columns, {"headers": [], "torn": self.torn, "damaged": self.damaged, "raw": meta}

    @classmethod
    def from_stored(cls, columns: Mapping[str, Column], meta: Mapping[str, Any], file: int) -> "RawTable":
        """Return the table of the log with index `file` from the columns and the data that `stored` returned."""
        names = meta["raw"]["names"]
        return cls(
            {name: columns[f"raw{file}.{i}"] for i, name in enumerate(names)},
            {name: columns[f"nan{file}.{i}"] for i, name in enumerate(names) if f"nan{file}.{i}" in columns},
            meta["raw"]["texts"],
            meta["raw"]["omitted"],
            meta["damaged"],
            meta["torn"],
        )


class RowCollector:
    """Builds a `RawTable` from rows of named numbers.

    If a name occurs only in some rows, its value in the other rows is NaN.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}
        self._texts: dict[str, None] = {}
        self.count = 0
        self.omitted = 0

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.set(self.count, name, value)
        self.count += 1

    def set(self, row: int, name: str, value: float) -> None:
        """Set the value of column `name` in row number `row`; the row may also be a new one after the last row."""
        # Most names are known, and need no shortening.
        if name not in self._values and (name := shortened(name)) not in self._values:
            if len(self._values) >= COLUMNS_AT_MOST:
                self.omitted += 1
                return
            self._rows[name], self._values[name] = [], []
        self._rows[name].append(row)
        self._values[name].append(value)

    def note_text(self, name: str) -> None:
        if len(self._texts) < COLUMNS_AT_MOST:
            self._texts[shortened(name)] = None

    def table(self) -> RawTable:
        """Return the collected rows as a table of columns."""
        table = RawTable(texts=[name for name in self._texts if name not in self._values], omitted=self.omitted)
        for name, values in self._values.items():
            rows, numbers = np.array(self._rows[name], dtype=np.int64), np.array(values, dtype=np.float64)
            table.columns[name] = column = np.full(self.count, np.nan)
            column[rows] = numbers
            if (broken := np.isnan(numbers)).any():
                table.written_nan[name] = mask = np.zeros(self.count, dtype=bool)
                mask[rows[broken]] = True
        return table


def shortened(name: str) -> str:
    return name[:_NAME_LENGTH].encode("utf-8", "replace").decode()


def first_present(columns: Sequence[Floats], count: int) -> Floats:
    """Return, for each of `count` rows, the first value of `columns` that is not NaN in this row; else NaN."""
    whole = np.full(count, np.nan)
    for column in columns:
        whole = np.where(np.isnan(whole), column, whole)
    return whole
