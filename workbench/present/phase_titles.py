"""The titles of the phases of a step, for terminal, dashboard and documents."""

from analyzers.steps.diff.phase_changes import OUTSIDE

TITLES = {"residual": OUTSIDE}
"""{column of `analyzers.steps.views.phases`: its title}; the other columns are titles themselves."""


def phase_title(name: str) -> str:
    """Return the title of a phase; the time outside of all phases has the same title as in a comparison."""
    return TITLES.get(name, name)
