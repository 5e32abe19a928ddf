"""Deep models from shallow ones: layers are alike, so that what a step holds grows evenly with their number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.config import JobConfig
from trainer.estimate.pipeline import Part, parts_of
from trainer.estimate.rehearsal import ENDS, Pretended, rehearse
from trainer.estimate.tracker import Peak
from trainer.parallel.activation_checkpoint import interval


@dataclass(frozen=True)
class Shallow:
    """Two numbers of layers from which the moments of `layers` follow."""

    few: int
    more: int
    layers: int

    @classmethod
    def of(cls, layers: int, period: int) -> "Shallow | None":
        """None where the model is shallow itself. Every `period` layers look alike: whole periods are left out."""
        least = 2 * max(ENDS, period)
        few = least + (layers - least) % period
        return cls(few, few + period, layers) if few + period < layers else None

    def peak(self, at_few: Peak, at_more: Peak) -> Peak | None:
        """The same moment of the whole model; None if the two are not the same moment, so that a category vanishes."""
        times = (self.layers - self.few) / (self.more - self.few)
        names = {*at_few.categories, *at_more.categories}
        held = {name: (at_few.categories.get(name, 0), at_more.categories.get(name, 0)) for name in sorted(names)}
        categories = {name: round(few + (more - few) * times) for name, (few, more) in held.items()}
        return Peak(sum(categories.values()), categories) if min(categories.values()) >= 0 else None


def windows(config: JobConfig, world: Pretended, args: Any) -> dict[str, Peak]:
    """The highest moment of each window of a step; see `rehearsal.rehearse`.

    Every moment of a layer in the middle lies between those of the layers at the ends, which is why these suffice.
    """
    parts = parts_of(world.stage, args.n_layers, config.parallelism)
    every, _ = interval(config.activation_checkpoint)
    period = math.lcm(max(every, 1), getattr(args, "moe_every", 1))
    shallow = Shallow.of(min(len(part.layers) for part in parts), period)
    if shallow:
        few, more = (rehearse(config, world, args, shortened(parts, shallow, to)) for to in (shallow.few, shallow.more))
        found = {name: shallow.peak(peak, more[name]) for name, peak in few.items()}
        if all(found.values()):
            return {name: peak for name, peak in found.items() if peak}
    return rehearse(config, world, args, parts)


def shortened(parts: Sequence[Part], shallow: Shallow, layers: int) -> list[Part]:
    """The parts, as many layers left out of each as it takes for the smallest to have so many."""
    return [replace(part, layers=part.layers[: len(part.layers) - shallow.layers + layers]) for part in parts]
