"""Who waits for whom; `?group=NAME` chooses the process group."""

from urllib.parse import urlencode

from dash import dcc, html

from analyzers.hangs import views
from analyzers.wording import ranges
from workbench.console import clean
from workbench.present.sections import hang
from workbench.web.components.charts import matrix
from workbench.web.components.text import navigation, table
from workbench.web.view import View

COLLECTIVES = 60


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "hang" not in view.parts:
        return html.Div("This run holds no Flight Recorder dumps.")
    data = view.parts["hang"]
    tables = [table(section) for section in hang(data) if section.rows]
    if not data.groups:
        return html.Div(tables)
    broken = data.culprits[0].group if data.culprits else None
    wanted = query.get("group", broken)
    group = next((g for g in data.groups if g.name == wanted), data.groups[0])
    frame = views.matrix(view.run, group.name, COLLECTIVES, view.options)
    links = [
        dcc.Link(
            clean(g.desc or g.name),
            href=f"/hang?{urlencode({'group': g.name})}",
            className="here" if g is group else "",
        )
        for g in data.groups
    ]
    return html.Div(
        [
            navigation(links, "process groups", "ranks"),
            html.H2(f"Group {clean(group.name)} ({clean(group.desc)}), ranks {ranges(group.ranks)}"),
            dcc.Graph(id="matrix", figure=matrix(frame), config={"displaylogo": False}),
            *tables,
        ]
    )
