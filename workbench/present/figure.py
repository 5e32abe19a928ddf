"""Build a figure of a standalone HTML page: a title, an inline SVG drawing, and a legend."""

from collections.abc import Mapping
from html import escape

from workbench.console import clean

# Units of the drawing; the page scales it to its own width.
WIDTH, HEIGHT = 900, 220


def figure(title: str, shapes: str, colours: Mapping[str, str]) -> str:
    """Return an HTML figure of the SVG text `shapes`, with a legend.

    `colours` maps each name in the legend to its colour.
    """
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{text(name)}</span>' for name, colour in colours.items()
    )
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{shapes}</svg>'
    return f'<figure><figcaption>{text(title)}</figcaption>{drawing}<p class="keys">{legend}</p></figure>'


def text(value: object) -> str:
    """Return `value` as escaped HTML text, because it may come from a hostile file."""
    return escape(clean(value))
