"""Decide the category of each block, such as gradients: the recorder's tag, or the first rule that matches."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Floats, Integers
from analyzers.memory.lifetimes import Lifetimes, Replay
from analyzers.memory.model import CategoryBasis
from analyzers.memory.rules import CATEGORY, CONFIDENCE, NUMBER_OF, RULES, apply_rules
from analyzers.memory.snapshot import CATEGORIES, UNTAGGED


@dataclass(frozen=True)
class Guess:
    """The category of each block, and the index in `RULES` of the rule that decided it; one row per row of `Lifetimes`.

    `exact` is True if the recorder tagged every block; then no category is a guess.
    """

    category: Column
    rule: Column
    exact: bool

    @cached_property
    def confidence(self) -> Floats:
        """How certain each block's category is, from 0 to 1."""
        return np.ones(len(self.rule)) if self.exact else CONFIDENCE[self.rule]

    def sums(self, lives: Lifetimes, rows: Integers) -> dict[str, int]:
        """Return {category name: bytes of some blocks}, with all categories; `rows` are the blocks' rows in `lives`."""
        totals = np.zeros(len(CATEGORIES), np.int64)
        # Unbuffered, and exact where np.bincount with weights would sum in floating point.
        np.add.at(totals, self.category[rows], lives.size[rows])
        return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True)}

    def mean_confidence(self, lives: Lifetimes, rows: Integers) -> float:
        """Return the mean confidence of the categories of some blocks, weighted by their bytes.

        `rows` are the rows of these blocks in `lives`. The result is 1.0 if the blocks have no bytes.
        """
        weights = lives.size[rows].astype(np.float64)
        return round(float(weights @ self.confidence[rows] / weights.sum()), 3) if weights.sum() else 1.0

    def bases(self, lives: Lifetimes, rows: Integers) -> list[CategoryBasis]:
        """Return, for each rule, the number and the bytes of the blocks that it categorised, the most bytes first.

        Only the blocks at `rows` of `lives` count. Rules that decided no block are left out.
        """
        total = np.bincount(self.rule[rows], lives.size[rows], len(RULES)).astype(np.int64)
        count = np.bincount(self.rule[rows], minlength=len(RULES))
        order = [number for number in np.argsort(-total, kind="stable").tolist() if count[number]]
        return [basis(number, int(total[number]), int(count[number])) for number in order]


def basis(number: int, total: int, blocks: int) -> CategoryBasis:
    """Return a `CategoryBasis` for rule `number` of `RULES`, which decided `blocks` blocks of `total` bytes."""
    rule = RULES[number]
    return CategoryBasis(
        rule=rule.name,
        category="" if rule.category is None else CATEGORIES[rule.category],
        because=rule.because,
        confidence=rule.confidence,
        bytes=total,
        blocks=blocks,
    )


def categorise(replay: Replay) -> Guess:
    lives, trace = replay.lifetimes, replay.trace
    tagged = lives.category != UNTAGGED
    exact = bool(trace.snapshot.recorder.get("exact")) or (bool(len(tagged)) and bool(tagged.all()))
    if trace.is_digested:
        return Guess(trace.lifetime("guess"), trace.lifetime("rule"), exact)
    rule = np.zeros(len(tagged), np.int8) if exact else apply_rules(trace, lives)
    rule[tagged] = NUMBER_OF["noted"]
    category = CATEGORY[rule]
    category[tagged] = lives.category[tagged]
    return Guess(category, rule, exact)
