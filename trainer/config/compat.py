"""Translate keys of other torchtitan versions, older and newer, to the keys of this trainer.

`RENAMED` lists keys whose value stays the same. `CONVERTED` lists keys whose value changes too. The module `refusals`
lists the keys and values that the trainer does not support.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import ConfigError


class Translation(NamedTuple):
    """The key and value of this trainer that replace another torchtitan version's key, and the reason."""

    key: str
    value: object
    reason: str = ""


Values = Mapping[str, object]
"""{key: value}, for all keys that the user wrote; the meaning of some keys depends on other keys."""
Converter = Callable[[object, Values], Translation | None]

RENAMED = {
    "activation_checkpoint.force_recompute_mm_shapes_by_fqns":
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "checkpoint.last_save_in_safetensors_format": "checkpoint.last_save_in_hf",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "comm.timeout_seconds": "comm.train_timeout_seconds",
    "dataloader.dataset": "training.dataset",
    "dataloader.dataset_path": "training.dataset_path",
    "debug_memory_breakdown": "debug.memory_breakdown",
    "debug_timing_breakdown": "debug.timing_breakdown",
    "debug.print_config": "job.print_config",
    "debug.save_config_file": "job.save_config_file",
    "dump_folder": "job.dump_folder",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "estimate.memory": "memory_estimation.enable",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.custom_args_module": "job.custom_config_module",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "experimental.enable_compiled_autograd": "parallelism.enable_compiled_autograd",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_schedule_csv": "parallelism.pipeline_parallel_schedule_csv",
    "experimental.pipeline_parallel_split_points": "parallelism.pipeline_parallel_split_points",
    "global.dump_folder": "job.dump_folder",
    "hf_assets_path": "model.hf_assets_path",
    "job.print_args": "job.print_config",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "memory_estimation.enabled": "memory_estimation.enable",
    "model.tokenizer_path": "model.hf_assets_path",
    "model_converters.converters": "model.converters",
    "profiler.enable_memory_snapshot": "profiling.enable_memory_snapshot",
    "profiler.enable_profiling": "profiling.enable_profiling",
    "profiler.memory_snapshot_freq": "profiling.memory_snapshot_freq",
    "profiler.memory_snapshot_max_entries": "profiling.memory_snapshot_max_entries",
    "profiler.profile_freq": "profiling.profile_freq",
    "profiler.profiler_active": "profiling.profiler_active",
    "profiler.profiler_repeat": "profiling.profiler_repeat",
    "profiler.profiler_skip_first": "profiling.profiler_skip_first",
    "profiler.profiler_skip_first_wait": "profiling.profiler_skip_first_wait",
    "profiler.profiler_warmup": "profiling.profiler_warmup",
    "profiler.save_memory_snapshot_folder": "profiling.save_memory_snapshot_folder",
    "profiler.save_traces_folder": "profiling.save_traces_folder",
    "profiler.trace_post_processor": "profiling.trace_post_processor",
    "profiler.trace_post_processor.fn": "profiling.trace_post_processor",
    "profiling.profile_every_x_iter": "profiling.profile_freq",
    "profiling.run_profiler": "profiling.enable_profiling",
    "training.batch_size": "training.local_batch_size",
    "training.checkpoint_folder": "checkpoint.folder",
    "training.checkpoint_interval": "checkpoint.interval",
    "training.checkpoint_interval_type": "checkpoint.interval_type",
    "training.compile": "compile.enable",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.deterministic": "debug.deterministic",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.max_context_length": "training.seq_len",
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.seed": "debug.seed",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "validation.enabled": "validation.enable",
    "validator.dataloader.dataset": "validation.dataset",
    "validator.dataloader.dataset_path": "validation.dataset_path",
    "validator.enable": "validation.enable",
    "validator.freq": "validation.freq",
    "validator.steps": "validation.steps",
    "training.enable_fsdp_float8_all_gather": "float8.enable_fsdp_float8_all_gather",
    "training.enable_fsdp_fp8_all_gather": "float8.enable_fsdp_float8_all_gather",
    "training.float8_scaling_type_grad_output": "float8.scaling_type_grad_output",
    "training.float8_scaling_type_input": "float8.scaling_type_input",
    "training.float8_scaling_type_weight": "float8.scaling_type_weight",
    "training.precompute_float8_dynamic_scale_for_fsdp": "float8.precompute_float8_dynamic_scale_for_fsdp",
    **{
        f"quantize.{products}.float8.{key}": f"float8.{key}"
        for products in ("linear", "dense")
        for key in (
            *("recipe_name", "filter_fqns", "emulate", "enable_fsdp_float8_all_gather"),
            "precompute_float8_dynamic_scale_for_fsdp",
        )
    },
}  # fmt: skip


def _negate(key: str) -> Converter:
    """Return a function that translates a boolean key to `key`, a key with the opposite meaning.

    The arguments of this function are the value that the user wrote and all written keys. It returns the `Translation`.
    """
    return lambda value, _: Translation(key, not value, "the opposite switch")


def _data_parallel(value: object, written: Values) -> Translation:
    kind = "replicate" if written.get("training.data_parallel_type") == "ddp" else "shard"
    return Translation(f"parallelism.data_parallel_{kind}_degree", value)


def data_parallel_type(value: object, _: Values) -> Translation:
    """Convert `training.data_parallel_type`: "ddp" to a shard degree of 1, "fsdp" to a replicate degree of 1."""
    if value not in ("ddp", "fsdp"):
        raise ConfigError(f"training.data_parallel_type = {value!r} is unknown", 'give "ddp" or "fsdp"')
    if value == "ddp":
        return Translation("parallelism.data_parallel_shard_degree", 1, "ddp shards nothing")
    return Translation("parallelism.data_parallel_replicate_degree", 1, "fsdp replicates nothing")


def number(key: str, value: object) -> float:
    """Return `value` if it is a number, else raise an error that names the key `key`.

    Raises:
        ConfigError: `value` is not a number.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{key} = {value!r} is not a number", "give an integer or a float")


def _warmup_share(value: object, written: Values) -> Translation:
    # Without a written number of steps, its default counts.
    steps = number("training.steps", written.get("training.steps", 10000))
    share = number("training.warmup_pct", value)
    return Translation("lr_scheduler.warmup_steps", int(share * steps), f"{share} of {steps} steps")


def _tokens_to_sequences(key: str) -> Converter:
    """Return a function that converts the value of `key` from a number of tokens to a number of sequences.

    The arguments of this function are the value that the user wrote and all written keys. It divides the value by the
    written training.seq_len; a negative value stays the same.
    """

    def convert(value: object, written: Values) -> Translation:
        length_written = written.get("training.seq_len") or written.get("training.max_context_length") or 2048
        length, tokens = number("training.seq_len", length_written), number(key, value)
        return Translation(key, tokens if tokens < 0 else tokens // length, f"in sequences of {length} tokens")

    return convert


def _microbatch_size(key: str) -> Converter:
    """Return a function that translates `key`, a number of microbatches, to the size of a microbatch in sequences.

    The arguments of this function are the value that the user wrote and all written keys, among them the batch size.
    The size is 1 if the number is missing or 0. The function raises ConfigError if the batch cannot be divided evenly.
    """

    def convert(value: object, written: Values) -> Translation:
        batch_written = written.get("training.local_batch_size") or written.get("training.batch_size") or 8
        batch, count = number("training.local_batch_size", batch_written), number(key, value or 0)
        if count and batch % count:
            raise ConfigError(f"{key} {count} does not divide training.local_batch_size {batch}", "give a divisor")
        size = int(batch // count) if count else 1
        reason = f"{batch} sequences in {count} microbatches" if count else "no number of microbatches is given"
        return Translation("parallelism.pipeline_parallel_microbatch_size", size, reason)

    return convert


_CONVERTER_NAMES = {f"quantize.{products}.float8": "float8" for products in ("linear", "dense")}
"""{name of a model converter in other torchtitan versions: its name in this trainer}."""


def _float8_converter(value: object, _: Values) -> Translation:
    return Translation("model.converters", ["float8"] if value else [], "float8 is a converter of the model")


def _converter_names(value: object, _: Values) -> Translation | None:
    """Convert model.converters from a comma-separated string to a list, and translate the names in it.

    Other torchtitan versions use other names for "float8". Return None if nothing changes.
    """
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(names, list):
        return None
    ours = [_CONVERTER_NAMES.get(str(name), name) for name in names]
    if ours != names:
        return Translation("model.converters", ours, "it is called float8 here")
    return Translation("model.converters", ours, "commas separate the names") if ours != value else None


_WITH_EXPERTS = {"debugmodel_moe": "debugmodel", "30B-A3B": "30B-A3B", "235B-A22B": "235B-A22B"}
"""{flavor of torchtitan's qwen3 that has experts: the corresponding flavor of this trainer's qwen3_moe}."""


def _qwen3_with_experts(_: object, written: Values) -> Translation | None:
    if written.get("model.name") == "qwen3" and written.get("model.flavor") in _WITH_EXPERTS:
        return Translation("model.name", "qwen3_moe", "so is Qwen3 with experts called here")
    return None


def _flavor_with_experts(value: object, written: Values) -> Translation | None:
    """Translate a flavor of qwen3 with experts, such as `30B-A3B`, to its name in qwen3_moe."""
    ours = _WITH_EXPERTS.get(str(value), value)
    if written.get("model.name") == "qwen3" and ours != value:
        return Translation("model.flavor", ours, "so is it called in qwen3_moe")
    return None


CONVERTED: dict[str, Converter] = {
    "float8.enable_float8_linear": _float8_converter,
    "metrics.enable_color_printing": _negate("metrics.disable_color_printing"),
    "metrics.rank_0_only": _negate("metrics.save_for_all_ranks"),
    "experimental.pipeline_parallel_microbatches": _microbatch_size("experimental.pipeline_parallel_microbatches"),
    "model.converters": _converter_names,
    "model.flavor": _flavor_with_experts,
    "model.name": _qwen3_with_experts,
    "optimizer.fused": lambda value, _: Translation("optimizer.implementation", "fused" if value else "for-loop"),
    "parallelism.num_pp_microbatches": _microbatch_size("parallelism.num_pp_microbatches"),
    "parallelism.pipeline_parallel_microbatches": _microbatch_size("parallelism.pipeline_parallel_microbatches"),
    "training.data_parallel_degree": _data_parallel,
    "training.data_parallel_type": data_parallel_type,
    "training.enable_float8_linear": _float8_converter,
    "training.enable_fp8_linear": _float8_converter,
    "training.enable_loss_parallel": _negate("parallelism.disable_loss_parallel"),
    "training.enable_selective_ac": lambda value, _: Translation(
        "activation_checkpoint.mode", "selective" if value else "none"
    ),
    "training.fp8_linear": _float8_converter,
    "training.num_tokens_per_microbatch_per_dp_rank": _tokens_to_sequences("training.local_batch_size"),
    "training.num_tokens_per_train_step": _tokens_to_sequences("training.global_batch_size"),
    "training.warmup_pct": _warmup_share,
}
"""{key of another torchtitan version: function that translates it}; a function that returns None changes nothing."""


SWITCHES = (
    "metrics.enable_color_printing", "metrics.rank_0_only", "optimizer.fused", "training.enable_loss_parallel",
    "training.enable_selective_ac",
)  # fmt: skip
"""The keys of `CONVERTED` whose values are true or false."""


def translate(key: str, value: object, written: Values) -> Translation | None:
    """Return this trainer's key and value for a key of another torchtitan version; None if nothing must be translated.

    `written` is {key: value} of all keys that the user wrote; some translations depend on another key.

    Raises:
        ConfigError: The key does not accept the value.
    """
    if key in SWITCHES and not isinstance(value, bool):
        raise ConfigError(f"{key} = {value!r} is not true or false", "write true or false, without quotes")
    if convert := CONVERTED.get(key):
        return convert(value, written)
    return Translation(RENAMED[key], value) if key in RENAMED else None


_LONGEST = 1 << 20
"""The most characters of a configuration file; a device such as /dev/zero has no end."""
_MOST_KEYS = 2000
_DEEPEST = 16
"""The most parts of a dotted key: tomllib walks all of them for each key below a table, and more than once."""
_PART = r"(?:[\w\-]+|\"[^\"\n]*\"|'[^'\n]*')"
_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_DEEPEST},}}", re.MULTILINE)
_SECTION = re.compile(r"\s*\[\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=")


@dataclass(frozen=True)
class WrittenKey:
    """A key as the user wrote it; the value of a flag is the list of words that follow the flag."""

    key: str
    value: Any
    line: int | None = None
    flag: bool = False


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line: the source of the configuration (file, or module and function), and the flags."""

    file: Path | None
    module: str | None
    function: str | None
    flags: tuple[WrittenKey, ...]


def read_toml(path: Path) -> list[WrittenKey]:
    """Return the keys of a TOML file, in the order of the file.

    Raises:
        ConfigError: There is no such file, it is not TOML, or it is longer or deeper than any configuration.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ConfigError(f"{path}: longer than any configuration", f"it has at most {_LONGEST >> 20} MiB")
        if deep := _DEEP_KEY.search(text):
            line = text.count("\n", 0, deep.end()) + 1
            raise ConfigError(f"{path}: keys nested too deeply (line {line})", "keys are written section.key")
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the path of a TOML file") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", "see https://toml.io; strings need quotes") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: arrays nested too deeply", "no key of a configuration needs that") from error
    lines = _line_numbers(text)
    written = [WrittenKey(key, value, lines.get(key)) for key, value in islice(flatten(tree), _MOST_KEYS + 1)]
    if len(written) > _MOST_KEYS:
        raise ConfigError(f"{path}: more keys than a configuration has", f"a file has at most {_MOST_KEYS} keys")
    return written


def flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) for each value of a nested TOML table; `prefix` is the table's own dotted name."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _line_numbers(text: str) -> dict[str, int]:
    """Return {dotted key: line number, from 1} of a TOML text; tomllib does not report line numbers."""
    line_of_key: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if section := _SECTION.match(line):
            prefix = section[1].replace(" ", "") + "."
        elif key := _ASSIGNMENT.match(line):
            line_of_key.setdefault(prefix + key[1].replace(" ", ""), number)
    return line_of_key


def read_flags(words: Sequence[str]) -> CommandLine:
    """Parse the words of a command line: `--section.key value`, `--section.key=value`, `--config` and `--module`.

    Raises:
        ConfigError: A word belongs to no flag.
    """
    flags: list[WrittenKey] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(WrittenKey(name.replace("-", "_"), [value] if equals else [], flag=True))
        elif flags:
            flags[-1].value.append(word)
        else:
            raise ConfigError(f"{word!r} belongs to no option", "options are written --section.key value")
    sources = {
        written.key: _one_word(written) for written in flags if written.key in ("config", "module", "job.config_file")
    }
    rest = tuple(written for written in flags if written.key not in sources)
    module, config = sources.get("module"), sources.get("config")
    file = sources.get("job.config_file") or (config if not module else None)
    if module and not config:
        raise ConfigError("--module needs --config", f"as in --module {module} --config {module}_debugmodel")
    return CommandLine(Path(file) if file else None, module, config if module else None, rest)


def _one_word(written: WrittenKey) -> str:
    """Return the single value that follows a flag.

    Raises:
        ConfigError: No value follows the flag, or more than one.
    """
    if len(written.value) != 1:
        raise ConfigError(f"--{written.key} takes one value", f"got {' '.join(written.value) or 'none'}")
    return str(written.value[0])
