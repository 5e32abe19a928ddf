"""The configuration: one dataclass per section, named as in torchtitan 0.2. The string below a field is its help."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainer.config.bounds import Bounds, Count, Positive, PositiveOrRest, Seed, Share, Size

Incident = Literal[
    "healthy", "oom", "leak", "stuck", "stuck_sleep", "stuck_gil", "skip", "mismatch_shape", "mismatch_type",
    "kill", "deadlock", "straggler", "straggler_data", "straggler_gc", "nan",
]  # fmt: skip

StatePart = Literal["model", "optimizer", "lr_scheduler", "dataloader", "train_state"]


@dataclass
class Job:
    """The name of the run, and the folder that it writes to."""

    config_file: str | None = None
    """TOML file to read; `--config` says the same."""
    dump_folder: str = "./outputs"
    """Folder of everything that the run writes."""
    description: str = "default job"
    """Description of the run, logged at its start."""
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
    """Folder of the traces in the dump folder."""
    profile_freq: Positive = 10
    """Steps from one trace to the next, and from one memory snapshot to the next."""
    profiler_active: Positive = 1
    """Steps in one trace."""
    profiler_warmup: Count = 3
    """Steps that the profiler runs before each trace and throws away."""
    enable_memory_snapshot: bool = False
    """Record memory snapshots, regularly and when memory runs out."""
    save_memory_snapshot_folder: str = "memory_snapshot"
    """Folder of the snapshots in the dump folder."""
    memory_snapshot_freq: Positive | None = None
    """Steps from one memory snapshot to the next; None: profile_freq."""
    memory_snapshot_window: Positive = 5
    """Steps before each memory snapshot that are recorded for it on a CPU, where a recorded step takes several times as
    long. Five show what grows from step to step. A process with a limit on its memory has all steps recorded."""


@dataclass
class Metrics:
    """Metrics on the console, in TensorBoard and in wandb."""

    log_freq: Positive = 10
    """Steps from one line on the console to the next."""
    enable_tensorboard: bool = False
    """Write metrics for TensorBoard."""
    save_tb_folder: str = "tb"
    """Folder of TensorBoard's files in the dump folder."""
    disable_color_printing: bool = False
    """No colours on the console."""
    save_for_all_ranks: bool = False
    """Let every rank write its metrics, not rank 0 alone."""
    enable_wandb: bool = False
    """Write a run of wandb into the dump folder, without a network unless WANDB_MODE is online."""


@dataclass
class Model:
    """Settings of the model: which one is trained, and in which size."""

    name: str = "llama3"
    """Folder below trainer/models: llama3 and qwen3, which are dense; llama4, deepseek_v3 and qwen3_moe, which have
    experts."""
    flavor: str = "debugmodel"
    """Size of the model. llama3: debugmodel, debugmodel_large, 8B, 70B, 405B; llama4: debugmodel, 17bx16e, 17bx128e;
    deepseek_v3: debugmodel, 671B; qwen3: debugmodel, debugmodel_untied, 0.6B, 1.7B, 4B, 8B, 14B, 32B;
    qwen3_moe: debugmodel, 30B-A3B, 235B-A22B; hf_assets: the shape in the config.json of hf_assets_path."""
    hf_assets_path: str | None = None
    """Folder with the tokenizer.json of a model, and its tokenizer_config.json for conversations; without one,
    bytes are tokens. Its config.json is the shape of the model if the flavor is hf_assets."""
    converters: list[str] = field(default_factory=list)
    """Names of conversions of the model, applied in this order: float8, or those that a module of yours registers."""


@dataclass
class Optimizer:
    """The optimizer's algorithm, learning rate and other hyperparameters."""

    name: Literal["Adam", "AdamW"] = "AdamW"
    """Optimizer."""
    lr: Size = 8e-4
    """Maximum learning rate."""
    beta1: Share = 0.9
    """Decay of the first moment."""
    beta2: Share = 0.95
    """Decay of the second moment."""
    eps: Size = 1e-8
    """Added to the denominator."""
    weight_decay: Size = 0.1
    """Decoupled weight decay."""
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"
    """Kernels of the optimizer step: a loop over the parameters, grouped (foreach), or fused."""


@dataclass
class LRScheduler:
    """The change of the learning rate over the steps."""

    warmup_steps: Count = 200
    """Steps of linear warmup."""
    decay_ratio: Share | None = None
    """Share of the steps, at the end, in which the learning rate decays; None: all steps after the warmup."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """Shape of the decay."""
    min_lr_factor: Share = 0.0
    """Share of the maximum learning rate at which the decay ends."""
    total_steps: Positive | None = None
    """Length of the schedule; None: training.steps."""


@dataclass
class Training:
    """Data, batch size, number of steps and precision."""

    dataset: str = "synthetic"
    """`synthetic` (seeded, generated at the start), or any name together with dataset_path."""
    dataset_path: str | None = None
    """A file or folder of text, or of rows for fine-tuning (messages, prompt and completion, or input_ids and labels):
    .txt, .csv, .jsonl, .json (also .gz), .parquet, or what the datasets package reads (.arrow, .zst, save_to_disk)."""
    allow_synthetic: bool = False
    """Train on synthetic text where dataset names data that are not shipped, instead of refusing the run."""
    local_batch_size: Positive = 8
    """Sequences of one forward pass on one data-parallel rank."""
    global_batch_size: PositiveOrRest = -1
    """Sequences of one step over all ranks, in as many passes as it takes (gradient accumulation); -1: one pass."""
    seq_len: Positive = 2048
    """Tokens of a sequence."""
    max_norm: Size = 1.0
    """Clip the gradients to this norm."""
    steps: Positive = 10000
    """Train up to and including this step."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the parameters and the optimizer's state."""
    mixed_precision_param: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the computation: of the gathered parameters with FSDP, of autocast otherwise."""
    mixed_precision_reduce: Literal["float32"] = "float32"
    """Type of gradient reduction with FSDP."""
    gc_freq: Positive = 50
    """Steps from one garbage collection to the next, in the same steps on all ranks."""
    enable_cpu_offload: bool = False
    """Keep parameters, gradients and the optimizer's state in the CPU's memory; FSDP moves weights to the device."""


@dataclass
class Parallelism:
    """The degree of each kind of parallelism: the number of ranks along that dimension of the mesh."""

    data_parallel_replicate_degree: Positive = 1
    """Copies of the model (DDP, or the outer dimension of HSDP)."""
    data_parallel_shard_degree: PositiveOrRest = -1
    """Ranks that share one copy of the model (FSDP2); -1: all that remain."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Whether gathered parameters are freed after the forward pass; default: those of the blocks are."""
    tensor_parallel_degree: Positive = 1
    """Ranks that share one matrix multiplication."""
    enable_async_tensor_parallel: bool = False
    """Let the compiler overlap these ranks' collectives with the products beside them; on CUDA devices alone."""
    pipeline_parallel_degree: Positive = 1
    """Ranks among which the layers are divided."""
    pipeline_parallel_schedule: str = "1F1B"
    """Order of the microbatches on these ranks, by its name in torch.distributed.pipelining."""
    pipeline_parallel_microbatch_size: Positive = 1
    """Sequences of a microbatch."""
    pipeline_parallel_layers_per_stage: Positive | None = None
    """Layers of a stage; None: one stage per rank, or two if the schedule has several stages per rank."""
    pipeline_parallel_first_stage_less_layers: Count = 1
    """Pipeline weight of the embedding, in transformer layers, when stages are balanced."""
    pipeline_parallel_last_stage_less_layers: Count = 1
    """Pipeline weight of the output layer, in transformer layers, when stages are balanced."""
    context_parallel_degree: Positive = 1
    """Ranks that share one sequence."""
    context_parallel_load_balancer: str | None = "headtail"
    """headtail: each of these ranks has a chunk from either end, so that all attend equally long; None: one chunk."""
    expert_parallel_degree: Positive = 1
    """Ranks among which the experts are divided; a divisor of the ranks that share one copy."""
    expert_tensor_parallel_degree: Positive = 1
    """Ranks that share one expert: tensor_parallel_degree. 1 means the same, as experts are split like all else."""


@dataclass
class Checkpoint:
    """Saving and loading of checkpoints."""

    enable: bool = False
    """Save checkpoints, and resume from the newest."""
    folder: str = "checkpoint"
    """Folder of the checkpoints in the dump folder."""
    interval: Positive = 500
    """Steps from one checkpoint to the next."""
    initial_load_path: str | None = None
    """Checkpoint to start from if the folder has none."""
    initial_load_model_only: bool = True
    """Load only the weights from initial_load_path."""
    last_save_model_only: bool = True
    """Save only the weights after the last step."""
    last_save_in_hf: bool = False
    """Save the weights after the last step as safetensors with the names of the transformers package."""
    initial_load_in_hf: bool = False
    """initial_load_path is a folder of such weights."""
    export_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    """Type of the weights in such a last checkpoint."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Whether training goes on while a checkpoint is written."""
    keep_latest_k: Count = 10
    """Number of checkpoints to keep; 0: all."""
    load_step: Annotated[int, Bounds(-1)] = -1
    """Step to resume from; -1: the newest checkpoint."""
    exclude_from_loading: list[StatePart] = field(default_factory=list)
    """Parts not to load."""
    enable_first_step_checkpoint: bool = False
    """Save after step 1 too."""
    load_only: bool = False
    """Load checkpoints, but save none."""
    create_seed_checkpoint: bool = False
    """Save the initial weights as step-0 and end: runs on other meshes start from them."""


@dataclass
class Validation:
    """Computing the loss on validation data, which the model is not trained on."""

    enable: bool = False
    """Compute it after the first step and then every `freq` steps."""
    dataset: str = "synthetic"
    """`synthetic` (documents that follow those to train on), or any name together with dataset_path."""
    dataset_path: str | None = None
    """A file or folder as for training; where names of files tell splits apart, the validation split."""
    local_batch_size: Positive = 8
    """Sequences of one forward pass on one data-parallel rank."""
    seq_len: Positive | None = None
    """Tokens of a sequence; None: training.seq_len."""
    freq: Positive = 10
    """Steps from one validation to the next."""
    steps: PositiveOrRest = -1
    """Batches of one validation on each rank; -1: the whole text."""


@dataclass
class ActivationCheckpoint:
    """Activations to recompute in the backward pass instead of keeping them."""

    mode: Literal["none", "full", "selective", "memory_budget"] = "selective"
    """Which activations to recompute in the backward pass; memory_budget lets the compiler choose them."""
    memory_budget: Share = 0.5
    """For mode memory_budget: memory of a compiled block's activations, from 0 (as with full) to 1 (as with none)."""
    visualize_memory_budget_pareto: bool = False
    """For mode memory_budget: draw memory against run time as SVG files in memory_budget_pareto of the dump folder."""
    selective_ac_option: str = "2"
    """For mode selective: "N" recomputes every Nth block, "op" everything but matrix products and attention."""
    preserve_rng_state: bool = True
    """Restore the random state before recomputing."""
    determinism_check: Literal["default", "none"] = "default"
    """What is compared after recomputing: default (shapes, types and devices) or none."""
    early_stop: bool = False
    """Stop recomputing as soon as nothing more is needed."""
    debug: bool = False
    """List the operations that ran if the recomputed activations do not match."""


@dataclass
class Compile:
    """The parts of the training that torch.compile compiles."""

    enable: bool = False
    """Compile with torch.compile."""
    components: list[Literal["model", "loss"]] = field(default_factory=lambda: ["model", "loss"])
    """What to compile: model (each block), loss."""
    backend: str = "inductor"
    """Backend of torch.compile."""


@dataclass
class Float8:
    """Matrix products in float8 by torchao, if `model.converters` names float8."""

    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] | None = None
    """What has a scale of its own: a tensor, a row, or a row but for weights' gradients; None: tensorwise."""
    filter_fqns: list[str] = field(default_factory=list)
    """Linear layers with one of these in their name are not converted."""
    emulate: bool = False
    """Round to float8 but compute in float32, so that any device can do it; slow."""
    enable_fsdp_float8_all_gather: bool = False
    """Let FSDP gather weights in float8; for recipe tensorwise."""
    precompute_float8_dynamic_scale_for_fsdp: bool = False
    """Compute the scales of these weights after each step at once, not one by one as they are gathered."""


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
    """One step in one process, in place of NGPU ranks. fake_backend: without values, any mesh; local_tensor: with the
    values of all ranks, tensor parallelism alone."""


@dataclass
class Debug:
    """Random seeds, checks, and tables on the console."""

    seed: Seed | None = None
    """Seed of weights, synthetic text and random numbers; None: drawn by rank 0, and 0 for the text."""
    deterministic: bool = False
    """Only deterministic kernels, so that two runs are bitwise equal."""
    deterministic_warn_only: bool = False
    """Warn where no deterministic kernel exists, instead of failing."""
    detect_anomaly: bool = False
    """Fail at the operation whose gradient is not finite; slow."""
    moe_force_load_balance: bool = False
    """Send tokens to the experts in turn, whatever the router says."""
    record_values: bool = False
    """Write sums of each step's parameters, activations and gradients to values/rank_R.jsonl; slow."""
    record_tensors: bool = False
    """Write sums of what each module gets and returns in the first 100 steps to values/rank_R.jsonl, for `workbench
    bisect`; slow."""
    check_finite: bool = False
    """Name the first operation, module and tensor that is not finite in not_finite/rank_R.json; a step takes up to
    three times as long."""
    memory_breakdown: bool = False
    """Print what holds the memory of rank 0 after the last step; records memory snapshots."""
    timing_breakdown: bool = False
    """Print after the last step how long each component of rank 0's steps took."""
    timing_breakdown_freq: Count = 0
    """Steps from one such table to the next; 0: only one, after the last step."""


@dataclass
class MemoryEstimation:
    """Torchtitan's keys for memory estimation, which are refused with a hint: `workbench estimate` does it here."""

    enable: bool = False
    """Estimate memory instead of training; `workbench estimate` does."""


@dataclass
class Faults:
    """A fault that breaks the run on purpose, for learning and for tests."""

    name: Incident = "healthy"
    """Break the run on purpose, in this way."""
    rank: Annotated[int, Bounds(-1)] = -1
    """Rank that breaks; -1: the last one."""
    step: Positive = 6
    """Step in which it breaks."""
    seconds: Size = 0.5
    """Seconds by which a straggler is late in each step."""


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
