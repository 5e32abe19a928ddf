"""Define the structs of opportunities: possible changes that make a step shorter, each with the most time saved."""

from enum import StrEnum

import msgspec

from analyzers.report import Evidence


class OpportunityKind(StrEnum):
    """The reason why a step takes longer than necessary.

    For the kinds from `DATA_LOADER` to `LAUNCH` the device waits, and the kind is what the host did meanwhile. The
    other kinds are work of the device that could be shorter, except `IMBALANCE`: waiting for one rank.
    """

    DATA_LOADER = "data_loader"
    ALLOCATION = "allocation"
    COMPILATION = "compilation"
    PYTHON = "python"
    BUFFER_BROADCAST = "buffer_broadcast"
    SYNCHRONISING_CALL = "synchronising_call"
    LAUNCH = "launch"
    UNFUSED_ATTENTION = "unfused_attention"
    RECOMPUTATION = "recomputation"
    FLOAT32 = "float32"
    MISALIGNED = "misaligned"
    LAYOUT_COPIES = "layout_copies"
    PAGEABLE_COPIES = "pageable_copies"
    ELEMENTWISE = "elementwise"
    SMALL_COLLECTIVES = "small_collectives"
    BUS_BANDWIDTH = "bus_bandwidth"
    EXPOSED_COMMUNICATION = "exposed_communication"
    IMBALANCE = "imbalance"


class NamedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The number and total time of the events of one name in an opportunity, over the whole recording."""

    name: str
    count: int
    total_ns: int


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """A way to make a step shorter: something that takes time in each step, and how much of this time could be saved.

    `taken_ns` is the time that this takes per step. `saved_ns` is how much shorter the step would be in the best case:
    if it took no time, or only the time that the hardware needs. `saved_share` is `saved_ns` as a share of the step.
    `count` and `names` are over the whole recording. `measures` holds numbers of this kind only, such as
    `bus_bytes_per_s`.
    """

    kind: OpportunityKind
    count: int
    taken_ns: int
    saved_ns: int
    saved_share: float
    names: list[NamedTime] = []
    measures: dict[str, float] = {}


class Advice(Opportunity, frozen=True, kw_only=True):
    """An opportunity with advice in words, for the rank that can save most; `ranks` are all ranks that have it.

    `title` says what was seen, `next` what to change, and `check` how to see whether the change helped.
    """

    rank: int | None
    device: int | None
    ranks: list[int] = []
    title: str
    why: str
    next: str
    check: str
    evidence: list[Evidence] = []
