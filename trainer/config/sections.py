"""The configuration: one dataclass per section, named as in torchtitan 0.2. The string below a field is its help."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple


class Bounds(NamedTuple):
    """Accepted numbers: all from `least` to `most` (both included), and the special values in `also`."""

    least: float
    most: float = math.inf
    also: tuple[float, ...] = ()

    def __contains__(self, value: object) -> bool:
        """Return whether a number is within the bounds; NaN is not."""
        return isinstance(value, int | float) and (value in self.also or self.least <= value <= self.most)

    def described(self, kind: type) -> str:
        numbers = "an integer" if kind is int else "a number"
        end = "" if self.most == math.inf else f" to {self.most:g}"
        return " or ".join([*(f"{value:g}" for value in self.also), f"{numbers} from {self.least:g}{end}"])


Positive = Annotated[int, Bounds(1)]
PositiveOrRest = Annotated[int, Bounds(1, also=(-1,))]
Count = Annotated[int, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
Size = Annotated[float, Bounds(0, 1.7e308)]
Seed = Annotated[int, Bounds(-(2**63), 2**63 - 1)]


Incident = Literal[
    "healthy", "oom", "leak", "stuck", "stuck_sleep", "stuck_gil", "skip", "mismatch_shape", "mismatch_type",
    "kill", "deadlock", "straggler", "straggler_data", "straggler_gc", "nan",
]  # fmt: skip

StatePart = Literal["model", "optimizer", "lr_scheduler", "dataloader", "train_state"]


@dataclass
class Job:
    """The name of the run, and the folder that it writes to."""

    config_file: str | None = None
    """TOML file with the configuration; `--config` is the same."""
    dump_folder: str = "./outputs"
    """Folder for everything that the run writes."""
    description: str = "default job"
    """Description of the run, which is logged at its start."""
    print_config: bool = False
    """Log the resolved configuration at the start."""
    save_config_file: str | None = None
    """Also write the resolved configuration as JSON to this file in the dump folder."""


@dataclass
class Profiling:
    """Settings of profiler traces and memory snapshots."""

    enable_profiling: bool = False
    """Record profiler traces."""
    save_traces_folder: str = "profile_traces"
    """Folder of the traces, inside the dump folder."""
    profile_freq: Positive = 10
    """Number of steps from one trace to the next, and from one memory snapshot to the next."""
    profiler_active: Positive = 1
    """Number of steps in one trace."""
    profiler_warmup: Count = 3
    """Number of steps that the profiler runs before each trace and discards."""
    enable_memory_snapshot: bool = False
    """Record memory snapshots, regularly and when memory runs out."""
    save_memory_snapshot_folder: str = "memory_snapshot"
    """Folder of the snapshots, inside the dump folder."""
    memory_snapshot_freq: Positive | None = None
    """Number of steps from one memory snapshot to the next; None: profile_freq."""
    memory_snapshot_window: Positive = 5
    """Number of steps that are recorded before each memory snapshot on a CPU, where a recorded step takes several
    times as long. Five show what grows from step to step. If the process has a memory limit, all steps are recorded.
    """


@dataclass
class Metrics:
    """Where the metrics of a step are written: console, TensorBoard, wandb."""

    log_freq: Positive = 10
    """Number of steps from one line on the console to the next."""
    enable_tensorboard: bool = False
    """Write metrics for TensorBoard."""
    save_tb_folder: str = "tb"
    """Folder of TensorBoard's files, inside the dump folder."""
    disable_color_printing: bool = False
    """Print no colours on the console."""
    save_for_all_ranks: bool = False
    """Let every rank write its metrics, instead of rank 0 only."""
    enable_wandb: bool = False
    """Write a wandb run into the dump folder; it uses no network unless WANDB_MODE is online."""


@dataclass
class Model:
    """Settings of the model: its name, and its size."""

    name: str = "llama3"
    """Model family, a folder below trainer/models: llama3 and qwen3, which are dense; llama4, deepseek_v3 and
    qwen3_moe, which have experts.
    """
    flavor: str = "debugmodel"
    """Size of the model. llama3: debugmodel, debugmodel_large, 8B, 70B, 405B; llama4: debugmodel, 17bx16e, 17bx128e;
    deepseek_v3: debugmodel, 671B; qwen3: debugmodel, debugmodel_untied, 0.6B, 1.7B, 4B, 8B, 14B, 32B;
    qwen3_moe: debugmodel, 30B-A3B, 235B-A22B; hf_assets: the shape in the config.json of hf_assets_path."""
    hf_assets_path: str | None = None
    """Folder with a model's tokenizer.json, and its tokenizer_config.json for conversations; None: each byte is a
    token. If the flavor is hf_assets, its config.json gives the shape of the model.
    """
    converters: list[str] = field(default_factory=list)
    """Names of changes to the model, applied in this order: float8, or names that a module of yours registers."""


@dataclass
class Optimizer:
    """The optimizer's algorithm, learning rate and other hyperparameters."""

    name: Literal["Adam", "AdamW"] = "AdamW"
    """Algorithm of the optimizer."""
    lr: Size = 8e-4
    """Maximum learning rate."""
    beta1: Share = 0.9
    """Decay rate of the first moment."""
    beta2: Share = 0.95
    """Decay rate of the second moment."""
    eps: Size = 1e-8
    """Small number added to the denominator of the update."""
    weight_decay: Size = 0.1
    """Weight decay: decoupled from the gradients with AdamW, an L2 penalty with Adam."""
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"
    """How the optimizer step is computed: in a loop over the parameters, for groups of them (foreach), or fused."""


@dataclass
class LRScheduler:
    """How the learning rate changes over the steps: warmup, plateau, decay."""

    warmup_steps: Count = 200
    """Number of steps in which the learning rate rises linearly."""
    decay_ratio: Share | None = None
    """Share of the schedule, at its end, in which the learning rate decays; None: all steps after the warmup."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """Shape of the decay."""
    min_lr_factor: Share = 0.0
    """Learning rate at the end of the decay, as a share of the maximum."""
    total_steps: Positive | None = None
    """Length of the schedule in steps; None: training.steps."""


@dataclass
class Training:
    """Data, batch size, number of steps and precision."""

    dataset: str = "synthetic"
    """`synthetic` (text generated from the seed), or any name together with dataset_path."""
    dataset_path: str | None = None
    """A file or folder of text, or of rows for fine-tuning (messages, prompt and completion, or input_ids and labels):
    .txt, .csv, .jsonl, .json (also .gz), .parquet, or what the datasets package reads (.arrow, .zst, save_to_disk)."""
    allow_synthetic: bool = False
    """Train on synthetic text if dataset names data that are not shipped, instead of refusing the run."""
    local_batch_size: Positive = 8
    """Number of sequences in one forward pass on one data-parallel rank."""
    global_batch_size: PositiveOrRest = -1
    """Number of sequences in one step over all ranks, in several passes if needed (gradient accumulation); -1: in one
    pass.
    """
    seq_len: Positive = 2048
    """Number of tokens in a sequence."""
    max_norm: Size = 1.0
    """If the gradients have a larger norm, they are scaled down to this norm."""
    steps: Positive = 10000
    """Train up to and including this step."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the parameters and of the optimizer's state."""
    mixed_precision_param: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the computation: with FSDP, that of the gathered parameters; otherwise, that of autocast."""
    mixed_precision_reduce: Literal["float32"] = "float32"
    """Type in which FSDP reduces gradients."""
    gc_freq: Positive = 50
    """Number of steps from one garbage collection to the next; all ranks collect in the same steps."""
    enable_cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in CPU memory; FSDP copies weights to the device when needed."""


@dataclass
class Parallelism:
    """The degree of each kind of parallelism: the number of ranks along that dimension of the mesh."""

    data_parallel_replicate_degree: Positive = 1
    """Number of copies of the model (DDP, or the outer dimension of HSDP)."""
    data_parallel_shard_degree: PositiveOrRest = -1
    """Number of ranks among which FSDP2 shards one copy of the model; -1: all that remain."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Whether gathered parameters are freed after the forward pass; default: only those of the blocks."""
    tensor_parallel_degree: Positive = 1
    """Number of ranks that split each matrix product."""
    enable_async_tensor_parallel: bool = False
    """Let the compiler overlap the collectives of tensor parallelism with matrix products; only on CUDA devices."""
    pipeline_parallel_degree: Positive = 1
    """Number of ranks among which the layers are divided."""
    pipeline_parallel_schedule: str = "1F1B"
    """Order in which the pipeline runs microbatches, by its name in torch.distributed.pipelining."""
    pipeline_parallel_microbatch_size: Positive = 1
    """Number of sequences in a microbatch."""
    pipeline_parallel_layers_per_stage: Positive | None = None
    """Number of layers in a stage; None: one stage per rank, or two if the schedule has several stages per rank."""
    pipeline_parallel_first_stage_less_layers: Count = 1
    """Pipeline weight of the embedding, in transformer layers, when stages are balanced."""
    pipeline_parallel_last_stage_less_layers: Count = 1
    """Pipeline weight of the output layer, in transformer layers, when stages are balanced."""
    context_parallel_degree: Positive = 1
    """Number of ranks that split each sequence."""
    context_parallel_load_balancer: str | None = "headtail"
    """headtail: each rank gets one chunk from either end of a sequence, so that all have equal work; None: one chunk.
    """
    expert_parallel_degree: Positive = 1
    """Number of ranks among which the experts are divided; a divisor of the number of ranks that share one copy."""
    expert_tensor_parallel_degree: Positive = 1
    """Number of ranks that split each expert: tensor_parallel_degree, or 1, which means the same here."""


@dataclass
class Checkpoint:
    """When checkpoints are saved, and what is loaded from them."""

    enable: bool = False
    """Save checkpoints, and resume from the newest one."""
    folder: str = "checkpoint"
    """Folder of the checkpoints, inside the dump folder."""
    interval: Positive = 500
    """Number of steps from one checkpoint to the next."""
    initial_load_path: str | None = None
    """Checkpoint to start from if there is none to resume from."""
    initial_load_model_only: bool = True
    """Load only the weights from initial_load_path."""
    last_save_model_only: bool = True
    """Save only the weights after the last step."""
    last_save_in_hf: bool = False
    """Save the weights after the last step in the format of the transformers package (safetensors)."""
    initial_load_in_hf: bool = False
    """Read initial_load_path as a folder in the format of the transformers package (safetensors)."""
    export_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    """Type of the weights that last_save_model_only or last_save_in_hf saves."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Whether training continues while a checkpoint is written."""
    keep_latest_k: Count = 10
    """Number of newest checkpoints to keep; 0: all."""
    load_step: Annotated[int, Bounds(-1)] = -1
    """Step to resume from; -1: the newest checkpoint."""
    exclude_from_loading: list[StatePart] = field(default_factory=list)
    """Parts of a checkpoint that are not loaded."""
    enable_first_step_checkpoint: bool = False
    """Save a checkpoint after step 1 too."""
    load_only: bool = False
    """Load checkpoints, but save none."""
    create_seed_checkpoint: bool = False
    """Save the initial weights as step-0 and end; runs on other meshes can start from them."""


@dataclass
class Validation:
    """Computation of the loss on data that the model is not trained on."""

    enable: bool = False
    """Compute the validation loss after the first step, and then every `freq` steps."""
    dataset: str = "synthetic"
    """`synthetic` (generated text that is not in the training data), or any name together with dataset_path."""
    dataset_path: str | None = None
    """File or folder, as for training; if names of files tell splits apart, those of the validation split are read."""
    local_batch_size: Positive = 8
    """Number of sequences in one forward pass on one data-parallel rank."""
    seq_len: Positive | None = None
    """Number of tokens in a sequence; None: training.seq_len."""
    freq: Positive = 10
    """Number of steps from one validation to the next."""
    steps: PositiveOrRest = -1
    """Number of batches in one validation on each rank; -1: all validation data."""


@dataclass
class ActivationCheckpoint:
    """Which activations are recomputed in the backward pass instead of kept."""

    mode: Literal["none", "full", "selective", "memory_budget"] = "selective"
    """Which activations to recompute in the backward pass; memory_budget lets the compiler choose them."""
    memory_budget: Share = 0.5
    """For mode memory_budget: share of a compiled block's activations to keep, from 0 (like full) to 1 (like none)."""
    visualize_memory_budget_pareto: bool = False
    """For mode memory_budget: plot memory against run time, as SVG files in memory_budget_pareto in the dump folder."""
    selective_ac_option: str = "2"
    """For mode selective: "N" recomputes every Nth block, "op" all but the results of matrix products and attention."""
    preserve_rng_state: bool = True
    """Restore the random state before recomputing, so that dropout is the same."""
    determinism_check: Literal["default", "none"] = "default"
    """What is compared after recomputing: default (shapes, types and devices) or none."""
    early_stop: bool = False
    """Stop recomputing a block as soon as all needed activations are there."""
    debug: bool = False
    """If recomputed activations differ, list the operations that ran."""


@dataclass
class Compile:
    """What torch.compile compiles."""

    enable: bool = False
    """Use torch.compile."""
    components: list[Literal["model", "loss"]] = field(default_factory=lambda: ["model", "loss"])
    """What to compile: model (each block by itself), loss."""
    backend: str = "inductor"
    """Backend of torch.compile."""


@dataclass
class Float8:
    """Matrix products in float8 by torchao, if `model.converters` contains float8."""

    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None = None
    """What shares one scale: a tensor, a row, or a row except in the products for weight gradients; None: tensorwise.
    """
    filter_fqns: list[str] = field(default_factory=list)
    """Linear layers whose name contains one of these texts are not converted."""
    emulate: bool = False
    """Round to float8 but compute in float32, which any device can do; slow."""
    enable_fsdp_float8_all_gather: bool = False
    """Let FSDP gather weights in float8; only for recipe tensorwise."""
    precompute_float8_dynamic_scale_for_fsdp: bool = False
    """Compute the scales of all gathered weights together after each step, instead of one by one when gathering."""


@dataclass
class Comm:
    """Timeouts of collectives, and the size of Flight Recorder's ring buffer."""

    init_timeout_seconds: Positive = 300
    """Timeout of collectives until the first step has ended, in seconds."""
    train_timeout_seconds: Positive = 100
    """Timeout of collectives after the first step, in seconds."""
    trace_buf_size: Count = 20000
    """Number of collectives that Flight Recorder keeps; 0: off."""
    mode: Literal["default", "fake_backend", "local_tensor"] = "default"
    """default: train. The other modes run one step in one process that simulates NGPU ranks: fake_backend on tensors
    without values, for any mesh; local_tensor with the values of all ranks, for tensor parallelism only.
    """


@dataclass
class Debug:
    """Random seeds, checks, and tables on the console."""

    seed: Seed | None = None
    """Seed of weights, synthetic text and random numbers; None: rank 0 draws one, and the text uses 0."""
    deterministic: bool = False
    """Use only deterministic kernels, so that two runs are bitwise equal."""
    deterministic_warn_only: bool = False
    """Warn if an operation has no deterministic kernel, instead of failing."""
    detect_anomaly: bool = False
    """Fail at the operation whose gradient is NaN; slow."""
    moe_force_load_balance: bool = False
    """Send tokens to the experts in turn, whatever the router decides."""
    record_values: bool = False
    """Write sums over each step's parameters, activations and gradients to values/rank_R.jsonl; slow."""
    record_tensors: bool = False
    """Write sums over the inputs and outputs of each module in the first 100 steps to values/rank_R.jsonl, for
    `workbench bisect`; slow.
    """
    check_finite: bool = False
    """If a value becomes NaN or infinite, write the first operation, module and tensor with one to
    not_finite/rank_R.json; a step takes up to three times as long.
    """
    memory_breakdown: bool = False
    """Print after the last step what uses the memory of rank 0; this turns on memory snapshots."""
    timing_breakdown: bool = False
    """Print after the last step how long each phase of rank 0's steps took."""
    timing_breakdown_freq: Count = 0
    """Number of steps from one timing table to the next; 0: only one, after the last step."""


@dataclass
class MemoryEstimation:
    """Torchtitan's keys for memory estimation, which this trainer refuses: use `workbench estimate`."""

    enable: bool = False
    """Estimate memory instead of training; refused here: use `workbench estimate`."""


@dataclass
class Faults:
    """Settings of a fault that breaks the run on purpose, for learning and for tests."""

    name: Incident = "healthy"
    """Kind of the fault; healthy: none."""
    rank: Annotated[int, Bounds(-1)] = -1
    """Rank with the fault; -1: the last one."""
    step: Positive = 6
    """Step in which the fault occurs or begins."""
    seconds: Size = 0.5
    """Seconds by which a straggler is late in each step."""
    every: Positive = 1
    """Number of steps from one in which a straggler is late to the next; 1: it is late in each."""


@dataclass
class JobConfig:
    """The complete configuration of a run."""

    job: Job = field(default_factory=Job)
    profiling: Profiling = field(default_factory=Profiling)
    metrics: Metrics = field(default_factory=Metrics)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lr_scheduler: LRScheduler = field(default_factory=LRScheduler)
    training: Training = field(default_factory=Training)
    parallelism: Parallelism = field(default_factory=Parallelism)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    validation: Validation = field(default_factory=Validation)
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)
    compile: Compile = field(default_factory=Compile)
    float8: Float8 = field(default_factory=Float8)
    comm: Comm = field(default_factory=Comm)
    debug: Debug = field(default_factory=Debug)
    memory_estimation: MemoryEstimation = field(default_factory=MemoryEstimation)
    faults: Faults = field(default_factory=Faults)
