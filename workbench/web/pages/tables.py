"""Traces and steps: the tables of their rooms."""

from dash import html

from workbench.present.sections import OF_ROOM
from workbench.web.components.text import table
from workbench.web.view import View


def layout(view: View, room: str) -> html.Div:
    if room not in view.parts:
        return html.Div(f"This run holds nothing for {room}.")
    return html.Div([table(section) for section in OF_ROOM[room](view.parts[room]) if section.rows])
