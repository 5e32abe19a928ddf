"""Draw sequences token by token: trained tokens, ignored tokens, and tokens whose state contradicts their role."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from analyzers.report import Report
from analyzers.run import Run
from analyzers.tokens.model import ROLE_NAMES, Position, Role, TokensData
from workbench.colours import DARK
from workbench.console import clean
from workbench.present.figure import text

if TYPE_CHECKING:
    from rich.text import Text

_LEARNED = {ROLE_NAMES[role] for role in (Role.ANSWER, Role.END)}
_GIVEN = {ROLE_NAMES[role] for role in (Role.USER, Role.SYSTEM, Role.TOOL, Role.PADDING, Role.OPENER, Role.TEMPLATE)}
_TRAINED, _IGNORED, _AGAINST = "trained", "ignored", "against its role"
HUES = {_TRAINED: "green", _IGNORED: "soft", _AGAINST: "error"}
_BORDER = "\u2503"
"""The sign before the first token of a packed document."""
SHOWN = 4096
_LINE_ENDS = str.maketrans({"\n": "\u23ce\n", "\t": "\u21e5", "\r": "\u240d"})


def state(position: Position) -> str:
    """Return the state of a token: trained, ignored, or the opposite of what is usual for its role (`_AGAINST`)."""
    if (position.trained and position.role in _GIVEN) or (not position.trained and position.role in _LEARNED):
        return _AGAINST
    return _TRAINED if position.trained else _IGNORED


def sequences(data: TokensData) -> Iterator[tuple[int, list[Position]]]:
    """Yield (number, tokens) of each sequence; none if the report has no statistics."""
    rows = data.rows if data.statistics else []
    for number, tokens in groupby(rows[:SHOWN], key=lambda row: row.sequence):
        yield number, list(tokens)


def _begins_document(tokens: list[Position], i: int) -> bool:
    return i > 0 and tokens[i].document != tokens[i - 1].document


def coloured_tokens(data: TokensData) -> "Text":
    from rich.text import Text

    result = Text()
    for number, tokens in sequences(data):
        result.append(f"\nRow {number}  ", "bold")
        for name in HUES:
            result.append(f"{name}", _style_of(name)).append("  ")
        result.append("\n")
        for i, token in enumerate(tokens):
            result.append(_BORDER if _begins_document(tokens, i) else "")
            result.append(clean(token.text.translate(_LINE_ENDS)), _style_of(state(token)))
        result.append("\n")
    return result


def _style_of(name: str) -> str:
    extra = {_TRAINED: "bold", _IGNORED: "dim", _AGAINST: "reverse"}[name]
    return f"{extra} {DARK.hues[HUES[name]]}"


def token_figures(data: TokensData, _report: Report[object], _run: Run) -> Iterator[str]:
    for number, tokens in sequences(data):
        body = "".join(_token_html(token, _begins_document(tokens, i)) for i, token in enumerate(tokens))
        legend = "".join(f'<span style="{css(name)}">{name}</span>' for name in HUES)
        yield (
            f"<figure><figcaption>Row {number}, token by token</figcaption>"
            f'<p style="white-space: pre-wrap; overflow-wrap: anywhere">{body}</p><p class="keys">{legend}</p></figure>'
        )


def _token_html(token: Position, is_first: bool) -> str:
    """Return one token as HTML; before the first token of a packed document comes the sign of a border."""
    label = "no label" if not token.trained and token.label < 0 else f"label {token.label}"
    about = text(f"{token.position}: token {token.token}, {token.role}, {label}")
    shown = text(token.text.translate(_LINE_ENDS))
    return f'{_BORDER if is_first else ""}<span title="{about}" style="{css(state(token))}">{shown}</span>'


def css(name: str) -> str:
    extra = {_TRAINED: "font-weight: 600", _IGNORED: "opacity: .8", _AGAINST: "text-decoration: underline wavy"}[name]
    return f"color: var(--{HUES[name]}); {extra}"
