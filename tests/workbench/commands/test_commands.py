"""Run all other commands like a user does."""

import gzip
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

FIXTURES = Path(__file__).parents[2] / "fixtures"

OOM, STUCK, DATA = FIXTURES / "oom_2ranks", FIXTURES / "stuck_2ranks", FIXTURES / "straggler_data_2ranks"


SMALLEST = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"


def test_help_is_quick():
    """The processor time against that of the smallest program with the same library, in the best of five pairs.

    The two of a pair run one after the other, because the speed of a shared machine changes. Counting branches is not
    part of it.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    ways = {"ours": ["-m", "workbench", "--help"], "smallest": ["-c", SMALLEST]}
    spent = {way: [] for way in ways}
    for _ in range(5):
        for way, arguments in ways.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=plain)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[way].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(ours / smallest for ours, smallest in zip(*spent.values(), strict=True)) < 1.0


HELP_AND_ITS_IMPORTS = """
import sys
from workbench.cli import app
try:
    app(["--help"])
finally:
    print(*(name for name in ("rich", "pydantic", "numpy", "msgspec") if name in sys.modules), sep=",", file=sys.stderr)
"""


def test_help_has_the_sections_of_the_commands_and_needs_no_rich():
    ended = subprocess.run([sys.executable, "-c", HELP_AND_ITS_IMPORTS], capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == ""
    headings = [line for line in ended.stdout.splitlines() if line and not line.startswith(" ")]
    assert headings[1:] == ["Options:", "Find out why:", "Run and watch jobs:", "Help and settings:"]
    assert "\x1b" not in ended.stdout
    words = " ".join(ended.stdout.split())
    assert "first take dumps of a job that hangs right now." in words
    assert "130 interrupted." in words


def test_a_usage_error_and_no_command_say_what_is_possible():
    wrong = run("--helpp")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Error: No such option: --helpp" in wrong.stderr
    none = run()
    assert none.returncode == 2
    assert "Explain a hang from Flight Recorder dumps" in none.stderr


@pytest.mark.parametrize(
    ("command", "place", "expected"),
    [
        ("inspect", OOM / "memory_snapshot" / "iteration_5_exit", "Rank 1 ran out of memory at step 6"),
        ("hang", OOM / "dumps", "rank 0 waits"),
        ("hang", STUCK / "dumps", "in loop_in_python (trainer/faults.py:"),
        ("steps", DATA, "Rank 1 makes the others wait from step 6 on: "),
        ("trace", DATA, "Time by rank"),
    ],
)
def test_each_door_tells_its_part(command, place, expected):
    ended = run(command, place)
    assert ended.returncode == 0, ended.stderr
    assert expected in " ".join(ended.stdout.split())


def test_the_same_verdict_in_every_format(tmp_path):
    """The formats are text, Markdown, HTML and JSON, on stdout and in files."""
    sentence = json.loads(run("hang", STUCK, "--json").stdout)["verdict"]["sentence"]
    for name in ("out.md", "out.html", "out.json", "out.txt"):
        assert run("hang", STUCK, "-o", tmp_path / name).returncode == 0
        words = " ".join((tmp_path / name).read_text().replace("\\", "").split())
        assert sentence.split(";")[0].split(" (")[0] in words


def test_a_file_is_overwritten_only_by_force(tmp_path):
    kept = tmp_path / "report.md"
    kept.write_text("mine")
    assert run("report", STUCK, "-o", kept).returncode == 2
    assert kept.read_text() == "mine"
    assert run("report", STUCK, "-o", kept, "--force").returncode == 0
    assert kept.read_text() != "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", STUCK, "-o", "report.docx"),
        ("inspect", STUCK, "--max-memory", "much"),
        ("report", STUCK),
        ("schema", "nonsense"),
        ("demo", "nonsense"),
        ("launch", "--profiling.enable_profiling=False", "--dry-run"),
        ("launch", "--trainer", "no_such_module", "--dry-run"),
        ("launch", "--dry-run=fak"),
        ("config", "show", "--training.step", "3"),
    ],
)
def test_usage_errors_are_two_lines(arguments):
    """Wrong usage ends with exit status 2, `error:` and `hint:`, and no traceback."""
    ended = run(*arguments)
    assert ended.returncode == 2
    assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ["error", "hint"]


def test_explain_does_not_call_the_values_of_a_registry_defaults():
    assert "config show" in run("config", "explain", "--module", "llama3", "--config", "llama3_8b").stdout
    assert "every value is the default" in run("config", "explain").stdout


def test_memory_is_bounded(tmp_path):
    entries = [{"action": "alloc", "addr": n << 9, "size": 512, "stream": 0, "frames": []} for n in range(200_000)]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=4))
    ended = run("inspect", path, "--max-memory", "1M", "--no-cache")
    assert ended.returncode == 3
    assert ended.stderr.startswith("error: ")


def test_dry_run_prints_a_command_line(tmp_path):
    ended = run("launch", "--config", "configs/debug_model.toml", "--nproc", "2", "--dry-run", "--training.steps", "7")
    assert "torchrun --nnodes 1 --nproc_per_node 2" in ended.stdout
    assert ended.stdout.rstrip().endswith("-m trainer --job.config_file configs/debug_model.toml --training.steps 7")


def test_doctor_sees_what_is_set_wrong(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    document = json.loads(run("doctor", "--json").stdout)
    assert document["schema"] == "workbench.doctor/1"
    by_id = {finding["id"]: finding for finding in document["findings"]}
    assert "doctor.detail" in by_id
    assert by_id["doctor.no_ring"]["title"] == "TORCH_FR_BUFFER_SIZE=0 turns PyTorch's Flight Recorder off"
    assert by_id["doctor.no_ring"]["next"].startswith("Remove TORCH_FR_BUFFER_SIZE=0 where the job is started")
    assert document["verdict"]["status"] == "warning"


def test_config_show_resolves_file_and_overrides():
    shown = run("config", "show", "configs/debug_model.toml", "--training.steps", "3", "--json")
    config = json.loads(shown.stdout)
    assert (config["training"]["steps"], config["model"]["flavor"]) == (3, "debugmodel")


def test_config_show_and_explain_read_the_variables_that_launch_reads(monkeypatch, tmp_path):
    (tmp_path / "x.toml").write_text('[training]\nsteps = 7\ndataset = "c4"\n')
    monkeypatch.setenv("CONFIG_FILE", str(tmp_path / "x.toml"))
    monkeypatch.setenv("NGPU", "4")
    shown = run("config", "show", "--training.seq_len", "64", "--json")
    config = json.loads(shown.stdout)
    assert (config["training"]["steps"], config["training"]["seq_len"]) == (7, 64)
    assert f"CONFIG_FILE={tmp_path / 'x.toml'} from the environment" in shown.stderr
    assert "NGPU has no effect on config show" in shown.stderr
    assert "✗ refused     training.dataset" in run("config", "explain").stdout
    monkeypatch.setenv("COMM_MODE", "fake_backend")
    explained = run("config", "explain").stdout
    assert "✓ honoured    training.dataset" in explained
    assert "✓ honoured    comm.mode = 'fake_backend'" in explained
    given = run("config", "show", "configs/debug_model.toml", "--comm.mode", "default", "--json")
    assert (json.loads(given.stdout)["training"]["steps"], json.loads(given.stdout)["comm"]["mode"]) == (10, "default")
    assert given.stderr.count("from the environment: the command line wins") == 2


def test_config_show_reads_the_module_of_the_environment(monkeypatch):
    monkeypatch.setenv("MODULE", "llama3")
    assert run("config", "show").returncode == 2
    monkeypatch.setenv("CONFIG", "llama3_8b")
    assert json.loads(run("config", "show", "--json").stdout)["model"]["flavor"] == "8B"
    asked = run("config", "show", "--module", "llama3", "--config", "llama3_debugmodel", "--json")
    assert json.loads(asked.stdout)["model"]["flavor"] == "debugmodel"


def test_config_explain_classes_every_key(tmp_path):
    toml = tmp_path / "old.toml"
    toml.write_text("[training]\nbatch_size = 4\nstepz = 3\n[float8]\nenable_float8_linear = false\n")
    document = json.loads(run("config", "explain", toml, "--json").stdout)
    assert document["schema"] == "workbench.config/1"
    classes = {key["from"] or key["key"]: key["class"] for key in document["data"]["keys"]}
    assert classes["training.batch_size"] == "translated"
    assert classes["training.stepz"] == "unknown"
    assert [key["line"] for key in document["data"]["keys"]] == [2, 3, 5]


def test_config_explain_marks_what_a_run_refuses(tmp_path):
    toml = tmp_path / "image.toml"
    toml.write_text("[model]\nname = 'flux'\n[mx]\nrecipe_name = 'mxfp8'\n")
    shown = run("config", "explain", toml)
    assert "✗ refused     model.name = 'flux'   (line 2)\n    there is no model 'flux'. Instead: " in shown.stdout
    assert "· ignored     mx.recipe_name = 'mxfp8'" in shown.stdout
    document = json.loads(run("config", "explain", toml, "--json").stdout)
    assert "1 ignored" in document["verdict"]["sentence"]
    assert document["verdict"]["sentence"].endswith("1 refused")
    assert document["findings"][0]["title"] == "The trainer does not support model.name = 'flux' (line 2)"


def test_config_diff_shows_the_keys_that_differ(tmp_path):
    for name, text in (("a", "training.batch_size = 4\ntraining.steps = 3"), ("b", "training.local_batch_size = 2")):
        (tmp_path / f"{name}.toml").write_text(text)
    shown = run("config", "diff", tmp_path / "a.toml", tmp_path / "b.toml")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["training.local_batch_size", "4", "→", "2"],
        ["training.steps", "3", "→", "10000"],
    ]
    of_runs = run("config", "diff", FIXTURES / "healthy_2ranks", FIXTURES / "oom_2ranks", "--json")
    keys = {row["key"] for row in json.loads(of_runs.stdout)["differences"]}
    assert "faults.name" in keys
    assert run("config", "diff", tmp_path / "a.toml", tmp_path).returncode == 3


def test_launch_prints_what_each_rank_would_say_of_the_configuration(tmp_path):
    toml = tmp_path / "x.toml"
    toml.write_text("[training]\ndataset = 'c4_test'\n[model]\ntokenizer_path = 'files'\n")
    refused = run("launch", "--config", toml, "--dry-run")
    assert refused.returncode == 2
    assert "training.dataset = 'c4_test' (line 2): data set 'c4_test' is not shipped" in refused.stderr
    launched = run("launch", "--config", toml, "--training.allow_synthetic", "--dry-run")
    assert "'c4_test' is not shipped; seeded synthetic text replaces it" in launched.stderr
    assert "without effect here: model.tokenizer_path (a tokenizer of bytes" in launched.stderr


@pytest.mark.parametrize("name", ["memory", "hang", "trace", "steps", "incident", "compare"])
def test_each_document_has_a_schema(name):
    schema = json.loads(run("schema", name).stdout)
    assert "$defs" in schema


def test_two_runs_are_compared():
    document = json.loads(run("compare", FIXTURES / "healthy_2ranks", DATA, "--json").stdout)
    assert document["schema"] == "workbench.compare/1"
    assert any(row["what"] for row in document["data"]["rows"])


def test_an_unwritable_place_is_told(tmp_path):
    ended = run("inspect", STUCK, "-o", tmp_path / "no" / "folder" / "x.md")
    assert ended.returncode == 3
    assert "hint:" in ended.stderr


def test_without_torch_analysing_works_and_launching_says_what_to_install(tmp_path):
    """In an interpreter without torch, a run is explained, and a launch names the extra to install."""
    hide = (
        "import importlib.util, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "sys.modules['torch'] = None\n"
        "runpy.run_module('workbench', run_name='__main__')\n"
    )

    def without_torch(*arguments):
        command = [sys.executable, "-c", hide, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    assert "Rank 1 ran out of memory" in " ".join(without_torch("inspect", OOM).stdout.split())
    ended = without_torch("launch", "--job.dump_folder", tmp_path / "outputs")
    assert ended.returncode == 2
    assert "torch-workbench[train]" in ended.stderr
    assert not (tmp_path / "outputs").exists()


def test_two_snapshots_are_compared_by_who_holds_them():
    """A healthy snapshot and that of the failure are compared: how much larger, and in which category."""
    before = OOM / "memory_snapshot" / "iteration_5"
    after = OOM / "memory_snapshot" / "iteration_5_exit"
    document = json.loads(run("compare", before, after, "--json").stdout)
    [grown] = [finding for finding in document["findings"] if finding["id"] == "compare.memory.grew"]
    assert "activations" in grown["title"]


def test_traces_are_exported_but_not_over_a_file(tmp_path):
    target = tmp_path / "merged.json.gz"
    assert run("trace", DATA, "--export", target).returncode == 0
    names = [e.get("name") for e in json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]]
    assert "rank 1 is late in gloo:all_gather" in names
    again = run("trace", DATA, "--export", target)
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_a_step_is_told_as_the_chain_of_what_held_up_what():
    """With the operations of the device, which no table of CPUs has, as a share of what was said."""
    document = json.loads(run("trace", DATA, "--critical-path", "--peak-tflops", "0.1", "--json").stdout)
    first, parts = document["data"]["ranks"][0], document["data"]["critical"]
    assert sum(part["path_ns"] for part in parts) == first["step_times"][-1]["dur_ns"]
    assert {"compute", "communication"} <= {part["kind"] for part in parts}
    assert first["hfu"] == pytest.approx(first["flops_per_s"] / 0.1e12, rel=1e-2)
    assert first["mfu"] < first["hfu"]
    told = run("trace", DATA, "--critical-path").stdout
    assert "Critical path of step" in told


@pytest.mark.parametrize(("artefact", "room"), [("dumps/rank_0", "hang"), ("run.json", "report")])
def test_a_report_never_replaces_the_files_that_it_is_on(tmp_path, artefact, room):
    """It is refused even with --force, and also under another name of the same file."""
    copied = shutil.copytree(STUCK, tmp_path / "run")
    file = copied / artefact
    before = file.read_bytes()
    (tmp_path / "link.json").symlink_to(file)
    for target in (file, tmp_path / "link.json"):
        shown = ["--json"] if room == "hang" else []
        refused = run(room, copied, *shown, "-o", target, "--force")
        assert (refused.returncode, "a file of the run itself" in refused.stderr) == (2, True), refused.stderr
        assert file.read_bytes() == before


@pytest.mark.parametrize("size", ["9" * 400, "1e400GiB", "9" * 400 + "TiB", "inf"])
def test_a_size_beyond_all_numbers_is_wrong_usage(size):
    refused = run("cache", "--limit", size)
    assert (refused.returncode, "not a size" in refused.stderr) == (2, True), refused.stderr


def test_a_number_of_five_thousand_digits_is_no_toml(tmp_path):
    (tmp_path / "a.toml").write_text("training.steps = " + "9" * 5000)
    refused = run("config", "show", tmp_path / "a.toml")
    assert refused.returncode in (2, 3)
    assert "not valid TOML" in refused.stderr


@pytest.mark.parametrize("model", [None, [], "llama3", 5])
def test_a_manifest_with_a_strange_model_hides_no_out_of_memory(tmp_path, model):
    copied = shutil.copytree(OOM, tmp_path / "run")
    manifest = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(manifest | {"model": model}))
    answered = run("inspect", copied, "--json")
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["verdict"]["class"] == "oom"


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_no_machine_has_is_wrong_usage(port):
    """The system would take port 65536 for 0, which is any free port."""
    refused = run("serve", OOM, "--port", port)
    assert (refused.returncode, "--port" in refused.stderr) == (2, True), refused.stderr
