"""Test the configuration: defaults, TOML, flags, and key names of all torchtitan versions."""

import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from trainer.config import (
    ConfigError,
    JobConfig,
    KeyReport,
    as_dict,
    explain,
    load,
    load_for_training,
    options,
    startup_notes,
)
from trainer.config.compat import flatten
from trainer.config.load import is_known
from trainer.config.registry import from_registry
from trainer.config.schema import help_text, toml
from wild import DATA, SHARED

TOMLS = sorted((DATA / "titan_toml").glob("**/*.toml"))
KEYS = SHARED / "reference" / "torchtitan-config-keys.json"


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


def only(reports: list[KeyReport]) -> KeyReport:
    assert len(reports) == 1
    return reports[0]


@pytest.mark.real
@pytest.mark.skipif(not TOMLS, reason="torchtitan's files are not here")
@pytest.mark.parametrize("path", TOMLS, ids=lambda p: str(p.relative_to(DATA / "titan_toml")))
def test_each_key_of_a_real_file_has_one_class(path: Path) -> None:
    reports = explain(path)
    assert [r.source or r.key for r in reports] == [key for key, _ in flatten(tomllib.loads(path.read_text()))]
    lines = path.read_text().splitlines()
    for report in reports:
        assert report.cls != "unknown", report
        assert (report.source or report.key).rpartition(".")[2] in lines[report.line - 1]
        assert report.reason or report.cls in ("honoured", "translated")
    load(path)


@pytest.mark.real
@pytest.mark.skipif(not KEYS.exists(), reason="the table of keys is not here")
def test_every_key_of_every_age_is_known() -> None:
    table = json.loads(KEYS.read_text())
    keys = {*table["keys"], *table["keys_of_no_core_config"]} - {"checkpoint"}
    assert [key for key in keys if not is_known(key)] == []


@pytest.mark.parametrize(
    ("text", "key", "value", "cls"),
    [
        ("[training]\nbatch_size = 4", "training.local_batch_size", 4, "translated"),
        ("[training]\nwarmup_steps = 2", "lr_scheduler.warmup_steps", 2, "translated"),
        ("[training]\ncompile = true", "compile.enable", True, "translated"),
        ('[training]\nfp8_linear = ""', "model.converters", [], "translated"),
        ('[model]\nconverters = ""', "model.converters", [], "translated"),
        ("[metrics]\nenable_color_printing = true", "metrics.disable_color_printing", False, "translated"),
        ("[metrics]\nrank_0_only = true", "metrics.save_for_all_ranks", False, "translated"),
        ("[optimizer]\nlr = 1", "optimizer.lr", 1.0, "honoured"),
        (
            "[activation_checkpoint]\nselective_ac_option = 2",
            "activation_checkpoint.selective_ac_option",
            "2",
            "honoured",
        ),
        ("[profiler]\nprofile_freq = 5", "profiling.profile_freq", 5, "translated"),
        ("[parallelism]\ntensor_parallel_degree = 1", "parallelism.tensor_parallel_degree", 1, "honoured"),
        (
            "[parallelism]\nnum_pp_microbatches = 4",
            "parallelism.pipeline_parallel_microbatch_size",
            2,
            "translated",
        ),
        (
            '[experimental]\npipeline_parallel_schedule = "interleaved_1f1b"',
            "parallelism.pipeline_parallel_schedule",
            "interleaved_1f1b",
            "translated",
        ),
        ("dump_folder = 'here'", "job.dump_folder", "here", "translated"),
    ],
)
def test_a_key_is_understood(tmp_path: Path, text: str, key: str, value: object, cls: str) -> None:
    path = write(tmp_path, text)
    report = only(explain(path))
    assert (report.key, report.value, report.cls) == (key, value, cls)
    section, name = key.split(".")
    assert as_dict(load(path))[section][name] == value


@pytest.mark.parametrize(("kind", "replicate", "shard"), [("ddp", 4, 1), ("fsdp", 1, 4)])
def test_old_data_parallel_keys_become_two_degrees(tmp_path: Path, kind: str, replicate: int, shard: int) -> None:
    path = write(tmp_path, f'[training]\ndata_parallel_degree = 4\ndata_parallel_type = "{kind}"')
    config = load(path).parallelism
    assert (config.data_parallel_replicate_degree, config.data_parallel_shard_degree) == (replicate, shard)


def test_tokens_become_sequences(tmp_path: Path) -> None:
    text = "[training]\nnum_tokens_per_microbatch_per_dp_rank = 16384\nmax_context_length = 4096\n"
    config = load(write(tmp_path, text + "num_tokens_per_train_step = 65536")).training
    assert (config.local_batch_size, config.seq_len, config.global_batch_size) == (4, 4096, 16)


def test_the_new_name_wins_over_the_old_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[compile]\nenable = false\n[training]\ncompile = true")
    assert not load(path).compile.enable
    assert [report.cls for report in explain(path)] == ["honoured", "ignored"]


def test_flags_come_after_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nsteps = 3\nseq_len = 64")
    flags = [
        "--config",
        str(path),
        "--training.steps=5",
        "--optimizer.lr",
        "1e-2",
        "--compile.components",
        "model",
        "loss",
    ]
    config = load(None, [*flags, "--lr_scheduler.decay-ratio", "None", "--debug.seed", "-1"])
    assert (config.training.steps, config.training.seq_len, config.optimizer.lr) == (5, 64, 0.01)
    assert (config.compile.components, config.lr_scheduler.decay_ratio, config.debug.seed) == (
        ["model", "loss"],
        None,
        -1,
    )
    assert config.job.config_file == str(path)


@pytest.mark.parametrize(
    ("flag", "state"),
    [
        ("--profiling.enable_memory_snapshot", True),
        ("--profiling.enable-memory-snapshot", True),
        ("--profiling.no_enable_memory_snapshot", False),
        ("--profiling.no-enable-memory-snapshot", False),
    ],
)
def test_booleans_are_switches(flag: str, state: bool) -> None:
    report = only(explain(None, [flag]))
    assert (report.key, report.value, report.cls) == ("profiling.enable_memory_snapshot", state, "honoured")


@pytest.mark.parametrize(
    "words", [["--compile.enable=False"], ["--compile.enable", "False"], ["--compile.no_enable=1"]]
)
def test_a_switch_takes_no_value(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="takes no value") as caught:
        load(None, words)
    assert caught.value.hint == "write --compile.enable or --compile.no_enable"


def test_all_unknown_keys_are_named_at_once_with_what_was_meant(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nseq_length = 3\n[trainng]\nsteps = 3")
    with pytest.raises(ConfigError) as caught:
        load(path, ["--job.dump_foldr", "x"])
    assert caught.value.message == "unknown keys: training.seq_length (line 2), trainng.steps (line 4), job.dump_foldr"
    for meant in ("training.seq_len", "training.steps", "job.dump_folder"):
        assert meant in caught.value.hint


@pytest.mark.parametrize(
    "words",
    [
        ["--parallelism.context_parallel_load_balancer", "ptrr"],
        ["--model.converters", "mx"],
        ["--memory_estimation.enable"],
        ["--fault_tolerance.enable"],
    ],
)
def test_what_would_change_the_result_is_refused(words: list[str]) -> None:
    load(None, words)
    assert only(explain(None, words)).cls == "ignored"
    with pytest.raises(ConfigError, match="cannot do what is asked"):
        load_for_training(words)


@pytest.mark.parametrize(
    "words",
    [
        "--training.steps many",
        "--training.steps",
        "--optimizer.name SGD",
        "lonely",
        "--config",
        "--module x",
        "--config /no/such.toml",
        "--module llama3 --config no",
        "--module no.such --config no",
    ],
)
def test_mistakes_end_in_a_hint(words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, words.split())
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a." * 50_000 + "a = 1", id="dots"),
        pytest.param(
            "[" + "a." * 20_000 + "a]\n" + "".join(f"x{n} = 1\n" for n in range(8000)), id="below a deep table"
        ),
        pytest.param("x = {" + "a . " * 25_000 + "a = 1}", id="in an inline table"),
        pytest.param('"a".' * 25_000 + "a = 1", id="quoted"),
        pytest.param("x = " + "{a=" * 16_000 + "1" + "}" * 16_000, id="inline tables"),
        pytest.param("".join(f"steps{n} = 1\n" for n in range(10_000)), id="unknown keys"),
        pytest.param("x = [" + "1," * 600_000 + "]", id="long"),
        pytest.param('x = """\n[' + " " * 100_000 + '\n"""\n' + "y=" * 9, id="what looks like a table"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError):
        explain(tmp_path / "a.toml")
    assert time.process_time() - began < 2


def test_registry_functions_give_configurations() -> None:
    config = load(None, ["--module", "llama3", "--config", "llama3_debugmodel", "--training.steps", "3"])
    assert (config.model.flavor, config.training.steps, config.training.seq_len) == ("debugmodel", 3, 128)


def test_the_printed_configuration_can_be_read_again(tmp_path: Path) -> None:
    config = JobConfig()
    config.training.steps, config.job.description, config.checkpoint.exclude_from_loading = 7, 'a "b" ü', ["model"]
    path = write(tmp_path, toml(config))
    config.job.config_file = str(path)
    assert load(path) == config


def test_help_lists_every_key() -> None:
    text = help_text("trainer")
    for key, option in options().items():
        assert f"--{key}" in text
        assert option.help in text


def test_the_schema_needs_no_torch_and_prints() -> None:
    arguments = ["--module", "llama3", "--config", "llama3_debugmodel"]
    code = f"import sys, trainer.config.__main__ as m; m.main({arguments}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    assert 'flavor = "debugmodel"' in done.stdout


def test_what_is_replaced_or_without_effect_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, '[mx]\nrecipe_name = "mxfp8"\n[job]\nprint_args = false\n[training]\nwarmup_pct = 0.01')
    replaced, ignored = startup_notes(["--config", str(path), "--checkpoint.no_last_save_in_hf"])
    assert replaced.startswith("training.warmup_pct became lr_scheduler.warmup_steps = 100: 0.01 of 10000 steps")
    assert ignored.startswith("without effect here: mx.recipe_name (it belongs to a conversion")


@pytest.mark.parametrize("name", ["c4", "c4_test", "c4_mini", "c4_validation", "my_corpus"])
@pytest.mark.parametrize("section", ["training", "validation"])
def test_data_that_are_not_shipped_are_replaced_only_if_the_user_allows_it(
    tmp_path: Path, section: str, name: str
) -> None:
    path = write(tmp_path, f'[{section}]\ndataset = "{name}"')
    words = ["--config", str(path), "--validation.enable"]
    with pytest.raises(ConfigError, match=f"{section}.dataset = '{name}' .line .*is not shipped") as caught:
        load_for_training(words)
    assert f"--{section}.dataset_path" in caught.value.hint
    assert "--training.allow_synthetic" in caught.value.hint
    config = load_for_training([*words, "--training.allow_synthetic"])
    assert getattr(config, section).dataset == "synthetic"
    (note,) = startup_notes([*words, "--training.allow_synthetic"])
    assert note.startswith(f"{section}.dataset = 'synthetic': {name!r} is not shipped; seeded synthetic text")
    local = [*words, f"--{section}.dataset_path", str(tmp_path), "--training.allow_synthetic"]
    assert getattr(load_for_training(local), section).dataset == name
    assert startup_notes(local) == []


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("llama3", ["llama3_debugmodel", "llama3_8b", "llama3_70b", "llama3_405b"]),
        ("llama4", ["llama4_debugmodel", "llama4_17bx16e", "llama4_17bx128e"]),
        ("qwen3", ["qwen3_debugmodel", "qwen3_0_6b", "qwen3_1_7b", "qwen3_14b", "qwen3_32b"]),
        ("qwen3_moe", ["qwen3_moe_debugmodel", "qwen3_30b_a3b"]),
        ("deepseek_v3", ["deepseek_v3_debugmodel", "deepseek_v3_671b"]),
    ],
)
def test_the_configurations_of_each_model_have_the_names_that_commands_are_given(module, names):
    with pytest.raises(ConfigError) as refused:
        from_registry(module, "none")
    assert refused.value.hint == f"it has {', '.join(names)}"
    for name in names:
        assert from_registry(module, name).model.flavor
