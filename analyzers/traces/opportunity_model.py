"""Define the structs of opportunities: possible changes that make a step shorter, each with the most time saved."""

from enum import StrEnum

import msgspec

from analyzers.report import Evidence


class OpportunityKind(StrEnum):
    """The reason why a step takes longer than necessary.

    In `data_loader`, `allocation`, `compilation`, `python`, `buffer_broadcast`, `synchronising_call` and `launch`, the
    device waits, and the kind is what the host does meanwhile. `imbalance` is waiting for one rank. The other kinds are
    work of the device that could be shorter: for example, `float64` and `float32` are products of such numbers, which
    tensor cores would multiply faster as TF32 or in 16 bits, `misaligned` are products with sizes that do not fit
    tensor cores, `exposed_copies` are copies during which nothing computes, `cross_entropy` is a loss that reads and
    writes large logits several times, and `elementwise` are pointwise kernels that a compiler could fuse.
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
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    MISALIGNED = "misaligned"
    LAYOUT_COPIES = "layout_copies"
    PAGEABLE_COPIES = "pageable_copies"
    EXPOSED_COPIES = "exposed_copies"
    CROSS_ENTROPY = "cross_entropy"
    ELEMENTWISE = "elementwise"
    SMALL_COLLECTIVES = "small_collectives"
    BUS_BANDWIDTH = "bus_bandwidth"
    EXPOSED_COMMUNICATION = "exposed_communication"
    IMBALANCE = "imbalance"


class FallbackReason(StrEnum):
    """The likely reason why `scaled_dot_product_attention` computed attention with its math kernel.

    `DIMENSIONS`: a tensor has not four dimensions. `TYPE`: no fused kernel has this type of elements. `DROPOUT`: the
    fused kernel of a CPU has no dropout. `VALUE_SIZE`: heads of values have another size than those of queries.
    `HEAD_SIZE`: the size of a head is no multiple of 16 bytes. `GROUPED`: `enable_gqa` with a mask or in float32.
    `MASK_GRADIENT`: a mask of numbers, which probably needs a gradient. `MASK`: there is a mask. `SETTING`: none of
    these, so a setting or the layout of the inputs. `UNKNOWN`: sizes and types were not recorded.
    """

    DIMENSIONS = "dimensions"
    TYPE = "type"
    DROPOUT = "dropout"
    VALUE_SIZE = "value_size"
    HEAD_SIZE = "head_size"
    GROUPED = "grouped"
    MASK_GRADIENT = "mask_gradient"
    MASK = "mask"
    SETTING = "setting"
    UNKNOWN = "unknown"


class NamedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one name in an opportunity: their number and total time over the whole recording."""

    name: str
    count: int
    total_ns: int


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """A way to make a step shorter: something that takes time in each step, and how much of this time could be saved.

    `taken_ns` is the time that it takes per step. `saved_ns` is how much shorter the step would be in the best case: if
    it took no time, or only the time that the hardware needs. `saved_share` is the same as a share of the step (0 to
    1). `count` is the number of its events, and `names` has the most important of them by name, both over the whole
    recording. `measures` has numbers that only this kind has, such as `bus_bytes_per_s`. `fallbacks` are the reasons
    why attentions that call the fused operator got its math kernel. `after` is the call after which most of the waiting
    begins, because the host waited in it until the device had nothing left to do: its operator, and the function in the
    user's own files around it, if known.
    """

    kind: OpportunityKind
    count: int
    taken_ns: int
    saved_ns: int
    saved_share: float
    names: list[NamedTime] = []
    measures: dict[str, float] = {}
    fallbacks: list[FallbackReason] | msgspec.UnsetType = msgspec.UNSET
    after: list[NamedTime] | msgspec.UnsetType = msgspec.UNSET


class Advice(Opportunity, frozen=True, kw_only=True):
    """An opportunity to make a step shorter, with advice; the numbers are those of the rank that can save most.

    `rank` and `device` are that rank and its device, and `ranks` are all ranks with this opportunity. `title` says what
    was seen, `why` gives the evidence in words, `next` says what to change, and `check` how to see whether the change
    helped.

    `taken_ns` is the time that it takes per step. `saved_ns` is how much shorter the step would be in the best case: if
    it took no time, or only the time that the hardware needs. `saved_share` is the same as a share of the step (0 to
    1). `count` is the number of its events, and `names` has the most important of them by name, both over the whole
    recording. `measures` has numbers that only this kind has, such as `bus_bytes_per_s`. `after` is the call after
    which most of the waiting begins.
    """

    rank: int | None
    device: int | None
    ranks: list[int] = []
    title: str
    why: str
    next: str
    check: str
    evidence: list[Evidence] = []
