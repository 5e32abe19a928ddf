"""The look of the terminal apps in all themes: a selection without hue, and themes of high contrast."""

from collections.abc import Mapping

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

BLACK, WHITE = "#000000", "#ffffff"
HIGH_CONTRAST = "high-contrast"
"""The prefix of the names of themes with high contrast."""


def _high_contrast(name: str, ink: str, page: str, *, dark: bool) -> Theme:
    """Return a theme that draws text in the colour `ink` on `page`, without other colours and without faint text."""
    variables = {"text-muted": ink, "text-disabled": ink, "footer-background": page, "footer-foreground": ink}
    return Theme(
        name,
        primary=ink,
        secondary=ink,
        accent=ink,
        foreground=ink,
        background=page,
        surface=page,
        panel=page,
        boost=page,
        dark=dark,
        variables=variables,
    )


THEMES = (
    _high_contrast(HIGH_CONTRAST, WHITE, BLACK, dark=True),
    _high_contrast(f"{HIGH_CONTRAST}-light", BLACK, WHITE, dark=False),
)


def neutral(variables: Mapping[str, str]) -> dict[str, str]:
    """Return CSS variables that draw the selection without hue, because hues stand for data and severity.

    `variables` are those of the theme. Return nothing if the theme leaves its colours to the terminal, as themes of 16
    colours do.
    """
    ink, page = variables["foreground"], variables["background"]
    if not (ink.startswith("#") and page.startswith("#")):
        return {}
    blurred = Color.parse(page).blend(Color.parse(ink), 0.2).hex
    return {
        "block-cursor-background": ink,
        "block-cursor-foreground": page,
        "block-cursor-blurred-background": blurred,
        "scrollbar": blurred,
        "scrollbar-hover": Color.parse(page).blend(Color.parse(ink), 0.35).hex,
        "scrollbar-active": ink,
    }


class NoFaintText(LineFilter):
    """Draws faint text like normal text, for themes of high contrast."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - of the base
        """Return the segments of a line, with faint segments drawn like the others."""
        whole = Style(dim=False)
        return [
            Segment(text, style + whole if style and style.dim else style, control) for text, style, control in segments
        ]
