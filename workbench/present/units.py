"""Numbers as people read them. Every face uses these, so that every face shows the same."""

from analyzers.words import figures


def size(count: int | None) -> str:
    """Bytes in binary units: `1.5 GiB`."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that keeps three digits: `12.3 ms`."""
    if seconds is None:
        return "-"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit:
            return f"{figures(seconds * factor)} {unit}"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def rough(seconds: float | None) -> str:
    """Time to wait, no finer than anybody cares: `26 s`, `12 min`, `3.4 h`."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def nanoseconds(count: int | None) -> str:
    return "-" if count is None else duration(count / 1e9)


def operations(count: float | None, per: str = "") -> str:
    """Floating-point operations: `989 TFLOP`; with `per="/s"` a rate."""
    if count is None:
        return "-"
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{figures(count / factor)} {prefix}FLOP{per}"
    return f"{count:.0f} FLOP{per}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def bar(part: float, whole: float, width: int = 20) -> str:
    """A bar of eighths of a character."""
    eighths = round(8 * width * max(0.0, min(1.0, part / whole))) if whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
