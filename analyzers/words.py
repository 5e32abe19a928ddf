"""Words that every room uses the same way: ranks as ranges, durations, places in the source."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath


def ranges(ranks: Iterable[int]) -> str:
    """`0-2, 5, 7-8` for {0, 1, 2, 5, 7, 8}."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def who(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-2, 5`."""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {ranges(ranks)}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form of a verb that goes with so many ranks."""
    return one if len(set(ranks)) == 1 else many


def counted(count: int, what: str) -> str:
    """`1 piece`, `3 pieces`."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def place(filename: str, line: int) -> str:
    """`data/text.py:41`: the file with its folder, and the line; native code may have none (0)."""
    return "/".join(PurePath(filename).parts[-2:]) + (f":{line}" if line else "")


def seconds(value: float) -> str:
    """A duration in s with a unit that fits its size."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{figures(value * factor)} {unit}"
    return f"{value * 1e9:.3g} ns"


def figures(value: float) -> str:
    """Three digits, more of a number that has more before its point: `:.3g` would turn to an exponent."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def mebibytes(count: float) -> str:
    """A size in MiB."""
    return f"{count / (1 << 20):.1f} MiB"


def signal_of(exit_code: int) -> str:
    """`killed by signal 9` for -9, `exit code 1` for 1."""
    return f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
