"""`workbench parity`: runs on equal meshes agree; a mistake on one mesh is found and its module named."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzers.parity import NamedRun, ParityData, analyze, bisect
from analyzers.parity.model import Curve, ValueKind
from analyzers.parity.report import read_runs
from analyzers.report import Report, Severity, Status
from analyzers.run import Run
from analyzers.store import Options
from ranks import ROOT, run_job
from workbench.command_options.options import Format
from workbench.commands.parity import Comparison, compare_meshes, variant
from workbench.errors import UsageProblem
from workbench.launch.plan import Plan, Request
from workbench.present import render
from workbench.present.tables.parity import differences_of, steps_of

SMALL = ("--training.seq_len", "32", "--training.local_batch_size", "4")
EQUAL = ("dp_shard=2", "tp=2", "cp=2", "pp=2", "dp_replicate=2")


def start(job: Plan) -> str:
    """Fork the ranks of a job from a process that has imported torch."""
    ended = run_job(str(ROOT / "tests" / "support" / "planted.py"), job.command, job.folder / "output", job.nproc)
    assert ended.returncode == 0, ended.output
    return "completed"


def compared(folder: Path, runs: Sequence[str], *flags: str, steps: int = 2) -> Report[ParityData]:
    """Run `workbench parity` with the test launcher, and return its report."""
    request = Request(module="llama3", config="llama3_debugmodel", overrides=(*SMALL, *flags))
    assert compare_meshes(Comparison(request, [variant(text) for text in runs], folder, steps), start)
    named, tolerance = read_runs(folder)
    return analyze(named, Options(cache=False), tolerance)


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report[ParityData]]:
    """Fixture: five meshes without a mistake."""
    folder = tmp_path_factory.mktemp("equal")
    return folder, compared(folder, EQUAL)


@pytest.mark.slow
def test_equal_meshes_are_said_to_be_equal(equal: tuple[Path, Report[ParityData]]) -> None:
    folder, report = equal
    assert (report.verdict.status, report.verdict.kind, report.findings) == (Status.OK, "equal", [])
    for run in report.data.runs[1:]:
        assert run.compared_values > 300
        assert run.largest_value_difference is not None
        assert run.largest_value_difference < 2e-6
        assert run.missing_values == 0
        assert max(curve.largest for curve in run.curves) < 1e-6
    assert [run.mesh["tp"] for run in report.data.runs] == [1, 2, 1, 1, 1]
    assert not (folder / "run_1" / "checkpoint").exists()


PLANTED = {
    "tp=2,job.description=scale_output": (1, ValueKind.ACTIVATION, "layers.2.feed_forward"),
    "pp=2,job.description=double_gradient": (1, ValueKind.GRADIENT, "layers.1.attention.wk.weight"),
    "dp_shard=2,job.description=lose_gradient": (1, ValueKind.ACTIVATION_GRADIENT, "layers.1.ffn_norm"),
    "cp=2,job.description=shift_positions": (1, ValueKind.ACTIVATION, "layers.0.attention.wo"),
    "cp=2,optimizer.weight_decay=0.5": (2, ValueKind.PARAMETER, "tok_embeddings.weight"),
    "dp_replicate=2,training.dataset_path={other}": (1, ValueKind.DATA, "inputs"),
    # Adam's first step hardly depends on the size of a gradient: only where that is small, its epsilon counts.
    "dp_shard=2,training.max_norm=0.1": (2, ValueKind.PARAMETER, "layers.0.attention.wq.weight"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Report[ParityData]:
    """Fixture: a run without a mistake, and a run with each mistake."""
    folder = tmp_path_factory.mktemp("planted")
    texts = ["the first document has words of its own " * 40, "and so has the second, which is another " * 40]
    for name, order in (("text", texts), ("other", texts[::-1])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in order))
    runs = ["dp_shard=2", *(text.format(other=folder / "other.jsonl") for text in PLANTED)]
    return compared(folder, runs, "--training.dataset_path", str(folder / "text.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PLANTED)), ids=list(PLANTED))
def test_a_planted_difference_is_found_by_its_name(planted: Report[ParityData], number: int) -> None:
    run, expected = planted.data.runs[number + 1], list(PLANTED.values())[number]
    assert run.first
    assert (run.first.step, run.first.kind, run.first.name) == expected


@pytest.mark.slow
def test_the_report_says_which_step_and_tensor_differ_and_what_to_do(planted: Report[ParityData]) -> None:
    assert (planted.verdict.status, planted.verdict.kind) == (Status.ERROR, "different")
    order = next(f for f in planted.findings if "dataset_path" in f.title)
    assert (order.id, order.severity, order.step) == ("parity.difference", Severity.ERROR, 1)
    assert " differs from run dp_shard=2 from step 1 on: loss " in order.title
    # One per cent in one of four layers moves the loss by less than the tolerance: the curves alone do not show it.
    finding = next(f for f in planted.findings if "scale_output" in f.title)
    assert (finding.id, finding.severity, finding.step) == ("parity.value", Severity.WARNING, 1)
    assert "agree with those of run dp_shard=2 within the tolerance, but the activation of" in finding.title
    assert "layers.2.feed_forward differs" in finding.title
    assert "the activation of layers.2.feed_forward in step 1: its norm is " in finding.why
    assert "norm or sums of elements differ by up to 1 %. All " in finding.why
    assert "the forward pass of layers.2.feed_forward in run " in finding.next
    for kind in (Format.TEXT, Format.MARKDOWN, Format.HTML):
        text = render(planted, kind, Run(Path("folder"), ()))
        assert "layers.1.attention.wk" in text
        assert "Gradient norm by step" in text
        assert ("<polyline" in text) == (kind is Format.HTML)


@pytest.mark.slow
def test_another_seed_gives_other_synthetic_text(equal: tuple[Path, Report[ParityData]], tmp_path: Path) -> None:
    """Runs made at different times can be compared, too; if one recorded no tensors, their agreement stays open."""
    folder, _ = equal
    report = compared(tmp_path, ["tp=2,debug.seed=7", "pp=2,debug.record_values=false"])
    assert report.data.runs[1].first is None
    assert report.verdict.missing == ["tensors of both runs (debug.record_values), to name the first one that differs"]
    again = analyze([NamedRun("before", folder / "run_1"), NamedRun("now", tmp_path / "run_1")])
    assert again.data.runs[1].first
    assert (again.data.runs[1].first.kind, again.data.runs[1].first.name) == (ValueKind.DATA, "inputs")
    assert "same sequences in each step" in again.findings[0].next


@pytest.mark.parametrize("text", ["dp=2", "tp=0", "tp=two", "steps=3", "tp", "debug.seed", "training.steps"])
def test_what_is_no_setting_of_a_run_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        variant(text)
    assert "dp_replicate=N" in caught.value.hint


def test_a_run_is_a_mesh_and_keys_of_its_own() -> None:
    one = variant("dp_replicate=2, dp_shard=2,tp=2,ep=2,debug.deterministic=false,optimizer.lr=1e-3")
    assert (one.ranks, one.data_parallel) == (8, 4)
    assert one.flags == ("--debug.no_deterministic", "--optimizer.lr", "1e-3")
    assert variant("").ranks == 1


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (["dp_shard=2", "tp=4"], "tensor_parallel_degree 4 does not divide 2 key-value heads"),
        (["dp_shard=2", "dp_shard=3"], "8 sequences of a step cannot be divided among 3 ranks"),
        (["dp_shard=2"], "parity needs two runs at least"),
        ([], "parity needs two runs at least"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_before_any_run(tmp_path: Path, runs: list[str], says: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        compared(tmp_path, runs)
    assert says in caught.value.message
    assert not list(tmp_path.iterdir())


def write_values(folder: Path, *lines: str) -> NamedRun:
    """Write a run of one rank with these value lines and a step log of one step."""
    (folder / "values").mkdir(parents=True)
    (folder / "steps").mkdir()
    header = '{"schema": "workbench.values/1", "rank": 0, "world_size": 1}'
    (folder / "values" / "rank_0.jsonl").write_text("\n".join([header, *lines]) + "\n")
    steps = ['{"schema": "workbench.steps/1", "rank": 0}', '{"step": 1, "start_ns": 1, "dur_ns": 9, "loss": 2.0}']
    (folder / "steps" / "rank_0.jsonl").write_text("\n".join(steps) + "\n")
    return NamedRun(folder.name, folder)


def value(**other: object) -> str:
    """Return a line of a values file."""
    row = {"step": 1, "kind": "activation", "name": "a", "sum": 1.0, "absolute": 2.0, "square": 3.0, "copies": 1}
    return json.dumps(row | other)


def test_damaged_and_hostile_values_are_left_out(tmp_path: Path) -> None:
    bad = [
        "{",
        "[]",
        '"x"',
        value(copies=0),
        value(step=-1),
        value(name="x" * 1000),
        value(kind="other"),
        value(step=1e300),
    ]
    a = write_values(tmp_path / "a", value(), *bad, "{", "[]", '"x"', "[" * 10_000, "\x00")
    b = write_values(tmp_path / "b", value(), value(name="b"))
    run = analyze([a, b]).data.runs[1]
    assert (run.compared_values, run.missing_values, run.largest_value_difference) == (1, 1, 0.0)


@pytest.mark.parametrize("count", [3, 6])
def test_many_runs_are_rows_of_the_tables_by_step(tmp_path: Path, count: int) -> None:
    data = analyze([write_values(tmp_path / f"mesh_{number}", value()) for number in range(count)]).data
    losses, differences = steps_of(data, Curve.LOSS), differences_of(data, Curve.LOSS)
    if count == 3:
        assert losses.columns == ("step", "mesh_0", "mesh_1", "mesh_2")
        assert differences.rows == (("1", "0", "0", "yes"),)
        return
    assert losses.columns == ("run", "1")
    assert losses.rows == tuple((f"mesh_{number}", "2") for number in range(count))
    assert differences.columns == ("run", "1", "allowed")
    assert differences.rows == tuple((f"mesh_{number}", "0", "yes") for number in range(1, count))


@pytest.mark.parametrize(("other", "differs"), [(None, True), (1.0 + 1e-9, False), (1.1, True)])
def test_a_value_that_is_no_number_differs_from_one_that_is(tmp_path: Path, other: float | None, differs: bool) -> None:
    a, b = (write_values(tmp_path / name, value(square=square)) for name, square in (("a", 1.0), ("b", other)))
    report = analyze([a, b])
    assert (report.data.runs[1].first is not None) == differs
    assert report.verdict.kind == ("different" if differs else "equal")
    json.loads(report.json())


def test_runs_without_a_common_step_are_unknown(tmp_path: Path) -> None:
    a = write_values(tmp_path / "a", value())
    b = write_values(tmp_path / "b", value())
    (tmp_path / "b" / "steps" / "rank_0.jsonl").unlink()
    verdict = analyze([a, b]).verdict
    assert (verdict.status, verdict.kind, verdict.missing) == (Status.UNKNOWN, "unknown", ["steps of b"])


@pytest.mark.slow
def test_bisect_names_the_module_of_a_mistake_on_another_mesh(tmp_path: Path) -> None:
    """Two correct runs on different meshes agree, and a mistake in one is found; `parity` gives the same answer."""
    texts = ["dp_replicate=2", "dp_shard=2", "tp=2,job.description=scale_output"]
    report = compared(tmp_path, texts, "--debug.record_tensors")
    assert [run.first and run.first.name for run in report.data.runs] == [None, None, "layers.2.feed_forward"]
    folders = [tmp_path / f"run_{number}" for number in (1, 2, 3)]
    equal, broken = bisect(folders[0], folders[1]), bisect(folders[0], folders[2])
    assert (equal.verdict.kind, equal.data.compared > 400) == ("equal", True), equal.verdict.sentence
    assert broken.data.first
    assert (broken.data.first.module, broken.data.first.step) == ("layers.2.feed_forward", 1), broken.verdict.sentence
