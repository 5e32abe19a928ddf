"""Define the command line: a short function per command, which imports its code when it runs (`--help` stays fast)."""

from pathlib import Path
from typing import Annotated

import typer

from workbench.command_options import options as opt
from workbench.command_options.launch_options import (
    ForeignOptions,
    LaunchCommand,
    ProcessOptions,
    ProveCommand,
    StartGroup,
)
from workbench.command_options.options import INCIDENTS, PLANNED_DEVICES, TokenOptions, one_of, spread_groups
from workbench.console import clean
from workbench.remote.local_paths import local_path, local_paths

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""The Click settings of commands that pass options such as `--section.key value` on to the trainer."""

_config_app = typer.Typer(help="Show and explain the configuration of the trainer.", no_args_is_help=True)


def _file_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    """Split the words `[FILE] [--section.key value ...]` into the file, if there is one, and the overrides.

    Click itself would take the value of the first unknown option for the file.
    """
    if words and not words[0].startswith("--"):
        return Path(words[0]), words[1:]
    return None, words


def _source_and_overrides(words: list[str], command: str) -> tuple[Path | None, list[str]]:
    """Return the file, if one is given, and the overrides: from the words of the command line, then the environment.

    The environment variables CONFIG_FILE, MODULE with CONFIG, and COMM_MODE count if the words do not set them, as for
    `launch`.
    """
    from workbench.commands.config import with_environment

    return with_environment(*_file_and_overrides(words), command)


@_config_app.command("show", context_settings=_PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_show(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """Print the resolved configuration: defaults, then FILE, then --section.key value.

    CONFIG_FILE, MODULE with CONFIG, and COMM_MODE in the environment count where the command line says nothing.
    """
    from workbench.commands.config import show

    print(clean(show(*_source_and_overrides(ctx.args, "config show"), as_json=as_json)))


@_config_app.command("explain", context_settings=_PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_explain(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """Say whether each key is honoured, translated from an older name, ignored or refused (and why), or unknown.

    Ignored keys do not change a run's outcome; keys that would change it are refused. CONFIG_FILE, MODULE with CONFIG,
    and COMM_MODE in the environment count where the command line says nothing.
    """
    from workbench.commands.config import explain

    print(clean(explain(*_source_and_overrides(ctx.args, "config explain"), as_json=as_json)))


@_config_app.command("diff", context_settings=_PASS_ON, options_metavar="A B [--section.key value ...]")
def config_diff(ctx: typer.Context, a: opt.ConfigSource, b: opt.ConfigSource, as_json: opt.Json = False) -> None:
    """Show the keys whose resolved values differ between two files, or between the runs of two folders."""
    from workbench.commands.config import diff

    print(clean(diff(a, b, ctx.args, as_json=as_json)))


EPILOG = (
    "Exit status: 0 analysed; 1 a finding reaches --fail-on, or the launched job failed; 2 wrong usage; "
    "3 input missing, unreadable, malicious or of unknown kind; 70 a bug of workbench; 130 interrupted."
)
ANALYSE, RUN, HELP = "Find out why", "Run and watch jobs", "Help and settings"

app = typer.Typer(
    name="workbench",
    cls=StartGroup,
    help="A training run broke or is slow: one command says why.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(_config_app, name="config", rich_help_panel=HELP)


def _print_version(wanted: bool) -> None:
    if wanted:
        from analyzers.report import tool_version

        print(f"workbench {tool_version()}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool, typer.Option("-V", "--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    _debug: opt.Debug = False,
) -> None:
    """A training run broke or is slow: one command says why, and one keypress shows the evidence."""


@app.command(rich_help_panel=ANALYSE, cls=ProveCommand)
@spread_groups
def inspect(
    context: typer.Context,
    paths: opt.Paths,
    read: opt.LogReadOptions,
    show: opt.ShowOptions,
    breakdown: opt.Breakdown = False,
    what_if: opt.WhatIf = None,
    prove: opt.Prove = False,
    yes: opt.Yes = False,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Say what is wrong with a run, from any of its files or folders."""
    from workbench.commands.answers import answer

    if prove:
        from workbench.commands.prove.permission import Permission, refuse_foreign

        refuse_foreign(paths)
    files = local_paths(paths, keep=not read.no_cache)
    if prove or breakdown or what_if:
        from workbench.commands import analyse
    if prove:
        permission = Permission(context.obj or (), yes)
        raise typer.Exit(analyse.prove_advice(files, read, show, fail_on, permission))
    if breakdown or what_if:
        tables = analyse.MemoryTables(breakdown, what_if)
        raise typer.Exit(analyse.memory_with_tables(files, read, show, tables, fail_on))
    raise typer.Exit(answer(None, files, read, show, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread_groups
def hang(
    read: opt.ReadOptions,
    show: opt.ShowOptions,
    paths: opt.MaybePaths = None,
    run: opt.LiveRun = None,
    pid: opt.Pids = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Explain a hang from Flight Recorder dumps; with --run or --pid, first take dumps of a job that hangs right
    now.
    """
    from workbench.commands.answers import answer
    from workbench.commands.running_job import paths_to_read

    files = paths_to_read(local_paths(paths or [], keep=not read.no_cache), run, pid or [])
    raise typer.Exit(answer("hang", files, read, show, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread_groups
def trace(
    paths: opt.Paths,
    read: opt.TraceReadOptions,
    show: opt.ShowOptions,
    export: opt.Export = None,
    critical_path: opt.CriticalPath = False,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Show from profiler traces where the time of a step goes, on each rank and between ranks."""
    from workbench.commands.answers import answer

    files = local_paths(paths, keep=not read.no_cache)
    if export or critical_path:
        from workbench.commands import analyse
    if export:
        raise typer.Exit(analyse.export_traces(files, read, export, force=show.force))
    if critical_path:
        raise typer.Exit(analyse.trace_with_critical_path(files, read, show, fail_on))
    raise typer.Exit(answer("trace", files, read, show, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread_groups
def steps(paths: opt.Paths, read: opt.LogReadOptions, show: opt.ShowOptions, fail_on: opt.FailOnOption = None) -> None:
    """Show from step logs of any trainer the phases of a step, stragglers, stalls, slowdowns and broken losses.

    It reads our own logs and torchtitan's, TensorBoard files, CSV, JSON and JSONL, and the text that trainers print:

    workbench steps outputs/  ·  workbench steps checkpoint-500/trainer_state.json  ·  workbench steps slurm-17.out

    workbench steps metrics.csv --map loss=train/nll --map step_time_ms=took
    """
    from workbench.commands.answers import answer

    raise typer.Exit(answer("steps", local_paths(paths, keep=not read.no_cache), read, show, fail_on))


@app.command(rich_help_panel=ANALYSE)
@spread_groups
def compare(
    a: opt.OnePath,
    b: opt.OnePath,
    show: opt.ShowOptions,
    fail_on: opt.FailOnMeasures = None,
    column_map: opt.ColumnMap = None,
) -> None:
    """Compare the configuration, step time, loss and memory of two runs, or two files of one kind."""
    from workbench.commands import analyse

    raise typer.Exit(analyse.compare_runs(local_path(a), local_path(b), show, fail_on, column_map))


@app.command(rich_help_panel=ANALYSE)
@spread_groups
def bisect(
    a: opt.OnePath,
    b: opt.OnePath,
    show: opt.ShowOptions,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative difference that is allowed.", show_default="rounding of each dtype", min=0.0),
    ] = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Name the first operation of two recorded runs that has the same inputs in both and different outputs.

    Record both runs with --debug.record_tensors, or with two lines in any script, before the first step:

    from workbench import recorders; recorders.record_tensors(model, "outputs")

    With --fail-on warning the exit status is 1 if they differ.
    """
    from workbench.commands.parity import bisect as bisect_runs

    raise typer.Exit(bisect_runs(local_path(a), local_path(b), show, tolerance, fail_on))


@app.command(rich_help_panel=ANALYSE)
def report(
    path: opt.OnePath,
    output: opt.OutFile = None,
    force: opt.Force = False,
    anonymise: Annotated[
        bool,
        typer.Option(
            "--anonymise", help="Replace secrets, paths, hosts, addresses, accounts and user names.", show_default=False
        ),
    ] = False,
) -> None:
    """Write a report on a run to one file: .html, .md or .json."""
    from workbench.commands import analyse

    raise typer.Exit(analyse.write_report(local_path(path), output, force=force, anonymise=anonymise))


@app.command(rich_help_panel=ANALYSE)
def serve(
    path: opt.OnePath,
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free port.", min=0, max=65535, show_default="8050")
    ] = 8050,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback the connection is not encrypted.")
    ] = "127.0.0.1",
    browse: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    socket: Annotated[
        Path | None,
        typer.Option(help="Listen on a Unix socket that only you can open, on machines with other users."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow the job that writes to the folder.")] = False,
) -> None:
    """Serve the web dashboard of a run; only who has the printed address can open it, by default only on this
    machine.
    """
    from workbench.web.server import Place, serve

    place = Place(host, port, browse, socket)
    if not live:
        serve(local_path(path), place)
    from workbench.watch.live_server import serve_live

    serve_live(Path(path), place)


@app.command(
    cls=LaunchCommand,
    rich_help_panel=RUN,
    context_settings=_PASS_ON,
    options_metavar="[OPTIONS] [--section.key value ...] [-- COMMAND ...]",
)
@spread_groups
def launch(
    ctx: typer.Context,
    model: opt.ModelOptions,
    processes: ProcessOptions,
    foreign: ForeignOptions,
    incident: Annotated[
        str | None,
        typer.Option(
            help="Break the run on purpose; `workbench demo --help` names the incidents.",
            autocompletion=one_of(*INCIDENTS),
        ),
    ] = None,
    show_news: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Say what happens to the job while it runs.")
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the command or the batch script, and start nothing; --dry-run=fake does one step without"
            " values in one process, in place of any number of ranks.",
        ),
    ] = False,
    _debug: opt.Debug = False,
) -> None:
    """Run a training job with the recorders on; if it fails, say why.

    Without a command, our trainer trains; further options go to it as --section.key value. NGPU, CONFIG_FILE, MODULE
    with CONFIG, and COMM_MODE in the environment count where the command line says nothing.

    After --, any job runs unchanged. With --nproc N, or where the script itself calls init_process_group, a Python
    program runs once for each rank, with RANK, WORLD_SIZE and the other variables of torchrun: -- python train.py,
    -- train.py, -- python -m package.train. Launchers start the ranks themselves: -- torchrun --nproc-per-node 8
    train.py, -- accelerate launch ..., -- deepspeed .... Any other command runs once: -- bash run.sh.
    """
    from workbench.launch.plan import Request
    from workbench.launch.run import run

    request = Request(
        **vars(model),
        **vars(processes),
        **vars(foreign),
        incident=incident,
        overrides=tuple(ctx.args),
        command=ctx.obj,
        watch=show_news,
        dry_run=dry_run,
    )
    raise typer.Exit(run(request))


@app.command(rich_help_panel=RUN)
def watch(run: opt.RunFolder, no_tui: opt.NoTui = False, _debug: opt.Debug = False) -> None:
    """Show a running job, whoever started it: steps, speed, memory, stragglers, stalls and verdicts."""
    from workbench.commands.running_job import watch as watch_run

    raise typer.Exit(watch_run(run, tui=not no_tui))


@app.command(rich_help_panel=RUN)
def collect(
    to: Annotated[str, typer.Option(help="The URL where the files of all nodes come together.")],
    folder: Annotated[Path, typer.Argument(help="The folder that the job writes to.")] = Path("outputs"),
    nodes: Annotated[int, typer.Option(help="How many nodes will write there; 0 if unknown.", min=0)] = 0,
    _debug: opt.Debug = False,
) -> None:
    """Write dumps, logs and step logs of this node to a URL where those of all nodes come together.

    workbench collect outputs --to s3://bucket/run

    Each node runs this line beside its job; `workbench inspect s3://bucket/run` then answers as if all had been on one
    disk. It ends with the job or at SIGTERM. `workbench launch --collect URL` does the same by itself. Checkpoints are
    not written.
    """
    from workbench.commands.running_job import collect as write_files

    raise typer.Exit(write_files(folder, to, nodes))


@app.command(rich_help_panel=RUN, context_settings=_PASS_ON)
@spread_groups
def estimate(
    ctx: typer.Context,
    model: opt.ModelOptions,
    document: opt.DocumentOptions,
    nproc: opt.ProcessesPerNode = None,
    nnodes: opt.Nodes = 1,
    limit: Annotated[
        str | None, typer.Option(help="Memory of one device, such as 80GiB, to say whether the run fits.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="Any training script, in place of our trainer; its arguments follow --.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="With --script: the device that the script sees, cuda or cpu; it need not exist.",
            autocompletion=one_of("cuda", "cpu"),
        ),
    ] = "cuda",
    fail_on: opt.FailOnOption = None,
) -> None:
    """Estimate the memory of each rank before a run, without GPUs.

    The trainer does one step, and one batch of the validation if there is one, with tensors that hold no data. Further
    options go to the trainer as --section.key value.

    With --script any PyTorch script runs to the end of its second optimizer step, with its own data, but a model and
    device tensors that hold none: workbench estimate --script train.py --limit 80GiB -- --batch-size 64
    """
    from workbench.commands import analyse, estimate
    from workbench.commands.estimate import estimate_script
    from workbench.commands.output import deliver
    from workbench.launch.environment import for_command
    from workbench.launch.plan import Request

    overrides = () if script else tuple(ctx.args)
    request = Request(config=model.config, module=model.module, nproc=nproc, nnodes=nnodes, overrides=overrides)
    request = request if script else for_command(request, "estimate")
    limit_bytes = analyse.size_in_bytes(limit, "--limit")
    if script:
        report = estimate_script(script, ctx.args, request, device, limit_bytes)
    else:
        report = estimate.estimate(request, limit_bytes)
    raise typer.Exit(deliver(report, document, estimate.subject(request, script), fail_on))


@app.command(rich_help_panel=RUN, context_settings=_PASS_ON)
@spread_groups
def plan(
    ctx: typer.Context,
    model: opt.ModelOptions,
    document: opt.DocumentOptions,
    limit: Annotated[str, typer.Option(help="Memory of one device, such as 80GiB.")],
    nproc: opt.ProcessesPerNode = None,
    nnodes: opt.Nodes = 1,
    margin: Annotated[float, typer.Option(help="Share of the memory to leave free, for what is in no tensor.")] = 0.1,
    device: Annotated[
        str,
        typer.Option(
            help="Device whose speed ranks the settings: a100, h100, h200, b200, mi300x or cpu.",
            autocompletion=one_of(*PLANNED_DEVICES),
        ),
    ] = "h100",
    count: Annotated[int, typer.Option(help="Number of choices to show.", min=1)] = 3,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Search mesh, batch, recomputation, offload and dtype for the settings that fit and train fastest.

    Memory is measured as `estimate` does it: by a step on tensors without values. Settings given as --section.key value
    are kept as they are, settings of the file are replaced.
    """
    from workbench.commands import analyse, estimate, plan
    from workbench.commands.output import deliver
    from workbench.launch.environment import for_command
    from workbench.launch.plan import Request

    request = Request(config=model.config, module=model.module, nproc=nproc, nnodes=nnodes, overrides=tuple(ctx.args))
    request = for_command(request, "plan")
    bytes_of_device = analyse.size_in_bytes(limit, "--limit") or 0
    report = plan.plan(request, bytes_of_device, margin, device, count)
    raise typer.Exit(deliver(report, document, estimate.subject(request), fail_on))


@app.command(rich_help_panel=RUN, context_settings=_PASS_ON)
@spread_groups
def parity(
    ctx: typer.Context,
    model: opt.ModelOptions,
    show: opt.ShowOptions,
    run: Annotated[
        list[str] | None,
        typer.Option(
            help="A mesh: dp_replicate=2,dp_shard=2,tp=2; other keys as section.key=value.", show_default=False
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each run.", show_default="those of the config, at most 5", min=1)
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative difference that is allowed.", show_default="1e-5; bfloat16: 0.02", min=0.0),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder that all runs write to.")] = Path("outputs/parity"),
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Record tensors, to name the first one that differs.")
    ] = True,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Run the same training on several meshes from one seed checkpoint, and say whether they compute the same.

    workbench parity --config x.toml --run dp_shard=4 --run dp_replicate=2,dp_shard=2,tp=2 --run dp_shard=2,cp=2,pp=2

    Where curves differ, the first step, module and tensor are named. Further options go to all runs. To see the
    answer again: workbench inspect FOLDER.
    """
    from analyzers.errors import Exit
    from analyzers.rooms import PARITY
    from workbench.command_options.options import StepReadOptions
    from workbench.commands.answers import answer
    from workbench.commands.parity import Comparison, compare_meshes, variant
    from workbench.launch.environment import for_command
    from workbench.launch.plan import Request

    request = Request(config=model.config, module=model.module, overrides=tuple(ctx.args))
    request = for_command(request, "parity: --run gives the ranks", reads=())
    comparison = Comparison(request, [variant(text) for text in run or []], folder, steps, values)
    if not compare_meshes(comparison, tolerance=tolerance):
        raise typer.Exit(Exit.FINDINGS)
    raise typer.Exit(answer(PARITY, [folder], StepReadOptions(no_cache=True), show, fail_on))


@app.command(rich_help_panel=ANALYSE, context_settings=_PASS_ON, options_metavar="[OPTIONS] [--section.key value ...]")
@spread_groups
def tokens(
    data: TokenOptions,
    model: opt.ModelOptions,
    document: opt.DocumentOptions,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets: .jsonl, .parquet, .pt, or a folder of them.", show_default=False),
    ] = None,
    fail_on: opt.FailOnOption = None,
) -> None:
    """Show tokens beside their labels, and find mask mistakes: what is trained and should not be, or the reverse.

    PATHS are data sets of any trainer: rows with input_ids and labels, messages, prompt and completion, or text.

    workbench tokens train.jsonl --tokenizer model/  ·  workbench tokens batch.pt --shifted-by data

    Without PATHS it shows what our trainer reads, by --config and further options --section.key value.
    """
    from workbench.commands.tokens import show_tokens

    raise typer.Exit(show_tokens(paths or [], data, model, document, fail_on))


@app.command(rich_help_panel=RUN)
def demo(
    incident: Annotated[
        str,
        typer.Argument(
            help="healthy, oom, hang, straggler or another incident; a wrong name lists all.",
            autocompletion=one_of("hang", *INCIDENTS),
        ),
    ] = "oom",
    nproc: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="The folder to record the run in.", show_default="outputs/demo-INCIDENT")
    ] = None,
    no_tui: opt.NoTui = False,
    as_json: opt.Json = False,
) -> None:
    """Run a small job on CPU that really fails, and say why it did."""
    from workbench.commands.demo import demonstrate

    raise typer.Exit(demonstrate(incident, nproc, folder, tui=not (no_tui or as_json), as_json=as_json))


@app.command(rich_help_panel=HELP)
def doctor(as_json: opt.Json = False) -> None:
    """Check versions, devices and environment variables; name each wrong setting and how to fix it."""
    from workbench.commands.doctor import examine

    raise typer.Exit(examine(as_json=as_json))


@app.command(rich_help_panel=HELP)
def cache(
    limit: Annotated[
        str | None, typer.Option(help="What the cache may hold from now on, such as 20GiB.", show_default="10GiB")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete what it holds.", show_default=False)] = False,
) -> None:
    """Show, limit or clear the cache of files that were read, and of answers about them."""
    from workbench.commands.analyse import size_in_bytes
    from workbench.commands.doctor import manage

    raise typer.Exit(manage(size_in_bytes(limit, "--limit"), clear=clear))


@app.command(rich_help_panel=HELP)
def capabilities(as_json: opt.Json = False) -> None:
    """Print a description of all commands and their output, for scripts and coding agents."""
    from workbench.commands.capabilities import capabilities as of
    from workbench.commands.capabilities import skill

    print(of(app).json().decode() if as_json else skill(), end="\n" if as_json else "")


def _documents(incomplete: str) -> list[str]:
    """Return the names of the documents that begin with the typed text; the list needs more imports than `--help`."""
    from workbench.rooms import FACES

    return one_of(*FACES)(incomplete)


@app.command(rich_help_panel=ANALYSE)
def explain(
    failure: Annotated[
        str | None, typer.Argument(help="A failure (memory.fragmented), a class (oom) or a chapter (network).")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print a line for each.", show_default=False)] = False,
) -> None:
    """Say what a failure is, how it shows, what rules it out and what to do."""
    from workbench.commands.explain import explain as print_page

    print_page(failure, listed=listed)


@app.command(rich_help_panel=HELP)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            help="memory, hang, trace, steps, incident, ...; without a name, all names.",
            autocompletion=_documents,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a document that --json prints."""
    from workbench.commands.capabilities import describe_schema

    print(describe_schema(name))
