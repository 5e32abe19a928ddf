"""One colour and one sign per category, severity and state, for every face.

The colours are told apart by people who do not see red and green alike (after Okabe and Ito, 2008); no face relies on
colour alone, so each comes with a letter or sign.
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
LETTERS = {name: name[0].upper() for name in CATEGORIES} | {"unknown": "?"}
"""Of each category, where there is room for no more; no two are alike."""
SEVERITIES = {"info": "#56b4e9", "warning": "#e69f00", "error": "#d55e00"}
SEVERITY_SIGNS = {"info": "·", "warning": "!", "error": "✗"}
STATUSES = {"ok": "#009e73", "warning": "#e69f00", "error": "#d55e00", "unknown": "#8c8c8c"}
STATUS_SIGNS = {"ok": "✓", "warning": "!", "error": "✗", "unknown": "?"}
STATES = {
    "done": "#0072b2",
    "started": "#56b4e9",
    "scheduled": "#e69f00",
    "missing": "#d55e00",
    "mismatch": "#cc79a7",
    "no dump": "#8c8c8c",
    "": "#2b2f36",
}
STATE_SIGNS = {"done": "●", "started": "◐", "scheduled": "·", "missing": "✗", "mismatch": "≠", "no dump": "?", "": " "}
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
STANDINGS = {
    "running": "#009e73",
    "done": "#009e73",
    "completed": "#009e73",
    "stalled": "#e69f00",
    "interrupted": "#e69f00",
    "losing ranks": "#d55e00",
    "failed": "#d55e00",
    "gone": "#d55e00",
}
"""How a rank or a job stands while it is watched; whatever else it says is told in the colour of what is unknown."""
STANDING_SIGNS = {
    "running": "▶",
    "done": "✓",
    "completed": "✓",
    "stalled": "‖",
    "interrupted": "!",
    "losing ranks": "✗",
    "failed": "✗",
    "gone": "✗",
}


def ink(colour: str) -> str:
    """Black or white, whichever is read better on a colour (relative luminance of WCAG 2.2)."""
    linear = [
        ((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92 for c in (v / 255 for v in bytes.fromhex(colour[1:]))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.18 else "#ffffff"


KINDS = {"compute": "#009e73", "communication": "#d55e00", "memory": "#56b4e9", "idle": "#8c8c8c", "": "#c9ced6"}
"""Kinds of device work; "" is an event of the host."""
HEAT = ("#1d2a38", "#1f4a73", "#0072b2", "#56b4e9", "#f0e442")
"""From little to much; told apart by how light they are, too."""
KIND_SIGNS = {"compute": "c", "communication": "n", "memory": "m", "idle": " ", "": "h"}
DISTINCT = tuple(dict.fromkeys([*CATEGORIES.values()]))


def qualitative(index: int) -> str:
    """A colour for the nth of things that have none of their own."""
    return DISTINCT[index % len(DISTINCT)]
