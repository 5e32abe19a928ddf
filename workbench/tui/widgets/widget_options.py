"""The options that every widget passes on to Textual."""

from typing import TypedDict


class WidgetOptions(TypedDict, total=False):
    """The `id` and the space-separated CSS `classes` of a widget."""

    id: str
    classes: str
