"""Search for the fastest settings of a job that fit into memory, and print them as JSON.

WORLD_SIZE=64 python -m trainer.plan LIMIT MARGIN DEVICE COUNT --config FILE [--key value ...]
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from trainer.config import JobConfig, load
from trainer.errors import ConfigError, TrainerError
from trainer.plan.candidates import SPEEDS, Candidate, candidates, speed_of
from trainer.plan.search import Plan, Search

SECONDS = 60.0
"""The seconds after the beginning of the search within which measurements of memory may start."""
SPEED_MARGIN = 0.20
"""The relative difference of two estimated speeds within which the order of two plans is not known.

Measured with `benchmarks.advice.plan_order`; see docs/reference/accuracy.md.
"""
LARGEST_BATCH = 64
# A candidate of mode `selective`, because only this mode sets the key selective_ac_option.
SEARCHED = frozenset(Candidate(1, 1, 1, 1, 1, "selective", "op", 1, offload=False, dtype="float32").settings())


class Wish(NamedTuple):
    """The request for plans: `plans` choices of settings for a job on `world_size` ranks with devices of type `device`.

    A rank has `limit` bytes of memory; the fraction `margin` of it must stay free.
    """

    world_size: int
    limit: int
    margin: float
    device: str
    plans: int


def plan(config: JobConfig, kept: Sequence[str], wish: Wish) -> dict[str, object]:
    """Return the fastest settings that fit into memory, as a dict for JSON.

    Keys in `kept` keep their configured values.

    Raises:
        ConfigError: There is no such model or device.
    """
    if wish.device not in SPEEDS:
        raise ConfigError(f"no speeds are known of device {wish.device!r}", f"choose one of {', '.join(SPEEDS)}")
    began = time.monotonic()
    speed, usable = speed_of(wish.device, wish.world_size), wish.limit * (1 - wish.margin)
    search = Search(config, wish.world_size, usable, speed, began + SECONDS)
    choices = list(candidates(config, wish.world_size, kept, LARGEST_BATCH))
    plans = next(filter(None, (search.run(tier, wish.plans) for tier in tiers(choices, config))), [])
    complete = time.monotonic() < search.deadline
    larger = search.next_larger(plans[0], choices) if plans else None
    return {
        "world_size": wish.world_size,
        "model": f"{config.model.name} {config.model.flavor}",
        "parameters": search.model.parameters,
        "limit_bytes": wish.limit,
        "margin": wish.margin,
        "device": wish.device,
        "candidates": len(choices),
        "rehearsed": len(search.rehearsed),
        "complete": complete,
        "seconds": round(time.monotonic() - began, 1),
        "speed_margin": SPEED_MARGIN,
        "plans": [described(one) | {"rank": rank_of(one, plans)} for one in plans],
        "next_larger": described(larger) if larger else None,
        "smallest_bytes": min(search.rehearsed.values(), default=None),
        "validation_bytes": min(search.validations.values(), default=None),
    }


def tiers(choices: Sequence[Candidate], config: JobConfig) -> Iterator[list[Candidate]]:
    """Yield groups of candidates; the search tries a group only if nothing in the earlier groups fits into memory.

    The first group has the configured dtype of the weights, and no CPU offload unless it is configured. Later groups
    have CPU offload, which is slow, or bfloat16 weights, which change the results of the training.
    """
    own = config.training.dtype
    offloads = [False, True] if not config.training.enable_cpu_offload else [True]
    for dtype, offload in product(dict.fromkeys((own, "bfloat16")), offloads):
        if tier := [choice for choice in choices if (choice.dtype, choice.offload) == (dtype, offload)]:
            yield tier


def rank_of(one: Plan, plans: Sequence[Plan]) -> int:
    """Return the rank of a plan by its estimated speed: 1 more than the number of plans that are surely faster.

    A plan is surely faster if the estimates differ by more than `SPEED_MARGIN`. So several plans may have rank 1.
    """
    slowest = one.time.tokens_per_second * (1 + SPEED_MARGIN)
    return 1 + sum(other.time.tokens_per_second > slowest for other in plans)


def described(one: Plan) -> dict[str, object]:
    """Return a plan as a dict for JSON: its settings, its peak memory in bytes, and the estimated time of a step.

    The dict also has the tokens per step and per second, and the parts of the step time.
    """
    return {
        "settings": one.candidate.settings(),
        "peak_bytes": one.peak,
        "step_s": one.time.seconds,
        "tokens_per_s": one.time.tokens_per_second,
        "tokens_per_step": one.time.tokens,
        "time": {name: getattr(one.time, name) for name in ("compute", "tensor", "data", "bubble", "optimizer")},
    }


def given(arguments: Sequence[str]) -> list[str]:
    """Return the keys that a command-line flag sets and that the search would choose; the search keeps their values."""
    # `--section.no_name` turns the key section.name off.
    flags = [word.removeprefix("--").partition("=")[0].replace(".no_", ".") for word in arguments]
    return [key for key in sorted(SEARCHED) if key in flags]


def main() -> None:
    limit, margin, device, count, *arguments = sys.argv[1:]
    try:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        wish = Wish(world_size, int(limit), float(margin), device, int(count))
        print(json.dumps(plan(load(None, arguments), given(arguments), wish)))
    except TrainerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
