"""The colour and the sign of each category, severity and state, the same in the terminal, dashboard and reports.

The colours are those of Okabe and Ito (2008), which colour-blind people can distinguish. No view relies on colour
alone, so each colour comes with a letter or a sign.
"""

CATEGORIES = {
    "parameters": "#0072b2",
    "gradients": "#e69f00",
    "optimizer_state": "#cc79a7",
    "activations": "#009e73",
    "inputs": "#56b4e9",
    "temporary": "#f0e442",
    "communication": "#d55e00",
    "workspace": "#8c8c8c",
    "unknown": "#5c6370",
}
CATEGORY_LETTERS = {name: name[0].upper() for name in CATEGORIES} | {"unknown": "?"}
"""The letter of each category where there is no room for its name; all differ."""
SEVERITIES = {"info": "#56b4e9", "warning": "#e69f00", "error": "#d55e00"}
SEVERITY_SIGNS = {"info": "·", "warning": "!", "error": "✗"}
STATUSES = {"ok": "#009e73", "warning": "#e69f00", "error": "#d55e00", "unknown": "#8c8c8c"}
STATUS_SIGNS = {"ok": "✓", "warning": "!", "error": "✗", "unknown": "?"}
COLLECTIVE_STATES = {
    "done": "#0072b2",
    "started": "#56b4e9",
    "scheduled": "#e69f00",
    "missing": "#d55e00",
    "mismatch": "#cc79a7",
    "no dump": "#8c8c8c",
    "": "#2b2f36",
}
COLLECTIVE_SIGNS = {
    "done": "●",
    "started": "◐",
    "scheduled": "·",
    "missing": "✗",
    "mismatch": "≠",
    "no dump": "?",
    "": " ",
}
"""States of a collective on one rank, as in `hangs.views.matrix`; empty: outside of what was recorded."""
PHASES = {
    "fwd": "#56b4e9",
    "bwd": "#0072b2",
    "fwd_bwd": "#0072b2",
    "optim": "#cc79a7",
    "grad_clip": "#f0e442",
    "data_wait": "#e69f00",
    "gc": "#d55e00",
    "loss_sync": "#009e73",
    "other": "#8c8c8c",
}
LIVE_STATES = {
    "running": "#009e73",
    "done": "#009e73",
    "completed": "#009e73",
    "stalled": "#e69f00",
    "interrupted": "#e69f00",
    "losing ranks": "#d55e00",
    "failed": "#d55e00",
    "gone": "#d55e00",
}
"""States of a rank or a job while it is watched; any other state has the colour of `unknown`."""
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


def text_colour(colour: str) -> str:
    """Return black or white, whichever is more readable as text on `colour` (relative luminance of WCAG 2.2)."""
    linear = [
        ((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92 for c in (v / 255 for v in bytes.fromhex(colour[1:]))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # At 0.18 black and white have the same contrast: (L + 0.05) / 0.05 = 1.05 / (L + 0.05).
    return "#000000" if luminance > 0.18 else "#ffffff"


EVENT_KINDS = {"compute": "#009e73", "communication": "#d55e00", "memory": "#56b4e9", "idle": "#8c8c8c", "": "#c9ced6"}
"""Kinds of device work; an empty kind is an event of the host."""
HEAT = ("#1d2a38", "#1f4a73", "#0072b2", "#56b4e9", "#f0e442")
"""From little to much, each lighter than the one before, so that the order shows without colour."""
EVENT_KIND_SIGNS = {"compute": "c", "communication": "n", "memory": "m", "idle": " ", "": "h"}
DISTINCT_COLOURS = tuple(dict.fromkeys([*CATEGORIES.values()]))


def nth_colour(index: int) -> str:
    """Return a colour for item number `index` of a list without fixed colours, such as streams; colours repeat."""
    return DISTINCT_COLOURS[index % len(DISTINCT_COLOURS)]
