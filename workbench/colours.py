"""The colour and the sign of each category, phase, kind, severity and state, the same in every view.

There are two themes, light and dark. Each category, phase or other meaning has one hue, and each theme has a shade of
that hue. Data never has a hue from red to amber, because these stand for severity; the focus has no hue. Any two hues
differ by at least 9 (100 times the distance in OKLab) for people with normal sight, deuteranopia and protanopia. No
view relies on colour alone, so each colour comes with a letter or a sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

_HUE_OF_CATEGORY = {
    "parameters": "blue",
    "gradients": "violet",
    "optimizer_state": "pink",
    "activations": "green",
    "inputs": "petrol",
    "temporary": "olive",
    "communication": "teal",
    "workspace": "grey",
    "unknown": "pale",
}
"""{category of memory: its hue}, in the order in which a stacked chart has them from bottom to top."""
HUE_OF_PHASE = {
    "fwd": "green",
    "bwd": "blue",
    "fwd_bwd": "blue",
    "optim": "pink",
    "grad_clip": "violet",
    "data_wait": "petrol",
    "gc": "olive",
    "loss_sync": "teal",
    "other": "grey",
    "profiler": "grey",
    "snapshot": "grey",
    "residual": "grey",
}
"""{phase of a step: its hue}; `hue_of_phase` has one for any other name, too."""
_HUE_OF_KIND = {"compute": "blue", "communication": "teal", "memory": "olive", "idle": "empty", "": "grey"}
"""{kind of work in a trace: its hue}; events of the host have the kind ""."""
HUE_OF_STATE = {
    "done": "pale",
    "started": "blue",
    "scheduled": "empty",
    "missing": "error",
    "mismatch": "warning",
    "no dump": "grey",
    "": "page",
}
"""{state of a collective on one rank: its hue}; the state is empty where nothing was recorded.

`hangs.views.matrix` assigns these states.
"""
SERVES = ("blue", "green", "violet", "teal", "pink", "olive", "petrol", "grey")
"""The hues for lists without fixed colours, such as streams; neighbours in the list differ most."""


@dataclass(frozen=True)
class Theme:
    """The colours of one theme: `hues` has its shade of each hue, `heat` a colour scale from small to large values."""

    name: str
    hues: Mapping[str, str]
    heat: tuple[str, ...]

    @property
    def categories(self) -> dict[str, str]:
        return {name: self.hues[hue] for name, hue in _HUE_OF_CATEGORY.items()}

    @property
    def phases(self) -> dict[str, str]:
        return {name: self.hues[hue] for name, hue in HUE_OF_PHASE.items()}

    @property
    def kinds(self) -> dict[str, str]:
        return {name: self.hues[hue] for name, hue in _HUE_OF_KIND.items()}

    @property
    def states(self) -> dict[str, str]:
        return {name: self.hues[hue] for name, hue in HUE_OF_STATE.items()}

    def nth(self, index: int) -> str:
        """Return a colour for item number `index` of a list without fixed colours; colours repeat after eight items."""
        return self.hues[SERVES[index % len(SERVES)]]

    def css(self) -> str:
        return f"color-scheme: {self.name}; " + " ".join(f"--{name}: {shade};" for name, shade in self.hues.items())


LIGHT = Theme(
    "light",
    {
        "blue": "#1b3ebf", "petrol": "#094f77", "teal": "#00675b", "green": "#66a17a",
        "olive": "#898d00", "violet": "#7265f5", "pink": "#c27ac3", "grey": "#737a86",
        "pale": "#b7bdc7", "empty": "#e3e6eb", "page": "#ffffff", "panel": "#f6f7f9",
        "edge": "#d5d9df", "rule": "#8b919c", "ink": "#111418", "soft": "#59606b",
        "error": "#c1121f", "warning": "#e8a800", "link": "#26456e", "mark": "#fdf0cd",
    },
    ("#edf1fb", "#bccaf0", "#8299de", "#4c69ce", "#1b3ebf"),
)  # fmt: skip
DARK = Theme(
    "dark",
    {
        "blue": "#9cd0fe", "petrol": "#307193", "teal": "#4acaae", "green": "#8df1b3",
        "olive": "#776715", "violet": "#c28eeb", "pink": "#cc2ed2", "grey": "#8a919d",
        "pale": "#59616d", "empty": "#2a303a", "page": "#14171c", "panel": "#1b1f26",
        "edge": "#333943", "rule": "#6b7380", "ink": "#e6e9ee", "soft": "#a3abb7",
        "error": "#ff5a5f", "warning": "#ffc53d", "link": "#b9cbe6", "mark": "#453a1c",
    },
    ("#1d242e", "#27435f", "#3c6d98", "#699fcf", "#9cd0fe"),
)  # fmt: skip
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}

CATEGORIES = DARK.categories
PHASES = DARK.phases
EVENT_KINDS = DARK.kinds
HEAT = DARK.heat
"""The colour scale of the dark theme, from small to large values.

Each colour is lighter than the one before, so that the order shows without hues.
"""
CATEGORY_LETTERS = {name: name[0].upper() for name in CATEGORIES} | {"unknown": "?"}
"""{category of memory: a letter for it}, for cells without room for the name; all letters differ."""
_NEUTRAL, TEXT_ERROR, TEXT_WARNING = "#8a919d", "#e5383f", "#c98f00"
"""The colours of text in a terminal; the terminal app changes their lightness where they are faint in a theme."""
ON_LIGHT = {TEXT_ERROR: "#a80f1a", TEXT_WARNING: "#704b00"}
"""{colour of text in a terminal: the darker colour that is readable on the surfaces of a light theme}."""
COLLECTIVE_STATES = {
    "done": _NEUTRAL,
    "started": "#3f86d4",
    "scheduled": _NEUTRAL,
    "missing": TEXT_ERROR,
    "mismatch": TEXT_WARNING,
    "no dump": _NEUTRAL,
    "": _NEUTRAL,
}
"""{state of a collective: colour of its sign in a terminal}, where the cell has no colour of its own."""
SEVERITIES = {"info": _NEUTRAL, "warning": TEXT_WARNING, "error": TEXT_ERROR}
SEVERITY_SIGNS = {"info": "·", "warning": "!", "error": "✗"}
STATUSES = {"ok": _NEUTRAL, "warning": TEXT_WARNING, "error": TEXT_ERROR, "unknown": _NEUTRAL}
STATUS_SIGNS = {"ok": "✓", "warning": "!", "error": "✗", "unknown": "?"}
COLLECTIVE_SIGNS = {
    "done": "●",
    "started": "◐",
    "scheduled": "○",
    "missing": "✗",
    "mismatch": "≠",
    "no dump": "?",
    "": " ",
}
EVENT_KIND_SIGNS = {"compute": "c", "communication": "n", "memory": "m", "idle": " ", "": "h"}
LIVE_STATES = {
    "running": _NEUTRAL,
    "done": _NEUTRAL,
    "completed": _NEUTRAL,
    "stalled": TEXT_WARNING,
    "interrupted": TEXT_WARNING,
    "losing ranks": TEXT_ERROR,
    "failed": TEXT_ERROR,
    "gone": TEXT_ERROR,
}
"""{state of a rank or job that is watched: its colour}; other states have the colour of `unknown`."""
LIVE_STATE_SIGNS = {
    "running": "▶",
    "done": "✓",
    "completed": "✓",
    "stalled": "‖",
    "interrupted": "!",
    "losing ranks": "✗",
    "failed": "✗",
    "gone": "✗",
}


def css_category(name: str) -> str:
    return f"var(--{_HUE_OF_CATEGORY[name]})"


def hue_of_phase(name: str) -> str:
    """Return the hue of a phase of a step; any other name has one that depends on nothing but the name.

    So a phase keeps its colour in other runs, where it may be shorter or longer than the phases beside it.
    """
    return HUE_OF_PHASE.get(name) or SERVES[crc32(name.encode(errors="replace")) % len(SERVES)]


def phase_colour(name: str) -> str:
    return DARK.hues[hue_of_phase(name)]


def css_phase(name: str) -> str:
    return f"var(--{hue_of_phase(name)})"


def css_nth(index: int) -> str:
    return f"var(--{SERVES[index % len(SERVES)]})"


def css_state(name: str) -> str:
    return f"var(--{HUE_OF_STATE[name]})"


def css_state_text(name: str) -> str:
    """Return the colour of a sign on the colour of a state, readable in either theme; yellow takes black in both."""
    if name == "mismatch":
        return "#000000"
    return "var(--page)" if name in ("started", "missing", "no dump") else "var(--ink)"


def css_severity(name: str) -> str:
    """Return the colour of a severity or status as a CSS variable; only errors and warnings have a hue."""
    return f"var(--{name if name in ('error', 'warning') else 'rule'})"


def css_themes() -> str:
    """Return CSS rules with the colours of both themes as variables; `data-theme` overrides the system's theme."""
    return (
        f":root {{ {LIGHT.css()} }} :root[data-theme='dark'] {{ {DARK.css()} }} "
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme='light']) {{ {DARK.css()} }} }}"
    )


def text_colour(colour: str) -> str:
    """Return black or white, whichever is more readable as text on `colour` (relative luminance of WCAG 2.2)."""
    # At 0.18 black and white have the same contrast: (L + 0.05) / 0.05 = 1.05 / (L + 0.05).
    return "#000000" if luminance(colour) > 0.18 else "#ffffff"


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as `#8df1b3`, as WCAG 2.2 defines it: 0 is black, 1 white."""
    red, green, blue = linear_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, other: str) -> float:
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def linear_rgb(colour: str) -> tuple[float, float, float]:
    """Return the intensities of red, green and blue of a colour, each from 0 to 1."""
    red, green, blue = (
        ((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92 for c in (v / 255 for v in bytes.fromhex(colour[1:]))
    )
    return red, green, blue


def nth_colour(index: int) -> str:
    """Return the colour of the dark theme for item `index` of a list; a long list uses the same colours again."""
    return DARK.nth(index)
