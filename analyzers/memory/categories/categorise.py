"""What each block is: as the recorder noted it, else by rules, each with the confidence it deserves."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.memory.categories.rules import CATEGORY, CONFIDENCE, NUMBER_OF, RULES, ruled
from analyzers.memory.model import Basis
from analyzers.memory.reading.reader import CATEGORIES, CATEGORY_OF, UNTAGGED
from analyzers.memory.replay.lifetimes import Lifetimes, Replay

ACTIVATIONS, OPTIMIZER_STATE, TEMPORARY = (
    CATEGORY_OF[name] for name in ("activations", "optimizer_state", "temporary")
)


@dataclass(frozen=True)
class Guess:
    """A category and the number of the rule it rests on, for every row of `Lifetimes`; `exact` where all were noted."""

    category: Column
    rule: Column
    exact: bool

    @cached_property
    def confidence(self) -> Column:
        return np.ones(len(self.rule)) if self.exact else CONFIDENCE[self.rule]

    def sums(self, lives: Lifetimes, rows: Column) -> dict[str, int]:
        """Bytes of `rows` by category."""
        totals = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(totals, self.category[rows], lives.size[rows])
        return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True)}

    def certainty(self, lives: Lifetimes, rows: Column) -> float:
        """Mean confidence over the bytes of `rows`."""
        weights = lives.size[rows].astype(np.float64)
        return round(float(weights @ self.confidence[rows] / weights.sum()), 3) if weights.sum() else 1.0

    def bases(self, lives: Lifetimes, rows: Column) -> list[Basis]:
        """What the categories of `rows` rest on, the largest part first; all the bytes are in one of them."""
        held = np.bincount(self.rule[rows], lives.size[rows], len(RULES)).astype(np.int64)
        count = np.bincount(self.rule[rows], minlength=len(RULES))
        return [
            Basis(
                rule=RULES[number].name,
                category=RULES[number].category,
                because=RULES[number].because,
                confidence=RULES[number].confidence,
                bytes=int(held[number]),
                blocks=int(count[number]),
            )
            for number in np.argsort(-held, kind="stable")
            if count[number]
        ]


def categorise(replay: Replay) -> Guess:
    """The category of every block that ever lived in the trace."""
    lives, trace = replay.lifetimes, replay.trace
    noted = lives.category != UNTAGGED
    exact = bool(trace.snapshot.columns.meta["ours"].get("exact")) or (bool(len(noted)) and bool(noted.all()))
    if trace.digested:
        return Guess(trace.life("kind"), trace.life("rule"), exact)
    rule = np.zeros(len(noted), np.int8) if exact else ruled(trace, lives)
    rule[noted] = NUMBER_OF["noted"]
    category = CATEGORY[rule]
    category[noted] = lives.category[noted]
    return Guess(category, rule, exact)
