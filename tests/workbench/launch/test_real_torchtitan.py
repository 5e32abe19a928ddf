"""Launch the installed torchtitan: its debug model on two ranks and gloo, healthy and broken in three ways.

Skipped where torchtitan is not installed. It runs with 0.2.2, and with 0.3.0; neither holds a tokenizer or data.
"""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from workbench.launch.torchtitan import BACKEND_OF_OLDER_TORCH, BACKEND_OPTION, Form, installed_torchtitan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed"),
]
ROOT = Path(__file__).parents[3]
PATIENCE_S = 550
TOML = """
[job]
dump_folder = "from_file"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "tokenizer"
[training]
dataset = "c4_test"
dataset_path = "corpus"
local_batch_size = 1
seq_len = 64
steps = 100
mixed_precision_param = "float32"
[activation_checkpoint]
mode = "none"
[metrics]
log_freq = 1
enable_tensorboard = true
[comm]
train_timeout_seconds = 40
"""
OF_THE_REGISTRY = (
    *("--module", "llama3", "--config", "llama3_debugmodel", f"--{BACKEND_OPTION}", BACKEND_OF_OLDER_TORCH),
    *("--job.dump_folder", "from_file", "--hf_assets_path", "tokenizer", "--dataloader.dataset_path", "corpus"),
    *("--training.local_batch_size", "1", "--training.seq_len", "64", "--training.mixed_precision_param", "float32"),
    *("--comm.train_timeout_seconds", "40", "--metrics.enable_tensorboard", "--profiler.profiler_warmup", "1"),
)
FAULT = """
import os, resource, time
if os.environ.get("LOCAL_RANK") == "1":
    import torch
    from torch.distributed import _functional_collectives as functional

    norm, reduce, steps = torch.nn.utils.get_total_norm, functional.all_reduce, []

    def break_step(*args, **kwargs):
        steps.append(1)
        if len(steps) == 3:
            {fault}
        return norm(*args, **kwargs)

    def stay():
        while True:
            time.sleep(1)

    def skip_one():
        def skip(tensor, *args, **kwargs):
            functional.all_reduce = reduce
            return tensor
        functional.all_reduce = skip

    def limit():
        pages = int(open("/proc/self/statm").read().split()[5])
        resource.setrlimit(resource.RLIMIT_DATA, (pages * 4096 + (1 << 20), resource.RLIM_INFINITY))

    torch.nn.utils.get_total_norm = break_step
"""
"""A module that the user's Python imports at its start, and that breaks the third step of rank 1."""


@pytest.fixture
def home(tmp_path) -> Path:
    """Fixture: a user's folder with a byte tokenizer, a text, and torchtitan's settings."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters | {"<s>": 256, "</s>": 257}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "corpus").mkdir()
    rows = [json.dumps({"text": f"Sheep {number} jumps over the fence. " * 50}) for number in range(300)]
    (tmp_path / "corpus" / "data.jsonl").write_text("\n".join(rows))
    (tmp_path / "debug.toml").write_text(TOML)
    return tmp_path


def workbench(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    # torchtitan may lie in a folder beside the environment.
    search = os.pathsep.join([str(home / "start"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-P", "-m", "workbench", *words],
        cwd=home,
        env=os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "HF_HOME": str(home / "hf")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def launch(home: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Launch torchtitan in the form of the installed version."""
    found = installed_torchtitan(sys.path)
    assert found is not None
    form = ("--config", "debug.toml") if found.form is Form.TOML else OF_THE_REGISTRY
    return workbench(home, "launch", "--trainer", "torchtitan", *form, "--nproc", "2", "--no-watch", *options)


def inspect(folder: Path) -> dict[str, object]:
    return json.loads(workbench(folder.parent, "inspect", folder.name, "--json").stdout)


@pytest.mark.timeout(PATIENCE_S)
def test_its_debug_model_trains_and_all_of_it_is_read(home):
    traces = ("--profiling.enable_profiling", "--profiling.profile_freq", "3", "--profiling.profiler_warmup", "1")
    ended = launch(home, "--training.steps", "3", *traces)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "torchtitan trains on the CPU with gloo" in ended.stderr
    folder = home / "from_file"
    manifest = json.loads((folder / "run.json").read_text())
    assert (manifest["status"], manifest["world_size"]) == ("completed", 2)
    assert "torchtitan.train" in manifest["command"]
    report = inspect(folder)
    assert report["verdict"]["status"] == "ok", report["verdict"]
    steps = json.loads(workbench(home, "steps", "from_file", "--json").stdout)
    assert [(row["rank"], row["steps"]) for row in steps["data"]["ranks"]] == [(0, 3), (1, 3)]
    assert {"data_wait", "bwd", "optim"} <= set(steps["data"]["ranks"][0]["phases"])
    kinds = {each["kind"] for each in report["inputs"]}
    assert [row["rank"] for row in report["data"]["trace"]["ranks"]] == [0, 1]
    assert {"steps", "tensorboard", "trace", "log"} <= kinds
    assert not list(folder.glob("dumps/rank_*"))


def test_its_gantt_chart_has_the_steps_of_our_step_logs(tmp_path):
    """Each step and phase of each rank is a bar of its own length."""
    charts = pytest.importorskip("torchtitan.observability.structured_logger.gantt_generator")
    from workbench.recorders.timing.step_log import StepRecorder
    from workbench.recorders.timing.structured_log import export

    recorder = StepRecorder(tmp_path)
    for step in (1, 2):
        with recorder.step(step), recorder.phase("fwd"):
            time.sleep(0.02)
    recorder.close()
    export(tmp_path)
    events = charts.generate_gantt_trace(str(tmp_path / "structured_logs"), str(tmp_path / "gantt.json"))["traceEvents"]
    bars = [(event["name"], event["args"]["step"]) for event in events if event["ph"] == "X"]
    assert sorted(bars) == [("fwd_bwd", 1), ("fwd_bwd", 2), ("step", 1), ("step", 2)]
    assert all(20_000 <= event["dur"] < 2_000_000 for event in events if event["ph"] == "X")


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    ("fault", "kind", "ranks"),
    [("stay()", "host_stuck", [1]), ("skip_one()", "mismatch", [0, 1]), ("limit()", "oom", [1])],
)
def test_a_broken_run_names_the_rank(home, fault, kind, ranks):
    """Gloo ends a rank whose next collective has another size, so that of two ranks either may have skipped one."""
    (home / "start").mkdir()
    (home / "start" / "sitecustomize.py").write_text(FAULT.format(fault=fault))
    ended = launch(home)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    verdict = inspect(home / "from_file")["verdict"]
    assert (verdict["class"], verdict["ranks"]) == (kind, ranks), ended.stdout + ended.stderr
