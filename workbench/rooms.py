"""What the faces know of each room: its tables, charts, page of the dashboard, view of the terminal app, and commands.

`FACES` is the only list of these. Everything in it is named by its place, `module:name`, and imported when it is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from analyzers.report import Finding, Report
from analyzers.rooms import JOINED, PARITY, ROOMS, imported

Data = TypeVar("Data")


@dataclass(frozen=True)
class Faces:
    """How the faces show the reports of a room; what is empty, the room does not have.

    All but the last three are places, see `analyzers.rooms.imported`:

    - `data`: the type of the field `data`, for documents of the workbench itself (for others, the room knows it)
    - `tables`: a function (data) that returns the tables, the most important first
    - `charts`: a function (data, report, run) that yields the HTML figures of a document
    - `coloured`: a function (data) that returns what a terminal with colours shows below the tables
    - `page`: the `Page` of the dashboard
    - `pane`: a function (data, subject, report) that returns the widget of the view of the terminal app
    - `picture`: a function (data, run, options, link) that returns a `Picture` for the first view of the terminal app

    `evidence` maps each part of the view ("" is the view as a whole) to the ids of findings whose evidence it shows. An
    id also stands for longer ids, such as `memory.oom` for `memory.oom.spike`. `to_record` says what to do so that a
    run has the data. `command` is the command for which `workbench capabilities` names the document.
    """

    data: str = ""
    tables: str = ""
    charts: str = ""
    coloured: str = ""
    page: str = ""
    pane: str = ""
    picture: str = ""
    evidence: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    to_record: str = ""
    command: str = ""


ANSWERED_FIRST = (JOINED, "logs")
"""The rooms whose reports open on the answer and not on their own view: of a log it says more than its first lines."""

FACES: Mapping[str, Faces] = {
    "memory": Faces(
        tables="workbench.present.tables.memory:memory_tables",
        charts="workbench.present.svg_charts:memory_chart",
        page="workbench.web.pages.memory:PAGE",
        pane="workbench.tui.panes.memory:MemoryPane",
        picture="workbench.tui.panes.home_picture:memory_picture",
        evidence={
            "timeline": (
                "memory.oom",
                "memory.near_limit",
                "memory.activation_peak",
                "memory.attention_scores",
                "memory.attention_fallback",
                "memory.unused_graph",
            ),
            "changes": ("memory.leak",),
            "blocks": ("memory.fragmentation", "memory.reserved", "memory.dead_pool"),
            "ranks": ("memory.uneven",),
        },
        to_record="set profiling.enable_memory_snapshot = true to record it",
    ),
    "hang": Faces(
        tables="workbench.present.tables.hang:hang_tables",
        charts="workbench.present.collective_matrix:collective_states",
        page="workbench.web.pages.hang:PAGE",
        pane="workbench.tui.panes.hang:HangPane",
        picture="workbench.tui.panes.home_picture:hang_picture",
        evidence={
            "operations": ("hang.mismatch", "hang.skipped", "hang.order_cycle"),
            "stacks": ("hang.host_stuck",),
            "": ("incident.crashed",),
        },
        to_record="a timeout writes dumps, and `workbench hang --run FOLDER` asks a job that hangs right now for them",
        command="hang",
    ),
    "trace": Faces(
        tables="workbench.present.tables.trace:trace_tables",
        page="workbench.web.pages.trace:PAGE",
        pane="workbench.tui.panes.trace:TracePane",
        picture="workbench.tui.panes.home_picture:trace_picture",
        evidence={
            "waits": ("trace.straggler", "trace.exposed_communication", "trace.devices_in_turn"),
            "opportunities": (
                "trace.host_bound",
                "trace.data_loader",
                "trace.python",
                "trace.synchronising_call",
                "trace.launch",
                "trace.unfused_attention",
                "trace.recomputation",
                "trace.float64",
                "trace.float32",
                "trace.misaligned",
                "trace.layout_copies",
                "trace.pageable_copies",
                "trace.exposed_copies",
                "trace.cross_entropy",
                "trace.elementwise",
                "trace.small_collectives",
                "trace.bus_bandwidth",
            ),
            "held": ("trace.memory_grows", "trace.memory_near_limit", "trace.memory_unused"),
        },
        to_record="set profiling.enable_profiling = true to record it",
        command="trace",
    ),
    "steps": Faces(
        tables="workbench.present.tables.steps:steps_tables",
        charts="workbench.present.svg_charts:phase_chart",
        page="workbench.web.pages.steps:PAGE",
        pane="workbench.tui.panes.steps:StepsPane",
        picture="workbench.tui.panes.home_picture:steps_picture",
        evidence={
            "phases": ("steps.straggler",),
            "times": ("steps.slowdown", "steps.global_stall"),
            "loss": (
                "steps.nonfinite_loss",
                "steps.loss_spike",
                "steps.loss_rise",
                "steps.plateau",
                "steps.grad_norm_jump",
            ),
        },
        to_record="`workbench launch` and `workbench.recorders` log every step",
        command="steps",
    ),
    "logs": Faces(
        tables="workbench.present.tables.run:logs_tables",
        page="workbench.web.pages.logs:PAGE",
        pane="workbench.tui.panes.logs:LogsPane",
        to_record="start torchrun with `--log-dir logs --tee 3`, or keep what the job prints in a file",
    ),
    JOINED: Faces(tables="workbench.present.tables.run:incident_tables", command="inspect"),
    "compare": Faces(
        tables="workbench.present.tables.comparison:comparison_tables",
        page="workbench.web.pages.compare:PAGE",
        pane="workbench.tui.panes.compare:ComparePane",
        picture="workbench.tui.panes.home_picture:comparison_picture",
        command="compare",
    ),
    PARITY: Faces(
        tables="workbench.present.tables.parity:parity_tables",
        charts="workbench.present.parity_lines:parity_charts",
        page="workbench.web.pages.parity:PAGE",
        pane="workbench.tui.panes.parity:ParityPane",
    ),
    "bisect": Faces(
        tables="workbench.present.tables.parity:bisect_tables",
        charts="workbench.present.parity_lines:bisect_charts",
        page="workbench.web.pages.parity:BISECT_PAGE",
        pane="workbench.tui.panes.parity:BisectPane",
    ),
    "estimate": Faces(
        data="workbench.documents:EstimateData",
        tables="workbench.present.tables.estimate:estimate_tables",
        command="estimate",
    ),
    "plan": Faces(
        data="workbench.documents:PlanData",
        tables="workbench.present.tables.estimate:plan_tables",
        command="plan",
    ),
    "proof": Faces(data="workbench.documents:ProofData", tables="workbench.present.tables.estimate:proof_tables"),
    "rerun": Faces(data="workbench.documents:RerunData", tables="workbench.present.tables.estimate:rerun_tables"),
    "tokens": Faces(
        tables="workbench.present.tables.tokens:token_tables",
        charts="workbench.present.svg_charts:token_figures",
        coloured="workbench.present.svg_charts:coloured_tokens",
        command="tokens",
    ),
    "doctor": Faces(data="workbench.commands.doctor:DoctorData", command="doctor"),
    "capabilities": Faces(data="workbench.commands.capabilities:CapabilitiesData", command="capabilities"),
}
"""{room, or other document of the workbench: how faces show it}, in the order in which faces list them."""


def data_type(name: str) -> type:
    found: type = imported(FACES[name].data or ROOMS[name].data)
    return found


def room_of(report: Report[object]) -> str:
    """Return the name of the room that made a report, such as "memory".

    Raises:
        TypeError: There is no such room, or it makes reports with other data.
    """
    return _checked(room_named(report.schema), report.data)


def room_named(schema: str) -> str:
    """Return the name of the room that makes reports of a schema; "memory" for `workbench.memory/1`.

    Raises:
        TypeError: There is no such room.
    """
    name = schema.removeprefix("workbench.").partition("/")[0]
    if name not in FACES:
        raise TypeError(f"no room makes reports of the schema {schema}")
    return name


def _checked(name: str, data: object) -> str:
    if not isinstance(data, data_type(name)):
        raise TypeError(f"the room {name} makes {data_type(name).__name__}, not {type(data).__name__}")
    return name


def data_by_room(report: Report[object]) -> dict[str, object]:
    """Return {room: its data} for each room whose data a report has; the report of an incident joins several.

    Raises:
        TypeError: The data is not of the type that the room makes.
    """
    name = room_of(report)
    if name != JOINED:
        return {name: report.data}
    joined = {room: getattr(report.data, room, None) for room in ROOMS}
    return {_checked(room, data): data for room, data in joined.items() if data is not None}


def data_of(report: Report[object], kind: type[Data]) -> Data | None:
    return next((data for data in data_by_room(report).values() if isinstance(data, kind)), None)


@dataclass(frozen=True)
class EvidenceLink:
    """A link to the view that shows the evidence of a finding.

    `room` is the name of the room that the view belongs to, such as `memory`. `part` names a part of the view; empty
    means the whole view. `rank` is the finding's first rank, and `step` its step; None if it names none.
    """

    room: str
    part: str
    rank: int | None = None
    step: int | None = None


def evidence_link(finding: Finding) -> EvidenceLink | None:
    """Return the link to the view that shows the evidence of a finding; None if no view does."""
    named = (
        (room, part)
        for room, faces in FACES.items()
        for part, ids in faces.evidence.items()
        if any(finding.id == name or finding.id.startswith(f"{name}.") for name in ids)
    )
    prefix = finding.id.partition(".")[0]
    room, part = next(named, (prefix, ""))
    if room not in FACES or not FACES[room].page:
        return None
    return EvidenceLink(room, part, finding.ranks[0] if finding.ranks else None, finding.step)
