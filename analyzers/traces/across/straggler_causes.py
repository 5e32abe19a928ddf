"""Why a rank has more to do than the others: which part of its own work grew, told with numbers."""

import re
from collections.abc import Sequence
from statistics import median_low

from analyzers.traces.across.matching import MEASURES
from analyzers.traces.across.rank_waits import RankComparison
from analyzers.traces.structs import RankTrace
from analyzers.words import duration_ns, share

HALF = 0.5
CAUSES = {
    "compute_ns": "compute",
    "copy_ns": "copies",
    **{name: name.removesuffix("_ns") for name in MEASURES[5:]},
}
TOLD = {
    "copies": "Its memory copies take longer.",
    "gc": "It collects garbage meanwhile.",
    "data": "It waits for its input data.",
    "host": "It launches late, and no recorded operator or annotation accounts for it.",
    "mixed": "No single part of its work accounts for it.",
}
GEMM = re.compile(r"gemm|cutlass|xmma|cublas|Cijk|aten::(add)?mm|aten::bmm", re.IGNORECASE)
ANY = re.compile("")
MORE, NAME_AT_MOST = 1.02, 60


def cause_of(more: dict[str, int]) -> tuple[str, dict[str, int]]:
    """The class that covers most of the excess, and the excess of each; the rest is the host's."""
    total = more["work_ns"]
    causes = {cause: more[name] for name, cause in CAUSES.items()}
    phases = sum(max(value, 0) for cause, value in causes.items() if cause not in ("compute", "copies"))
    causes["host"] = total - max(causes["compute"], 0) - max(causes["copies"], 0) - phases
    named = max(causes, key=lambda cause: (min(causes[cause], total), cause not in ("compute", "host")))
    share = causes[named] / total
    return (named if share >= HALF else "mixed"), {cause: ns for cause, ns in causes.items() if ns > 0}


def detail(one: RankComparison, place: int, cause: str) -> str:
    """A sentence on the cause, with numbers."""
    accounts = [recording.account for recording in one.late.met.recordings]
    mine, others = accounts[place], [account for i, account in enumerate(accounts) if i != place]
    if cause == "compute":
        return computing(mine, others)
    return TOLD.get(cause, f"It spends the time in {cause}.")


def computing(mine: RankTrace, others: Sequence[RankTrace]) -> str:
    """Whether the same kernels are slower, and by how much, or there are more of them; and which grew most."""
    products, ratio = (factor(mine, others, pattern) for pattern in (GEMM, ANY))
    events = median_low(account.device_events for account in others)
    what = "kernels" if mine.source == "device" else "operators"
    name, growth = grown(mine, others)
    most = f"most of all {name[:NAME_AT_MOST]} (+{duration_ns(growth)})" if growth > 0 else "none of them by much"
    if mine.device_events > MORE * events:
        return f"It runs {mine.device_events} {what}, the others {events}: it has more work, {most}."
    told = f", its matrix products {share(products - 1, 1)}" if products else ""
    return f"It runs the same {what} {share(ratio - 1, 1)} slower{told}, {most}: a slower device or bigger inputs."


def grown(mine: RankTrace, others: Sequence[RankTrace]) -> tuple[str, int]:
    """The computing kernel whose total exceeds the median of the others by most, and by how much, in ns."""
    totals = [{k.name: k.total_ns for k in account.kernels if k.kind == "compute"} for account in [mine, *others]]
    growth = {name: own - median_low(one.get(name, 0) for one in totals[1:]) for name, own in totals[0].items()}
    return max(growth.items(), key=lambda pair: pair[1], default=("", 0))


def factor(mine: RankTrace, others: Sequence[RankTrace], pattern: re.Pattern[str]) -> float:
    """How many times as long this rank's computing kernels of a kind take as the median of the others'; 0: unknown."""

    def total(account: RankTrace) -> int:
        chosen = (k for k in account.kernels if k.kind == "compute" and pattern.search(k.name))
        return sum(kernel.total_ns for kernel in chosen)

    typical = median_low(total(account) for account in others)
    return total(mine) / typical if typical else 0.0
