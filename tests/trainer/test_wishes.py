"""No setting that changes a run is ignored: the trainer obeys it, or refuses it with a hint."""

import ast
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from ranks import ROOT
from trainer.config import ConfigError, JobConfig, explain, load_for_training, options, startup_notes, validate
from trainer.config.compat import RENAMED, SWITCHES, flatten
from trainer.config.mesh import KEYS as DEGREES
from trainer.config.refusals import REFUSED, WITHOUT_EFFECT, refusal_of
from workbench.recorders import RecorderOptions

WISHES = """
[activation_checkpoint]
mode = "memory_budget"
per_op_sac_force_recompute_mm_shapes_by_fqns = ["attention.wq"]

[checkpoint]
async_mode = "async_with_pinned_mem"
create_seed_checkpoint = true
initial_load_in_hf = true
initial_load_in_hf_quantized = true
interval_type = "seconds"
last_save_in_hf = true

[comm]
mode = "local_tensor"

[compile]
enable_async_tensor_parallel = true

[debug]
batch_invariant = true
deterministic = true
deterministic_warn_only = true
moe_force_load_balance = true
seed = 3

[experimental]
custom_args_module = "mine"
custom_import = "mine"
custom_model_path = "mine"
context_parallel_rotate_method = "alltoall"
enable_async_tensor_parallel = true
enable_compiled_autograd = true
pipeline_parallel_schedule_csv = "a.csv"
pipeline_parallel_split_mode = "tracer"
pipeline_parallel_split_points = ["layers.2"]

[fault_tolerance]
enable = true

[float8]
enable_float8_linear = true

[job]
custom_config_module = "mine"

[memory_estimation]
enable = true

[metrics]
enable_wandb = true

[model]
attn_mask_type = "block_causal"
converters = ["float8"]
flavor = "1B"
norm_type = "layernorm"
use_flex_attn = true

[model_converters]
converters = ["mx"]

[optimizer]
early_step_in_backward = true
implementation = "fused_opt_states_bf16"
name = "SGD"
optimizer_factory_kwargs_by_name.AdamW.lr = 1e-4
param_groups = ["norm"]

[override]
imports = ["mine"]

[parallelism]
context_parallel_load_balancer = "ptrr"
context_parallel_rotate_method = "alltoall"
context_parallel_ptrr_mask_key = "mask"
disable_loss_parallel = true
enable_async_tensor_parallel = true
enable_compiled_autograd = true
enable_fsdp_symm_mem = true
enable_sequence_parallel = false
expert_parallel_comm_backend = "deepep"
expert_tensor_parallel_degree = 2
hybridep_non_blocking_expert_capacity_factor = 1.5
module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
pipeline_parallel_schedule_csv = "a.csv"
pipeline_parallel_split_points = ["layers.2"]

[profiler]
memory_snapshot_freq = 3
memory_snapshot_max_entries = 1000
profiler_repeat = 1
profiler_skip_first = 3
profiler_skip_first_wait = 2
trace_post_processor = "mine"

[training]
dataset = "c4"
enable_cpu_offload = true
enable_float8_linear = true
enable_fp8_linear = true
enable_loss_parallel = false
fp8_linear = "dynamic"
mixed_precision_reduce = "bfloat16"

[validation]
enable = true

[validator]
enable = true
"""
"""Settings of which each changes what is computed, what is written, where it runs or what it costs.

They were written before the tables of the trainer.
"""

BESIDE = [(f"parallelism.{name}_parallel_degree", 2) for name in ("context", "expert", "pipeline", "tensor")]
"""Keys that must be set together with some settings of `WISHES`, which have no effect without them."""


def everything() -> list[tuple[str, object]]:
    """Return each key and value of `WISHES`, with the keys of `BESIDE` that make them take effect."""
    return [*flatten(tomllib.loads(WISHES))]


def toml_of(keys: Iterable[tuple[str, object]]) -> str:
    """Return the keys as a TOML file, one per line."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys)


def outcome(path: Path) -> str:
    """Return how the first key of a file is handled: honoured, translated, ignored or refused."""
    report = explain(path)[0]
    if not report.refused:
        return report.cls
    with pytest.raises(ConfigError) as caught:
        load_for_training(["--config", str(path)])
    assert f"{report.source or report.key} = {report.value!r} (line 1): {report.reason}" in caught.value.message
    assert report.suggestion
    assert report.suggestion in caught.value.hint
    return "refused"


def is_possible(path: Path) -> bool:
    """Return whether the values in a file have the types and ranges of their keys."""
    try:
        explain(path)
    except ConfigError as error:
        return not error.hint
    return True


@pytest.mark.parametrize(("key", "value"), everything(), ids=lambda part: str(part)[:60])
def test_a_wish_is_honoured_or_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "wish.toml"
    others = [(name, degree) for name, degree in BESIDE if name != key]
    path.write_text(toml_of([(key, value), *others]))
    assert not is_possible(path) or outcome(path) in ("honoured", "translated", "refused")


STATE = re.compile(r"^\| `([\w.]+ = [^`]+)` \| (honoured|translated|ignored|refused) \|$", re.MULTILINE)


@pytest.mark.parametrize(("line", "state"), STATE.findall((ROOT / "docs" / "compatibility.md").read_text()))
def test_the_documentation_says_what_becomes_of_a_setting(tmp_path: Path, line: str, state: str) -> None:
    path = tmp_path / "x.toml"
    # Beside one rank of tensor parallelism its settings change nothing.
    path.write_text(f"{line}\n" + toml_of(pair for pair in BESIDE if pair[0] not in line and "degree" not in line))
    assert outcome(path) == state


def names(patterns: Iterable[str]) -> list[str]:
    """Return a key that matches each pattern."""
    return [pattern.replace("*", "x") for pattern in patterns]


@pytest.mark.parametrize("key", names(WITHOUT_EFFECT))
def test_a_key_without_effect_leaves_the_configuration_as_it_is(tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.toml"
    for value in (True, 3, "text"):
        path.write_text(toml_of([(key, value)]))
        (report,) = explain(path)
        assert (report.cls, report.refused) == ("ignored", False)
        assert report.reason
        expected = JobConfig()
        expected.job.config_file = str(path)
        assert load_for_training(["--config", str(path)]) == expected


@pytest.mark.parametrize("key", names(REFUSED))
def test_a_refused_key_names_the_values_that_are_possible(tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(toml_of([(key, "nonsense"), *BESIDE]))
    assert outcome(path) == "refused"
    for value in refusal_of(key).possible:
        if value is not None:
            path.write_text(toml_of([(key, value)]))
            assert outcome(path) in ("honoured", "ignored")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_older_name_does_what_the_newer_one_does(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "x.toml"
    option = options().get(new)
    value = {bool: True, int: 7, float: 0.5, list: ["model"]}.get(option.kind, "text") if option else "text"
    value = option.choices[-1] if option and option.choices and option.kind is str else value
    reports = []
    for key in (old, new):
        path.write_text(toml_of([(key, value)]))
        (report,) = explain(path)
        reports.append((report.key, report.value, report.refused))
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("flags", "keys", "turn_on"),
    [
        (
            ["--checkpoint.interval", "5", "--checkpoint.folder", "c"],
            "interval, checkpoint.folder",
            "checkpoint.enable",
        ),
        (["--validation.freq", "3"], "validation.freq", "validation.enable"),
        (["--profiling.profile_freq", "5"], "profile_freq", "enable_profiling or --profiling.enable_memory_snapshot"),
        (["--profiling.profiler_active", "2", "--profiling.enable_memory_snapshot"], "profiler_active", "_profiling"),
        (["--compile.components", "loss"], "compile.components", "compile.enable"),
        (["--parallelism.pipeline_parallel_schedule", "GPipe"], "schedule", "pipeline_parallel_degree N"),
        (["--activation_checkpoint.memory_budget", "0.3"], "memory_budget", "mode memory_budget"),
        (
            ["--activation_checkpoint.mode", "none", "--activation_checkpoint.early_stop"],
            "early_stop",
            "selective or full",
        ),
        (["--checkpoint.enable", "--checkpoint.no_initial_load_model_only"], "initial_load_model_only", "_path FOLDER"),
        (["--checkpoint.enable", "--checkpoint.load_only", "--checkpoint.interval", "5"], "interval", "no_load_only"),
        (
            ["--checkpoint.enable", "--checkpoint.export_dtype", "bfloat16", "--checkpoint.no_last_save_model_only"],
            "checkpoint.export_dtype",
            "last_save_model_only, as a checkpoint to resume from",
        ),
        (["--lr_scheduler.decay_ratio", "0", "--lr_scheduler.decay_type", "sqrt"], "decay_type", "decay_ratio SHARE"),
        (["--faults.name", "oom", "--faults.seconds", "2"], "faults.seconds", "straggler, straggler_data"),
        (["--faults.name", "nan", "--faults.every", "2"], "faults.every", "straggler, straggler_data"),
        (["--float8.emulate"], "float8.emulate", "converters float8"),
        (["--debug.moe_force_load_balance"], "moe_force_load_balance", "llama4, which has experts"),
        (["--parallelism.expert_tensor_parallel_degree", "2"], "expert_tensor_parallel_degree", "which has experts"),
        (["--parallelism.enable_async_tensor_parallel"], "enable_async_tensor_parallel", "tensor_parallel_degree N"),
        (["--comm.mode", "fake_backend", "--training.steps", "5"], "training.steps", "as now one step runs"),
        (["--comm.mode", "fake_backend", "--compile.enable"], "compile.enable", "as now no values"),
        (["--metrics.save_for_all_ranks"], "save_for_all_ranks", "enable_tensorboard or --metrics.enable_wandb"),
    ],
)
def test_a_key_whose_switch_is_off_is_named(flags: list[str], keys: str, turn_on: str) -> None:
    (note,) = startup_notes(flags)
    assert note.startswith("without effect: ")
    assert f"{keys} (add --" in note
    assert turn_on in note
    section, _, name = turn_on.partition(" ")[0].rpartition(".")
    if section and name.startswith("enable"):
        assert startup_notes([*flags, f"--{section}.{name}"]) == []


@pytest.mark.parametrize(
    ("ranks", "flags", "is_named"),
    [
        (2, ["--parallelism.data_parallel_replicate_degree", "2"], True),
        (2, ["--parallelism.pipeline_parallel_degree", "2"], True),
        (4, ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.tensor_parallel_degree", "2"], False),
        (1, [], True),
        (1, ["--training.enable_cpu_offload"], False),
        (2, [], False),
    ],
)
def test_what_fsdp_does_is_named_where_there_is_none(ranks: int, flags: list[str], *, is_named: bool) -> None:
    notes = startup_notes([*flags, "--parallelism.fsdp_reshard_after_forward", "never"], ranks)
    assert [note.startswith("without effect: parallelism.fsdp_reshard_after_forward (add") for note in notes] == (
        [True] if is_named else []
    )


def test_a_warm_up_that_is_longer_than_the_schedule_is_named() -> None:
    flags = ["--training.steps", "10"]
    assert startup_notes(flags) == []
    assert startup_notes([*flags, "--lr_scheduler.warmup_steps", "10"]) == []
    [note] = startup_notes([*flags, "--lr_scheduler.warmup_steps", "200"])
    assert note == "lr_scheduler.warmup_steps 200 is longer than the schedule, and becomes 10"


def test_the_schedule_that_replaces_another_is_named() -> None:
    flags = ["--parallelism.pipeline_parallel_degree", "4", "--training.local_batch_size"]
    assert startup_notes([*flags, "4"]) == []
    assert startup_notes([*flags, "1", "--parallelism.pipeline_parallel_schedule", "GPipe"]) == []
    [note] = startup_notes([*flags, "1"])
    assert note.startswith("parallelism.pipeline_parallel_schedule 1F1B becomes GPipe")
    assert note.endswith("only 1 of 4 stages works at a time until training.local_batch_size is 4")


def test_gradients_are_not_clipped_to_nothing() -> None:
    with pytest.raises(ConfigError, match="clip every gradient to 0") as caught:
        validate(load_for_training(["--training.max_norm", "0"]), 1)
    assert "1e9" in caught.value.hint


def test_weights_in_bfloat16_are_not_said_to_compute_in_float32() -> None:
    config = load_for_training(["--training.dtype", "bfloat16", "--training.mixed_precision_param", "float32"])
    with pytest.raises(ConfigError, match="weights compute in their own type"):
        validate(config, 1)
    assert validate(config, 2).uses_fsdp


def test_a_file_that_turns_its_switch_off_is_not_told_so(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[checkpoint]\nenable = false\ninterval = 5\n")
    assert startup_notes(["--config", str(path)]) == []
    assert len(startup_notes(["--config", str(path), "--checkpoint.interval", "7"])) == 1
    path.write_text("[checkpoint]\ninterval = 5\n")
    assert len(startup_notes(["--config", str(path)])) == 1


@pytest.mark.parametrize("flags", [["--checkpoint.initial_load_path", "x"], ["--checkpoint.load_only"]])
def test_weights_that_would_not_be_loaded_are_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"has no effect, because checkpoint\.enable is off"):
        load_for_training(flags)
    assert load_for_training([*flags, "--checkpoint.enable"])


def attributes_read() -> set[str]:
    """Return the names of all attributes that the trainer or its launcher reads, except in the configuration schema."""
    files = [*(ROOT / "trainer").rglob("*.py"), *(ROOT / "workbench" / "launch").glob("*.py")]
    schema = {"sections.py", "schema.py", "compat.py", "refusals.py", "config_registry.py"}
    trees = [ast.parse(file.read_text()) for file in files if file.name not in schema]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_every_key_that_is_honoured_is_read_somewhere() -> None:
    recorded = {field.name for field in fields(RecorderOptions)}
    read = attributes_read() | recorded | set(DEGREES.values())
    assert [key for key in options() if key.rpartition(".")[2] not in read and key not in REFUSED] == []


@pytest.mark.parametrize(
    ("line", "range_"),
    [
        ('training.seq_len = "long"', "an integer from 1"),
        ("training.seq_len = 0", "an integer from 1"),
        ("training.steps = 1.5", "an integer from 1"),
        ("training.global_batch_size = -2", "-1 or an integer from 1"),
        ("optimizer.lr = nan", "a number from 0 to 1.7e+308"),
        ("optimizer.beta2 = 1.5", "a number from 0 to 1"),
        ("lr_scheduler.decay_ratio = 2", "a number from 0 to 1, or None"),
        ("compile.enable = 1", "true or false"),
        ('compile.components = ["all"]', "a list of model, loss"),
        ("compile.components = 3", "a list of model, loss"),
        ('optimizer.name = "SGD"', "one of Adam, AdamW"),
        ("job.dump_folder = []", "a string"),
        ("debug.seed = 1e3", "an integer from -9.22337e+18 to 9.22337e+18, or None"),
    ],
)
def test_a_value_of_another_type_or_range_is_named_with_its_line(tmp_path: Path, line: str, range_: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"\n{line}\n")
    key, _, value = line.partition(" = ")
    with pytest.raises(ConfigError) as caught:
        explain(path)
    assert caught.value.message.startswith(f"line 2: {key} = ")
    assert caught.value.message.endswith(f" is not {range_}")
    if key not in ("compile.enable", "job.dump_folder"):
        with pytest.raises(ConfigError) as typed:
            explain(None, [f"--{key}", value.strip('"')])
        assert typed.value.message.endswith(f" is not {range_}")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("training.steps", "1_000", 1000),
        ("training.steps", "0x10", 16),
        ("optimizer.lr", "1e-3", 1e-3),
        ("optimizer.lr", "1", 1.0),
        ("lr_scheduler.decay_ratio", "None", None),
        ("compile.components", '["loss"]', ["loss"]),
        ("compile.components", "[]", []),
        ("compile.components", "model,loss", ["model", "loss"]),
        ("activation_checkpoint.selective_ac_option", "2", "2"),
        ("job.description", "a b", "a b"),
        ("job.save_config_file", "None", None),
        ("activation_checkpoint.mode", "none", "none"),
        ("activation_checkpoint.mode", "memory_budget", "memory_budget"),
        ("comm.mode", "local_tensor", "local_tensor"),
    ],
)
def test_the_command_line_and_a_file_take_the_same_values(tmp_path: Path, key: str, text: str, value: object) -> None:
    path = tmp_path / "x.toml"
    is_bare = text[0] in "[0123456789"
    path.write_text(f"{key} = {text if is_bare else json.dumps(text)}\n")
    reports = [*explain(path), *explain(None, [f"--{key}", text])]
    assert [report.value for report in reports] == [value, value]


def test_a_flag_replaces_a_refused_value_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[model]\nnorm_type = "layernorm"\n[metrics]\nlog_freq = 3\n')
    flags = ["--config", str(path), "--model.norm_type", "rmsnorm", "--metrics.log_freq", "5"]
    assert load_for_training(flags).metrics.log_freq == 5
    in_file = [report for report in explain(None, flags) if report.line]
    assert [(report.cls, report.refused, report.reason) for report in in_file] == [
        ("ignored", False, "a flag sets it")
    ] * 2
    assert startup_notes(flags) == []


def test_a_refusal_names_the_value_in_force(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[model]\nname = "llama3"\n')
    with pytest.raises(ConfigError) as caught:
        load_for_training(["--config", str(path), "--model.name", "flux"])
    assert caught.value.message.count("model.name") == 1


@pytest.mark.parametrize("key", [*SWITCHES, "training.data_parallel_type"])
def test_an_older_switch_is_true_or_false(tmp_path: Path, key: str) -> None:
    section, name = key.split(".")
    path = tmp_path / "x.toml"
    path.write_text(f'[{section}]\n{name} = "yes"\n')
    with pytest.raises(ConfigError, match=f"line 2: {key} = 'yes'"):
        load_for_training(["--config", str(path)])


@pytest.mark.parametrize("section", ["training", "validation"])
def test_workers_of_a_loader_are_ignored_for_the_right_reason(tmp_path: Path, section: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"[{section}.dataloader]\nnum_workers = 3\n")
    (report,) = explain(path)
    assert report.reason == "data are made in the training process"
