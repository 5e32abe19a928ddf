"""Types that several pages use."""

from typing import TypeAlias

from dash.development.base_component import Component

Elements: TypeAlias = list[Component | None]
"""Parts of a page, from top to bottom; Dash leaves out those that are None."""
