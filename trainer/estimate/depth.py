"""Extrapolate a deep model's memory from two shallow models; it grows linearly with the number of equal layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.config import JobConfig
from trainer.config.checks import recompute_interval
from trainer.config.mesh import Part, model_parts
from trainer.config.shape import ModelArgs
from trainer.estimate.rehearsal import ENDS, rehearse
from trainer.estimate.tracker import Peak
from trainer.parallel.mesh import World


@dataclass(frozen=True)
class Shallow:
    """Two small numbers of layers, `few` and `more`, whose memory peaks are extrapolated to a model of `layers` layers.

    Example: the peak is 10 GiB with 4 layers and 12 GiB with 5. With 32 layers it is 10 + 2 * (32 - 4) = 66 GiB.
    """

    few: int
    more: int
    layers: int

    @classmethod
    def for_model(cls, layers: int, period: int, dense: int = 0) -> "Shallow | None":
        """Return the two numbers of layers to measure, `period` layers apart; None if the model has too few layers.

        The first `dense` layers differ from the layers after them, and are all kept. The kinds of layers repeat every
        `period` layers (such as dense and expert layers). So only whole periods are removed.
        """
        least = dense + 2 * max(ENDS, period)
        few = least + (layers - least) % period
        return cls(few, few + period, layers) if few + period < layers else None

    def peak(self, at_few: Peak, at_more: Peak) -> Peak | None:
        """Return the peak of the whole model, extrapolated from the peaks with `few` and `more` layers.

        Return None if a category is smaller with more layers. Then the two peaks occur at different instants of the
        step, and the extrapolated category could become negative.
        """
        times = (self.layers - self.few) // (self.more - self.few)  # without a remainder: see `for_model`
        holders = {
            key: at_few.holders.get(key, 0) + (at_more.holders.get(key, 0) - at_few.holders.get(key, 0)) * times
            for key in sorted({*at_few.holders, *at_more.holders})
        }
        peak = Peak(sum(holders.values()), holders)
        return without_negatives(peak) if min(peak.categories.values()) >= 0 else None


def without_negatives(peak: Peak) -> Peak:
    """Return the peak without modules below zero bytes; the sum of each category stays the same.

    Extrapolation makes a module negative if another module was running at the peak of the model with more layers. The
    missing bytes are taken from the modules with the most bytes in the category.
    """
    holders = dict(peak.holders)
    for category in peak.categories:
        mine = sorted((size, key) for key, size in holders.items() if key[0] == category)
        lacking = -sum(size for size, _ in mine if size < 0)
        for size, key in reversed(mine):
            taken = min(lacking, size) if size > 0 else size
            holders[key] = size - taken
            lacking -= max(taken, 0)
    return Peak(peak.total, holders)


def window_peaks(config: JobConfig, world: World, args: ModelArgs) -> dict[str, Peak]:
    """Return {window of a step: its peak memory}; a window is a part of a step, see `rehearsal.rehearse`.

    The peaks of a deep model are extrapolated from those of two shallow models. Windows of the first and last layers
    are enough, because the peaks of the layers between lie between theirs.
    """
    parts = model_parts(world.stage, args.n_layers, config.parallelism)
    if shallow := shallow_model(config, args, parts):
        few = rehearse(config, world, args, shortened(parts, shallow, shallow.few))
        more = rehearse(config, world, args, shortened(parts, shallow, shallow.more))
        peaks = {name: shallow.peak(peak, more[name]) for name, peak in few.items()}
        if all(peaks.values()):
            return {name: peak for name, peak in peaks.items() if peak}
    return rehearse(config, world, args, parts)


def shallow_model(config: JobConfig, args: ModelArgs, parts: Sequence[Part]) -> Shallow | None:
    """Return the numbers of layers to extrapolate from; None if `parts`, the parts of this rank, have too few."""
    interval, _ = recompute_interval(config.activation_checkpoint)
    period = math.lcm(max(interval, 1), getattr(args, "moe_every", 1))
    return Shallow.for_model(min(len(part.layers) for part in parts), period, getattr(args, "n_dense_layers", 0))


def shortened(parts: Sequence[Part], shallow: Shallow, layers: int) -> list[Part]:
    """Return `parts` with fewer layers: the smallest part keeps `layers` layers, all parts lose the same number."""
    return [replace(part, layers=part.layers[: len(part.layers) - shallow.layers + layers]) for part in parts]
