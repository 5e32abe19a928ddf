"""Format numbers, ranks and source lines as text; all sentences, tables and charts use these functions.

So 12.6 minutes are "12.6 min" in every user interface, and never "754 s". An unknown value is None, and "unknown" in
text.
"""

import re
import signal
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import floor, isfinite, log10
from pathlib import PurePath

UNKNOWN = "unknown"
IN_NO_PHASE = "in no phase"
"""The name under which the time of a step outside of all phases is listed."""
SMALLEST_SHARE = 0.0005
"""A share below this is written as `< 0.1 %`, and a change below it as `0 %`."""
_FEWEST_OF_PATTERN = 5
"""The fewest ranks that are written as a pattern; fewer are listed."""
AS_MULTIPLE_FROM = 9.0
"""A relative change of at least this, ten times the value before, is written as a multiple instead of a percentage."""
_GROUPED_FROM = 10_000
"""Counts of at least this have commas between their thousands: `1234`, but `12,345`."""
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_PLAIN_WORD, _CAPITAL_WORD = re.compile(r"[a-z]+(?=[\s,:;']|$)"), re.compile(r"[A-Z][a-z]*(?=[\s,:;']|$)")
_COMMANDS = re.compile(
    r"(?:pip|uv|conda|docker|ulimit|mpirun|srun|sbatch|scontrol|squeue|export|python|git|apt|dmesg|torchrun|kubectl|ray|df|ls"
    r"|transformers|accelerate|deepspeed|torch|numpy|vllm|trl|peft|bitsandbytes|xformers)(?=[\s,:;])"
)
"""Matches the commands and packages whose names begin a sentence as they are."""
_PROPER_NAMES = ("Python ", "Slurm ", "Flight Recorder")
_TICK_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (on AMD GPUs: PyTorch 2.12 and ROCm 7 or later)"
"""The allocator's setting against fragmentation, which several analyzers advise.

Older versions ignore it on AMD GPUs (pull request 177974 of PyTorch).
"""
LOAD_ON_HOST = 'torch.load(..., map_location="cpu", mmap=True), or in place with torch.distributed.checkpoint'
"""How to load a checkpoint without a second copy of it on the device."""
EXPANDABLE_SEGMENTS_ON_AMD = "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True (from PyTorch 2.12 and ROCm 7 on)"
"""The same setting where the GPU is known to be AMD's."""


def size(count: float | None) -> str:
    """Return a number of bytes in the binary unit with at most four digits before the point: `3.0 GiB`, `512 B`."""
    if count is None:
        return UNKNOWN
    power = 0
    # Rounding can reach the next unit: 1023.96 MiB reads 1.0 GiB, not 1024.0 MiB.
    while power + 1 < len(SIZE_UNITS) and abs(round(count, 1 if power else 0)) >= 1024:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {SIZE_UNITS[power]}" if power else f"{count:.0f} B"


def size_change(count: float) -> str:
    return f"{sign(count)}{size(abs(count))}"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that fits, with three digits: `870 ns`, `12.3 ms`, `95.0 s`, `12.6 min`, `3.4 h`."""
    if seconds is None:
        return UNKNOWN
    length = abs(seconds)
    if length >= 2 * _HOUR_S:
        return f"{seconds / _HOUR_S:.1f} h"
    if length >= 2 * _MINUTE_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if length * factor >= 0.9995:  # 999.6 µs round to 1 ms
            return f"{figures(seconds * factor)} {unit}"
    return f"{figures(seconds * 1e9)} ns" if seconds else "0 s"


def duration_ns(nanoseconds: float | None) -> str:
    return UNKNOWN if nanoseconds is None else duration(nanoseconds / 1e9)


def duration_change_ns(nanoseconds: float) -> str:
    return f"{sign(nanoseconds)}{duration_ns(abs(nanoseconds))}"


def sign(difference: float) -> str:
    return "-" if difference < 0 else "+" if difference else ""


def tick_durations(ticks_ns: Sequence[float], distance_ns: float, length_ns: float) -> list[str]:
    """Return the labels of ticks on a time axis, all in the unit that fits the axis: `571.0 ms`, `571.5 ms`.

    They have enough decimals to distinguish ticks that are `distance_ns` apart: with three digits, 571.5 and 572.0
    would be equal. A larger unit is used if it needs two decimals at most: `13.4 s` rather than `13400 ms`. `length_ns`
    is the length of the axis.
    """
    longest = max(length_ns, min(max(map(abs, ticks_ns), default=0), distance_ns * 100))
    unit, scale = next((unit for unit in _TICK_UNITS if longest >= unit[1]), _TICK_UNITS[-1])
    decimals = max(0, -floor(log10(distance_ns / scale)))
    return [f"{ns / scale:.{decimals}f} {unit}" for ns in ticks_ns]


def waiting_time(seconds: float | None) -> str:
    """Return a waiting time, rounded for a person: `26 s`, `12 min`, `3.4 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE_S:.0f} min" if seconds < 2 * _HOUR_S else f"{seconds / _HOUR_S:.1f} h"


def figures(value: float) -> str:
    """Return a number with three significant digits, or all digits before its point if it has more: `1.85`, `1234`."""
    length = abs(value)
    decimals = 2 if length < 9.995 else 1 if length < 99.95 else 0
    # Below 1 three digits need more places: 0.00123 would read 0.00.
    return f"{value:.{decimals}f}" if length >= 0.9995 or not value else f"{value:.3g}"


def percent(part: float | None) -> str:
    """Return a fraction as a percentage without decimals, except below 10 and from 99 to 100.

    `0.4215` is `42 %`, `0.032` is `3.2 %`, `0.9994` is `99.9 %` (only 1.0 is 100 %), `0.00001` is `< 0.1 %`.
    """
    if part is None:
        return UNKNOWN
    value = 100 * abs(part)
    sign = "-" if part < 0 else ""
    if 0 < value < 100 * SMALLEST_SHARE:
        return f"< {sign}0.1 %"
    if 99.0 < value < 100.0:
        return f"{sign}{min(value, 99.9):.1f} %"
    text = f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
    return f"{sign}{text.removesuffix('.0')} %"


def relative(difference: float) -> str:
    if not difference:
        return "0"
    return percent(difference) if 1e-3 <= difference < float("inf") else f"{difference:.0e}"


def relative_pair(smaller: float, larger: float) -> tuple[str, str]:
    if smaller < 1e-5 or not 1e-3 <= larger < float("inf"):
        return relative(smaller) if smaller < 1e-3 else f"{smaller:.0e}", f"{larger:.0e}"
    return f"{100 * smaller:.1g} %" if smaller < 1e-3 else percent(smaller), percent(larger)


def share(part: float, whole: float) -> str:
    return percent(part / whole if whole else 0.0)


def signed_percent(change: float) -> str:
    """Return a relative change with its sign: `+140 %` for 1.4, `-3 %` for -0.03; `0 %` if it rounds to zero.

    If the new value is ten times the old one or more, the text is a multiple: `512 times as much` for 511, because
    nobody understands `+51083 %`.
    """
    if change >= AS_MULTIPLE_FROM:
        return f"{multiple(change)} as much"
    if abs(change) < SMALLEST_SHARE:
        return percent(0.0)
    return percent(change) if change < 0 else f"+{percent(change)}"


def multiple(change: float) -> str:
    return f"{number(round(change + 1)) if isfinite(change) else 'infinitely many'} times"


def percent_change(before: float, after: float) -> str:
    if not before:
        return UNKNOWN
    return signed_percent(after / before - 1)


def flops(count: float | None, per: str = "") -> str:
    """Return a number of floating-point operations as `989 TFLOP`; with `per="/s"` as a rate."""
    if count is None:
        return UNKNOWN
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{figures(count / factor)} {prefix}FLOP{per}"
    return f"{count:.0f} FLOP{per}"


def bandwidth(bytes_per_s: float | None) -> str:
    """Return a rate in bytes per second in decimal units, as in data sheets and nccl-tests: `12.3 GB/s`, `164 kB/s`."""
    if bytes_per_s is None:
        return UNKNOWN
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bytes_per_s >= factor:
            return f"{figures(bytes_per_s / factor)} {prefix}B/s"
    return f"{bytes_per_s:.0f} B/s"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as text with consecutive ranks joined: `0-2, 5, 7-8` for {0, 1, 2, 5, 7, 8}."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def rank_pattern(ranks: Sequence[int]) -> str:
    """Return the ranks of a process group as text: `0-504, every 8th` if many ranks are equally far apart.

    Other ranks are written as by `rank_ranges`.
    """
    ordered = sorted(set(ranks))
    distances = {b - a for a, b in pairwise(ordered)}
    if len(ordered) < _FEWEST_OF_PATTERN or len(distances) > 1 or distances == {1}:
        return rank_ranges(ordered)
    distance = distances.pop()
    return f"{ordered[0]}-{ordered[-1]}, every {distance}{_ordinal_ending(distance)}"


def _ordinal_ending(number: int) -> str:
    return "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def rank_names(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {rank_ranges(ranks)}"


def process_group(label: str | None) -> str:
    name = (label or "").removeprefix("group ").strip()
    return f"process group {name}" if name else "a process group"


def numbered(operation: str, seq: int | None) -> str:
    return operation if seq is None or seq < 0 else f"{operation} #{seq}"


def ranks_label(ranks: object) -> str:
    return f"{'rank' if str(ranks).isdigit() else 'ranks'} {ranks}"


def ranks_beside(text: str, ranks: Sequence[int]) -> str:
    """Return ranks in parentheses, to follow a text about them: ` (rank 3)`; empty if the text already names them."""
    names = rank_names(ranks)
    return f" ({names})" if ranks and not re.search(rf"\b{re.escape(names)}(?![-\d]|, \d)", text, re.IGNORECASE) else ""


def agree(ranks: Sequence[int], singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with the number of ranks: `agree([3], "waits", "wait")` is `waits`."""
    return singular if len(set(ranks)) == 1 else plural


def number(count: int) -> str:
    return f"{count:,}" if abs(count) >= _GROUPED_FROM else str(count)


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural if needed: `1 piece`, `3 pieces`, `2 entries`, `2 losses`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith(("ry", "py")):
        return f"{number(count)} {noun[:-1]}ies"
    return f"{number(count)} {noun}{'es' if noun.endswith('s') else 's'}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{number(count)} times"


def capitalised(text: str) -> str:
    """Return a sentence with a capital first letter: `Rank 3 is late`.
    A name such as `torch.compile`, or a command such as `pip install`, is not changed.
    """
    return text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) and not _COMMANDS.match(text) else text


def uncapitalised(text: str) -> str:
    """Return a sentence with a small first letter, to follow a colon or semicolon.
    A name such as `NCCL` is not changed.
    """
    return text[:1].lower() + text[1:] if _CAPITAL_WORD.match(text) and not text.startswith(_PROPER_NAMES) else text


def full_sentence(text: str) -> str:
    """Return a text with a capital first letter and a full stop, each added only if it is missing."""
    return f"{capitalised(text)}." if text and text[-1] not in ".!?:…" else capitalised(text)


def joined_sentences(sentences: Sequence[str]) -> str:
    """Return several sentences as one, joined by semicolons: `Rank 3 is late; memory grows`."""
    return "; ".join([*sentences[:1], *map(uncapitalised, sentences[1:])])


def source_line(filename: str, line: int) -> str:
    """Return a source line as `data/text.py:41`: the file with its folder, and the line if it is not 0."""
    # A log of Windows has its paths.
    return "/".join(PurePath(filename.replace("\\", "/")).parts[-2:]) + (f":{line}" if line else "")


def exit_reason(exit_code: int) -> str:
    return f"killed by signal {signal_name(-exit_code)}" if exit_code < 0 else f"exit code {exit_code}"


def signal_name(number: int) -> str:
    """Return the number of a signal with its name, such as `9 (SIGKILL)`; only the number if it has no name here."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "long int": "int64", "int": "int32",
    "short": "int16", "char": "int8", "byte": "uint8", "complexfloat": "complex64", "complexdouble": "complex128",
}  # fmt: skip
"""{C++ name of a tensor type, as recordings have it: its name in Python}."""


def dtype_name(recorded: str) -> str:
    """Return a tensor type as PyTorch names it in Python: `bfloat16` for the `c10::BFloat16` of a recording."""
    name = recorded.removeprefix("c10::").lower()
    return _DTYPES.get(name, name)


_LONGEST_TEXT = 8192
"""The most characters that readers keep of one text of an artefact, such as the name of a function."""


def bounded(text: str) -> str:
    """Return a text of an artefact; of a longer one than `_LONGEST_TEXT`, its beginning with a mark of what was cut.

    Names of kernels in C++ have some thousands of characters. What is longer is no name, and each search in it would
    cost time. The mark has a checksum of the whole text, so that different texts stay different.
    """
    if len(text) <= _LONGEST_TEXT:
        return text
    checksum = zlib.crc32(text.encode("utf-8", "replace"))
    return f"{text[:_LONGEST_TEXT]}… (cut: {len(text):,} characters, checksum {checksum:08x})"


_UNITS_READ = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1 << 10}


def size_in_bytes(amount: str | None, unit: str | None) -> int | None:
    """Return a printed size such as 18.84 GiB in bytes, as exact as its digits; None without an amount or a unit."""
    return round(float(amount) * _UNITS_READ[unit]) if amount and unit else None


_LONG, MEDIUM, SHORT = 70, 44, 36
SHARED = re.compile(r"\(anonymous namespace\)::|\b[a-z]\w*::|, (?:\w+::)*[Aa]rray<char *\*, \w+>")
"""Matches the parts that all kernel names of a library have in common: namespaces, and a type of pointer arrays."""


def shortened(name: str, length: int = _LONG) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= length else f"{name[: length - 1]}…"


def kernel_name(name: str, length: int = _LONG) -> str:
    """Return a kernel's name without namespaces and parameters, cut in the middle to at most `length` characters.

    `void at::native::elementwise_kernel<4, CUDAFunctor_add<float>>(int, ...)` becomes
    `elementwise_kernel<4,CUDAFunctor_add<float>>`.
    """
    if ("<" in name or "(" in name) and not name.startswith("Memcpy"):  # whose parentheses say from where to where
        name = SHARED.sub("", _without_parameters(name.removeprefix("void ")))
        name = name.replace(", ", ",").replace(" >", ">")
    return without_middle(name, length)


def _without_parameters(name: str) -> str:
    depth = 0
    # From the end: parentheses inside template arguments come first in the name.
    for position in range(len(name) - 1, 0, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if not depth:
            return name[:position] if name.endswith(")") else name
    return name


def without_middle(text: str, length: int) -> str:
    """Return `text` if it has at most `length` characters; else cut out its middle.

    The names of kernels differ at their beginnings and ends.
    """
    # The beginning says which kernel, the end which template arguments; the beginning needs more room.
    end = length // 3
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


def user_function(text: str, length: int = SHORT) -> str:
    """Return the name of an operator, module or Python function, cut to at most `length` characters.

    The path in a Python function's name is shortened to the file and its folder.
    """
    return shortened("/".join(text.split("/")[-2:]), length)
