"""A list of the parts of a whole, such as the phases of a step, each with a bar in its colour."""

from collections.abc import Callable, Mapping

from dash import html

from analyzers.words import share
from workbench.console import clean


def part_list(parts: Mapping[str, float], colours: Mapping[str, str], text: Callable[[float], str]) -> list[html.Ul]:
    """Return an HTML list with the name, a bar, the amount and the share of each part; empty if there are no parts.

    `text` formats an amount. The largest part has the longest bar.
    """
    most, total = max(parts.values(), default=0), sum(parts.values())
    rows = [
        html.Li(
            [
                html.Span(clean(name)),
                html.Span(className="bar", style={"width": f"{100 * amount / most:.1f}%", "background": colours[name]}),
                html.Span(text(amount), className="n"),
                html.Span(share(amount, total), className="n"),
            ]
        )
        for name, amount in parts.items()
        if amount > 0
    ]
    return [html.Ul(rows, className="parts")] if rows else []
