"""Tables of a report on tokens: statistics of a data set, the spans of its sequences, and tokens beside labels."""

from collections.abc import Iterator
from itertools import groupby

from analyzers.tokens.model import Position, TokensData, TokenStatistics
from analyzers.words import share
from workbench.present.table import Table, table

_TEXT_AT_MOST = 60
SPANS = 40


def token_tables(data: TokensData) -> list[Table]:
    """Return the tables of a report on tokens.

    For a data set, these are statistics and the spans of its sequences. Otherwise it is a table of tokens beside their
    labels.
    """
    if data.statistics is None:
        return [_plain_tokens(data)]
    return [*_statistics_tables(data.statistics, data), _spans_table(data.rows)]


def _plain_tokens(data: TokensData) -> Table:
    rows = ((r.sequence, r.position, r.token, r.text, r.label, r.label_text) for r in data.rows)
    heads = "sequence> | position> | token> | token text | label> | label text"
    return table("Tokens and labels", heads, rows, 64)


def _statistics_tables(numbers: TokenStatistics, data: TokensData) -> list[Table]:
    facts = [
        ("rows", f"{numbers.rows:,} ({', '.join(f'{form}: {count:,}' for form, count in numbers.forms.items())})"),
        ("chat format", data.template or "none recognised"),
        ("tokens without padding", f"{numbers.tokens:,}"),
        ("trained tokens", f"{numbers.trained:,} ({share(numbers.trained, numbers.tokens)})"),
        ("padding", f"{numbers.padding:,} ({share(numbers.padding, numbers.tokens + numbers.padding)})"),
        ("assistant turns", f"{numbers.turns:,}"),
        ("documents", f"{numbers.documents:,}"),
        ("rows of the largest length", f"{numbers.at_limit:,}"),
        (
            "a label is",
            ", ".join(f"{name} ({count:,} rows)" for name, count in numbers.shifts.items()) or "not in the data",
        ),
    ]
    lengths = (
        ("length", numbers.length),
        ("trained", numbers.trained_of_row),
        ("first trained", numbers.first_trained),
    )
    return [
        table("Data set", "number | value", facts),
        table(
            "Tokens of a row",
            "number | median> | 90th percentile> | largest>",
            ((name, value.median, value.p90, value.largest) for name, value in lengths),
        ),
        table(
            "Tokens by role",
            "role | tokens> | trained> | share trained>",
            (
                (
                    role,
                    f"{count:,}",
                    f"{numbers.trained_roles.get(role, 0):,}",
                    share(numbers.trained_roles.get(role, 0), count),
                )
                for role, count in sorted(numbers.roles.items(), key=lambda item: -item[1])
            ),
        ),
    ]


def _spans_table(rows: list[Position]) -> Table:
    heads = "row> | tokens | role | label | text"
    return table("Spans", heads, (_span_cells(span) for span in spans(rows)), SPANS)


def spans(rows: list[Position]) -> Iterator[list[Position]]:
    for _, span in groupby(rows, key=lambda r: (r.sequence, r.document, r.role, r.trained)):
        yield list(span)


def _span_cells(span: list[Position]) -> tuple[object, ...]:
    first, last = span[0], span[-1]
    where = str(first.position) if first is last else f"{first.position}-{last.position}"
    return first.sequence, where, first.role, "trained" if first.trained else "ignored", shortened(_span_text(span))


def _span_text(span: list[Position]) -> str:
    return visible("".join(position.text for position in span))


def visible(text: str) -> str:
    """Return a text with signs in place of line ends and tabs."""
    return text.replace("\n", "\u23ce").replace("\t", "\u21e5").replace("\r", "\u240d")


def shortened(text: str) -> str:
    """Return a text; if it is long, its middle is left out, because mistakes in masks are at the ends of a span."""
    half = _TEXT_AT_MOST // 2
    return text if len(text) <= _TEXT_AT_MOST else f"{text[:half]} \u2026 {text[-half:]}"
