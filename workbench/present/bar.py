"""Draw a horizontal bar in text, for tables."""


def bar(part: float, whole: float, width: int = 20) -> str:
    """Return a bar of block characters, filled to the fraction `part` / `whole` of `width` characters."""
    # Clamped: a part may exceed its whole by rounding, and a bar must not push the columns beside it.
    eighths = round(8 * width * max(0.0, min(1.0, part / whole))) if whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
