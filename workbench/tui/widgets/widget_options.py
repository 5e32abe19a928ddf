"""Options that every widget passes on to Textual."""

from typing import TypedDict


class WidgetOptions(TypedDict, total=False):
    """Keyword arguments that every widget passes on to Textual: its `id`, and CSS `classes` separated by spaces."""

    id: str
    classes: str
