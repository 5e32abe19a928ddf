"""The command line: one short function a command. What is heavy is imported inside the command that needs it."""

from pathlib import Path
from typing import Annotated

import typer

from workbench import options as opt
from workbench.console import clean, guarded
from workbench.option_groups import spread

EPILOG = (
    "Exit status: 0 analysed; 1 a finding at or above --fail-on, or the launched job failed; 2 usage; "
    "3 input missing, unreadable, hostile or of no known kind; 130 interrupted."
)
ANALYSE, RUN, HELP = "Say why", "Run", "Look up"

app = typer.Typer(
    name="workbench",
    help="A training run broke or is slow: one command says why.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel=HELP)

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def print_version(wanted: bool) -> None:
    if wanted:
        from analyzers.report import tool_version

        print(f"workbench {tool_version()}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool, typer.Option("-V", "--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
    _debug: opt.Debug = False,
) -> None:
    """A training run broke or is slow: one command says why, and one keypress shows the evidence."""


@app.command(rich_help_panel=ANALYSE)
@spread
def inspect(
    paths: opt.Paths,
    reading: opt.StepReading,
    showing: opt.Showing,
    breakdown: opt.Breakdown = False,
    what_if: opt.WhatIf = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Any artefact, folder or run: tell what it is, answer, and join what belongs together."""
    from workbench.commands import analyse

    if breakdown or what_if:
        tables = analyse.MemoryTables(breakdown, what_if)
        raise typer.Exit(analyse.memory_with_tables(paths, reading, showing, tables, fail_on))
    raise typer.Exit(analyse.answer(None, paths, reading, showing, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread
def hang(
    reading: opt.Reading,
    showing: opt.Showing,
    paths: opt.MaybePaths = None,
    run: opt.LiveRun = None,
    pid: opt.Pids = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Flight Recorder dumps: who hangs whom, and why. With --run or --pid, of a job that hangs right now."""
    from workbench.commands import analyse
    from workbench.commands.live_dumps import subjects

    raise typer.Exit(analyse.answer("hang", subjects(paths or [], run, pid or []), reading, showing, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread
def trace(
    paths: opt.Paths,
    reading: opt.TraceReading,
    showing: opt.Showing,
    export: opt.Export = None,
    critical_path: opt.CriticalPath = False,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Profiler traces: where the time of a step goes, per rank and across ranks."""
    from workbench.commands import analyse

    if export:
        raise typer.Exit(analyse.export_traces(paths, reading, export, force=showing.force))
    if critical_path:
        raise typer.Exit(analyse.trace_with_critical_path(paths, reading, showing, fail_on))
    raise typer.Exit(analyse.answer("trace", paths, reading, showing, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread
def steps(paths: opt.Paths, reading: opt.StepReading, showing: opt.Showing, fail_on: opt.FailOnOption = None) -> None:
    """Step timing: phases, stragglers, what is out of line."""
    from workbench.commands import analyse

    raise typer.Exit(analyse.answer("steps", paths, reading, showing, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread
def compare(a: opt.OnePath, b: opt.OnePath, showing: opt.Showing, fail_on: opt.Gated = None) -> None:
    """Two runs: configuration, step time, loss and memory side by side."""
    from workbench.commands import analyse

    raise typer.Exit(analyse.compare_runs(a, b, showing, fail_on))


@app.command(rich_help_panel=ANALYSE)
def report(
    path: opt.OnePath,
    output: opt.OutFile = None,
    force: opt.Force = False,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Leave out paths, hosts, addresses and users.", show_default=False)
    ] = False,
) -> None:
    """Write a report that stands alone: .html, .md or .json."""
    from workbench.commands import analyse

    raise typer.Exit(analyse.write_report(path, output, force=force, anonymise=anonymise))


@app.command(rich_help_panel=ANALYSE)
def serve(
    path: opt.OnePath,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8050,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback a token is asked for.")
    ] = "127.0.0.1",
    browse: Annotated[bool, typer.Option("--open", help="Open a browser on it.")] = False,
) -> None:
    """The web dashboard of a run, on loopback unless told otherwise."""
    from workbench.web.server import Place
    from workbench.web.server import serve as serve_run

    serve_run(path, Place(host, port, browse))


@app.command(rich_help_panel=RUN, context_settings=PASS_ON)
def launch(
    ctx: typer.Context,
    config: opt.Config = None,
    module: opt.Module = None,
    incident: Annotated[str | None, typer.Option(help="Break the run on purpose: see `workbench demo --help`.")] = None,
    nproc: Annotated[int | None, typer.Option(help="Processes on this node.", show_default="devices, else 2")] = None,
    nnodes: Annotated[int, typer.Option(help="Nodes that take part.")] = 1,
    rdzv_endpoint: Annotated[str, typer.Option(help="host:port where the nodes meet.")] = "localhost:0",
    max_restarts: Annotated[int, typer.Option(help="How often a failed job is started again.")] = 0,
    trainer: Annotated[str, typer.Option(help="`workbench`, or a Python module that trains.")] = "workbench",
    scheduler: Annotated[opt.Scheduler, typer.Option(help="Who starts the processes.")] = opt.Scheduler.LOCAL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and the configuration.")] = False,
    _debug: opt.Debug = False,
) -> None:
    """Train with every recorder set right; when the job fails, say why.

    Options of the trainer follow in the form --section.key value; `-- COMMAND ...` launches any other job.
    """
    from workbench.launch.plan import Request
    from workbench.launch.run import run

    request = Request(
        config=config,
        module=module,
        incident=incident,
        nproc=nproc,
        nnodes=nnodes,
        rdzv_endpoint=rdzv_endpoint,
        max_restarts=max_restarts,
        trainer=trainer,
        scheduler=scheduler,
        overrides=tuple(ctx.args),
        dry_run=dry_run,
    )
    raise typer.Exit(run(request))


@app.command(rich_help_panel=RUN)
def watch(run: opt.RunFolder, no_tui: opt.NoTui = False, _debug: opt.Debug = False) -> None:
    """A job while it runs, whoever started it: steps, speed, memory and room left, stragglers, stalls, verdicts."""
    from workbench.commands.watch import watch as watch_run

    raise typer.Exit(watch_run(run, tui=not no_tui))


@app.command(rich_help_panel=RUN, context_settings=PASS_ON)
@spread
def estimate(
    ctx: typer.Context,
    model: opt.Model,
    document: opt.Document,
    nproc: Annotated[int | None, typer.Option(help="Processes on each node.", show_default="devices, else 2")] = None,
    nnodes: Annotated[int, typer.Option(help="Nodes that take part.")] = 1,
    limit: Annotated[str | None, typer.Option(help="Memory of one device, such as 80GiB: does the run fit?")] = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Memory of each rank before the run, without the devices: a step is rehearsed with tensors that have none.

    Options of the trainer follow in the form --section.key value, as for `launch`.
    """
    from workbench.commands import analyse, estimate
    from workbench.commands.output import deliver
    from workbench.launch.plan import Request

    request = Request(config=model.config, module=model.module, nproc=nproc, nnodes=nnodes, overrides=tuple(ctx.args))
    report = estimate.estimate(request, analyse.size_in_bytes(limit, "--limit"))
    raise typer.Exit(deliver(report, document, estimate.subject(request), fail_on))


@app.command(rich_help_panel=RUN, context_settings=PASS_ON)
@spread
def tokens(
    ctx: typer.Context,
    model: opt.Model,
    document: opt.Document,
    sequences: Annotated[int, typer.Option(help="How many sequences to show.", min=1, max=100)] = 1,
) -> None:
    """Tokens beside their labels, as the model is shown them; what is ignored, and why.

    Options of the trainer follow in the form --section.key value, as for `launch`.
    """
    from workbench.commands.output import deliver
    from workbench.commands.tokens import subject
    from workbench.commands.tokens import tokens as shown
    from workbench.launch.plan import Request

    request = Request(config=model.config, module=model.module, overrides=tuple(ctx.args))
    raise typer.Exit(deliver(shown(request, sequences), document, subject(request)))


@app.command(rich_help_panel=RUN)
def demo(
    incident: Annotated[str, typer.Argument(help="healthy, oom, hang, straggler, or any name of an incident.")] = "oom",
    nproc: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run is kept.", show_default="outputs/demo-INCIDENT")
    ] = None,
    no_tui: opt.NoTui = False,
    as_json: opt.Json = False,
) -> None:
    """Make a small real incident on CPU and say why it happened."""
    from workbench.commands.demo import demonstrate

    raise typer.Exit(demonstrate(incident, nproc, folder, tui=not (no_tui or as_json), as_json=as_json))


@app.command(rich_help_panel=HELP)
def doctor(as_json: opt.Json = False) -> None:
    """Versions, devices and environment variables: what is set wrong, and how to mend it."""
    from workbench.commands.doctor import examine

    raise typer.Exit(examine(as_json=as_json))


@app.command(rich_help_panel=HELP)
def capabilities(as_json: opt.Json = False) -> None:
    """For scripts and coding agents: how to ask, and what comes back."""
    from workbench.commands.capabilities import capabilities as of
    from workbench.commands.capabilities import skill

    print(of(app).json().decode() if as_json else skill(), end="\n" if as_json else "")


@app.command(rich_help_panel=HELP)
def schema(
    name: Annotated[str | None, typer.Argument(help="memory, hang, trace, steps, incident, ...")] = None,
) -> None:
    """JSON Schema of an output, or the names there are."""
    from workbench.commands.schema import describe

    print(describe(name))


def file_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    """`[FILE] [--section.key value ...]`. Click would take the first value of an unknown option for the file."""
    if words and not words[0].startswith("--"):
        return Path(words[0]), words[1:]
    return None, words


@config_app.command("show", context_settings=PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_show(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """The resolved configuration: defaults, then the file, then --section.key value."""
    from workbench.commands.config import show

    print(clean(show(*file_and_overrides(ctx.args), as_json=as_json)))


@config_app.command("explain", context_settings=PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_explain(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """For each key: honoured, translated from an older name, ignored and why, or unknown."""
    from workbench.commands.config import explain

    print(clean(explain(*file_and_overrides(ctx.args), as_json=as_json)))


def main() -> None:
    """Entry point of the `workbench` script."""
    with guarded():
        app()


if __name__ == "__main__":
    main()
