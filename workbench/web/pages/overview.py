"""The answer and the findings behind it."""

from dash import html

from workbench.present.sections import sections
from workbench.web.components.text import finding, table, verdict
from workbench.web.view import View


def layout(view: View, _query: dict[str, str]) -> html.Div:
    found = [html.H2("Findings"), *(finding(f) for f in view.report.findings)] if view.report.findings else []
    return html.Div([verdict(view.report), *found, *(table(section) for section in sections(view.report))])
