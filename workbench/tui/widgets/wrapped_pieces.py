"""Wrap short texts, such as the items of a legend, into lines without splitting a text."""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.text import Text

_GAP = "  "


def wrapped(pieces: Iterable[Text], width: int, gap: str = _GAP) -> Text:
    r"""Return the pieces one after the other, in lines of at most `width` characters; only a longer piece is wider.

    Textual itself would separate a name from its value, even at a no-break space.

    >>> wrapped([Text("a 1"), Text("b 2"), Text("c 3")], 8).plain
    'a 1  b 2\nc 3'
    """
    text, used = Text(), 0
    for piece in pieces:
        fits = used + len(gap) + piece.cell_len <= width
        if text:
            text.append(gap if fits else "\n")
        used = used + len(gap) if text and fits else 0
        text.append(piece)
        # A heading may have several lines of its own.
        used += cell_len(piece.plain.rpartition("\n")[2])
    return text
