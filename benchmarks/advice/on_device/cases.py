"""The snapshots: how each job runs out of memory, grows or stays healthy, and what an expert would say first.

The truth is fixed by construction. `first` is a pattern that the beginning of the first finding's next step must match,
and `title` one for its title. No title and no next step may match `never`, some finding must match `somewhere`.
`healthy` cases must not get a warning or an error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.advice.on_device.allocator import GIB, MIB, Device, OutOfMemoryError, snapshot
from benchmarks.advice.on_device.training import HOME, MODEL, TORCH, TRAIN, Line, Recorder, Shape, Stacks, Trainer

Snapshot = dict[str, Any]
RECOMPUTE = r"activation[ _]checkpointing|recompute|ac_mode|torch\.utils\.checkpoint"
EXPANDABLE = r"expandable_segments:True"
EVALUATION: tuple[Line, ...] = (("evaluate", HOME + "train.py", 101), *TRAIN)


class Case(NamedTuple):
    """A job, the function that simulates it, and what its advice must and must not say."""

    name: str
    build: Callable[[], Snapshot]
    first: str = ""
    never: str = ""
    somewhere: str = ""
    title: str = ""
    healthy: bool = False


def until_out_of_memory(work: Callable[[], object]) -> None:
    """Run a job that must run out of memory."""
    try:
        work()
    except OutOfMemoryError:
        return
    raise AssertionError("the job of this case does not run out of memory")


def steps(trainer: Trainer, number: int, **options: Any) -> None:
    for _ in range(number):
        trainer.step(**options)


def write(trainer: Trainer, **options: Any) -> Snapshot:
    return snapshot([trainer.device], annotations=trainer.annotations, **options)


def pinned_gaps(device: Device, **options: Any) -> Snapshot:
    """Small long-lived caches lie in what were large blocks; the sum of the gaps exceeds the request."""
    trainer = Trainer(device, Shape(layers=8))
    trainer.build()
    steps(trainer, 2)
    page = (("pack_samples", HOME + "data.py", 90), ("train_step", HOME + "train.py", 64), *TRAIN)
    cache = (("remember_features", HOME + "cache.py", 21), ("train_step", HOME + "train.py", 84), *TRAIN)
    device.release_cached()
    room = device.free_bytes // (400 * MIB)
    blocks = [trainer.new(396 * MIB, "cat", *page) for _ in range(room)]
    for block in blocks:
        device.free(block)
        trainer.new(210 * MIB, "clone", *cache)
    until_out_of_memory(lambda: trainer.new(3 * GIB, "cat", *page))
    return write(trainer, **options)


def fragmented() -> Snapshot:
    return pinned_gaps(Device())


def fragmented_threshold() -> Snapshot:
    return pinned_gaps(Device(), configuration="garbage_collection_threshold:0.8")


def fragmented_max_split() -> Snapshot:
    return pinned_gaps(Device(max_split=512 * MIB), configuration="max_split_size_mb:512")


def expandable_on() -> Snapshot:
    """Too large a batch, with expandable segments already."""
    trainer = Trainer(Device(expandable=True), Shape(layers=24, batch=10))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer, configuration="expandable_segments:True")


def graph_pools() -> Snapshot:
    """Each captured batch size has a private pool of its own, which holds what is free after capture."""
    device = Device()
    trainer = Trainer(device, Shape(layers=12, batch=4), above=(("decode", HOME + "serve.py", 61), *TRAIN))
    trainer.build()

    def capture() -> None:
        for number in range(1, 40):
            trainer.pool = (number, 0)
            device.held_pools.add(trainer.pool)
            held = trainer.forward(keep=True)
            for layer in held:
                trainer.free_all(layer)

    until_out_of_memory(capture)
    return write(trainer)


def state_at_first_step() -> Snapshot:
    """The optimizer's state does not fit beside weights and gradients; activations are freed by then."""
    trainer = Trainer(Device(), Shape(layers=26, weight=4, batch=1))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def foreach_copies() -> Snapshot:
    """The multi-tensor update makes a copy of all second moments, at a step whose activations fit."""
    trainer = Trainer(Device(), Shape(layers=23, weight=4, batch=1, sequence=1024))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 2, copies=1))
    return write(trainer)


def evaluation_with_graph() -> Snapshot:
    """The evaluation forgets torch.no_grad(), so that a larger batch keeps what no backward pass ever needs."""
    trainer = Trainer(Device(), Shape(layers=24))
    trainer.build()
    steps(trainer, 3)
    trainer.shape.batch, trainer.above = 16, EVALUATION
    until_out_of_memory(trainer.forward)
    return write(trainer)


def evaluation_batch() -> Snapshot:
    """The evaluation runs under torch.no_grad() with a batch whose logits do not fit."""
    trainer = Trainer(Device(), Shape(layers=12, vocabulary=128256, batch=2))
    trainer.build()
    steps(trainer, 3)
    trainer.shape.batch, trainer.above = 32, EVALUATION

    def evaluate() -> None:
        trainer.forward(keep=False)
        trainer.loss()

    until_out_of_memory(evaluate)
    return write(trainer)


def logits_in_float32() -> Snapshot:
    trainer = Trainer(
        Device(total=64 * GIB), Shape(layers=8, vocabulary=128256, batch=4, sequence=8192, width=2048, heads=16)
    )
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def attention_written_out() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=16, batch=4, sequence=4096), scores=True)
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def evaluation_sums_losses() -> Snapshot:
    """`total_loss += loss` in an evaluation with a graph keeps the activations of every batch."""
    trainer = Trainer(Device(), Shape(layers=12, batch=1, sequence=1024), above=EVALUATION)
    trainer.build()

    def evaluate() -> None:
        for _ in range(80):
            trainer.batch()
            trainer.forward()
            trainer.loss()
            trainer.new(4, "add_Tensor", ("evaluate", HOME + "train.py", 106), *TRAIN)

    until_out_of_memory(evaluate)
    return write(trainer)


def growing_kv_cache() -> Snapshot:
    """A cache that grows by concatenation, as long as the generation runs."""
    trainer = Trainer(
        Device(), Shape(layers=32, batch=64, sequence=1), above=(("generate", HOME + "serve.py", 40), *TRAIN)
    )
    trainer.build()
    update = (
        ("update", "/opt/conda/lib/python3.12/site-packages/transformers/cache_utils.py", 119),
        ("forward", MODEL, 35),
        *trainer.above,
    )
    caches: dict[int, Any] = {}

    def generate() -> None:
        for length in range(64, 40000, 64):
            for slot in range(64):
                longer = trainer.new(length * 64 * 1024 * 2, "cat", *update)
                if slot in caches:
                    trainer.device.free(caches[slot])
                caches[slot] = longer
            trainer.free_all(trainer.layer(keep=False))

    until_out_of_memory(generate)
    return write(trainer)


def hook_keeps_outputs() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=12, batch=2))
    trainer.build()
    hook = (("record_output", HOME + "debug_hooks.py", 17), *CALL_HOOK, *trainer.above)

    def keep() -> None:
        for _ in range(12):
            trainer.new(trainer.shape.hidden * 4, "clone", *hook)

    until_out_of_memory(lambda: steps(trainer, 200, after_forward=keep))
    return write(trainer)


CALL_HOOK: tuple[Line, ...] = (("_call_impl", TORCH + "nn/modules/module.py", 1827), ("forward", MODEL, 97))


def cycles() -> Snapshot:
    """Each step's outputs hang in a reference cycle; the garbage collector frees them after every sixth step."""
    trainer = Trainer(Device(), Shape(layers=12, batch=2))
    trainer.build()
    output = (("wrap_outputs", HOME + "outputs.py", 33), *trainer.above)
    kept: list[Any] = []
    collect = trainer.recorder.frames("free", (("train_step", HOME + "train.py", 66), *TRAIN))
    for number in range(1, 25):
        trainer.step(after_forward=lambda: kept.extend(trainer.new(256 * MIB, "clone", *output) for _ in range(6)))
        if number % 6 == 0:
            for block in kept:
                trainer.device.free(block, collect)
            kept.clear()
    return write(trainer)


def checkpoint_on_rank_0() -> Snapshot:
    """Saving a checkpoint gathers the whole model on this rank's device."""
    trainer = Trainer(Device(), Shape(layers=24, batch=1))
    trainer.build()
    steps(trainer, 2)
    save = (
        ("full_tensor", TORCH + "distributed/tensor/_api.py", 516),
        ("_iterate_state_dict", TORCH + "distributed/_state_dict_utils.py", 190),
        ("get_model_state_dict", TORCH + "distributed/checkpoint/state_dict.py", 1080),
        ("save_checkpoint", HOME + "checkpoint.py", 58),
        *TRAIN,
    )
    until_out_of_memory(lambda: [trainer.new(900 * MIB, "empty_memory_format", *save) for _ in range(100)])
    return write(trainer)


def average_swap() -> Snapshot:
    """An evaluation before the first step backs up the weights on the device, to try their moving average."""
    trainer = Trainer(Device(total=56 * GIB), Shape(layers=25, weight=4, batch=1, sequence=512))
    trainer.build()
    average = (("__init__", HOME + "ema.py", 15), *TRAIN)
    for weight in trainer.weights:
        trainer.new(weight.requested, "clone", *average)
    swap = (("swap_in", HOME + "ema.py", 41), ("evaluate", HOME + "train.py", 98), *TRAIN)
    until_out_of_memory(lambda: [trainer.new(weight.requested, "clone", *swap) for weight in trainer.weights])
    return write(trainer)


def recomputes_already() -> Snapshot:
    """Every layer is recomputed in the backward pass, and the batch is too large all the same."""
    shape = Shape(layers=32, batch=16, sequence=4096)
    trainer = Trainer(Device(total=48 * GIB), shape)
    checkpoint: tuple[Line, ...] = (
        ("checkpoint", TORCH + "utils/checkpoint.py", 505),
        ("_fn", TORCH + "_dynamo/eval_frame.py", 929),
        ("forward", TORCH + "distributed/algorithms/_checkpoint/checkpoint_wrapper.py", 171),
    )
    trainer.build()
    trainer.above = (*checkpoint, *CALL_HOOK, *trainer.above)

    def train() -> None:
        inputs = []
        for _ in range(shape.layers):
            inputs += trainer.layer(keep=False)
        trainer.logits()
        trainer.above = (
            ("recompute_fn", TORCH + "utils/checkpoint.py", 1553),
            ("unpack_hook", TORCH + "utils/checkpoint.py", 1124),
            ("backward", TORCH + "_tensor.py", 625),
            ("train_step", HOME + "train.py", 75),
            *TRAIN,
        )
        while inputs:
            layer = trainer.layer()
            trainer.device.free(inputs.pop())
            trainer.free_all(layer[:-1])
            for weight in trainer.weights[1:5]:
                trainer.gradients.append(trainer.device.alloc(weight.requested, trainer.recorder.gradient()))

    until_out_of_memory(train)
    return write(trainer)


def offload_reload() -> Snapshot:
    """Parameters are kept on the host and prefetched, far more layers ahead than fit."""
    trainer = Trainer(Device(total=24 * GIB), Shape(layers=4, batch=1, width=8192, heads=64))
    reload = (("prefetch_layers", HOME + "offload.py", 47), ("forward", HOME + "offload.py", 70), *trainer.above)
    until_out_of_memory(
        lambda: [trainer.new(size, "_to_copy", *reload) for _ in range(60) for _, size in trainer.shape.layer_weights]
    )
    return write(trainer)


def accumulated_gradients() -> Snapshot:
    """Two microbatches a step: gradients of the first one are held while the second one runs."""
    trainer = Trainer(Device(), Shape(layers=24, batch=8))
    trainer.build()

    def step() -> None:
        for _ in range(4):
            batch = trainer.batch()
            loss_blocks: list[Any] = []
            saved = trainer.forward()
            loss_blocks = trainer.loss()
            trainer.backward(saved, loss_blocks, keep_loss=False)
            trainer.free_all(batch)
        trainer.optimizer(foreach=False)
        trainer.zero_grad()

    until_out_of_memory(lambda: [step() for _ in range(3)])
    return write(trainer)


def gathered_ahead() -> Snapshot:
    """FSDP keeps the gathered parameters of all layers until the backward pass: reshard_after_forward=False."""
    trainer = Trainer(Device(total=48 * GIB), Shape(layers=40, width=8192, heads=64, batch=1, sequence=512))
    fsdp = TORCH + "distributed/fsdp/_fully_shard/"
    shards = (
        ("_init_sharded_param", fsdp + "_fsdp_param.py", 330),
        ("fully_shard", fsdp + "_fully_shard.py", 210),
        ("build_model", HOME + "train.py", 124),
        *TRAIN,
    )
    for _ in range(40):
        for _, size in trainer.shape.layer_weights:
            trainer.weights.append(trainer.new(size // 16, "clone", *shards))
    gather: tuple[Line, ...] = (
        ("init_unsharded_param", fsdp + "_fsdp_param.py", 480),
        ("foreach_all_gather_copy_out", fsdp + "_fsdp_collectives.py", 350),
        ("wait_for_unshard", fsdp + "_fsdp_param_group.py", 398),
        ("pre_forward", fsdp + "_fsdp_param_group.py", 440),
        ("_pre_forward", fsdp + "_fsdp_state.py", 240),
    )

    def train() -> None:
        for _ in range(40):
            for _, size in trainer.shape.layer_weights:
                trainer.new(size, "empty_memory_format", *gather, *CALL_HOOK, *trainer.above)
            trainer.layer()

    until_out_of_memory(train)
    return write(trainer)


def bucket_copies() -> Snapshot:
    """DDP holds a second copy of all gradients in its buckets, as gradient_as_bucket_view is off."""
    trainer = Trainer(Device(), Shape(layers=19, weight=4, batch=1))
    trainer.build()
    ddp: tuple[Line, ...] = (
        ("_ddp_init_helper", TORCH + "nn/parallel/distributed.py", 1250),
        ("__init__", TORCH + "nn/parallel/distributed.py", 850),
        ("build_model", HOME + "train.py", 126),
        *TRAIN,
    )
    reducer = ("c10d::Reducer::initialize_buckets(std::vector<std::vector<unsigned long> >&&)",)
    for weight in trainer.weights:
        trainer.device.alloc(weight.requested, trainer.recorder.frames("empty_memory_format", ddp, reducer))
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def compiled() -> Snapshot:
    """A compiled model whose activations do not fit; its lines are those of generated code."""
    trainer = Trainer(Device(total=64 * GIB), Shape(layers=24, batch=10))
    trainer.build()
    code = (
        ("call", "/tmp/torchinductor_ana/kq/ckqgfpxv5y3m.py", 812),
        ("__call__", TORCH + "_inductor/output_code.py", 466),
        ("inner_fn", TORCH + "_functorch/_aot_autograd/runtime_wrappers.py", 526),
        ("_fn", TORCH + "_dynamo/eval_frame.py", 929),
        *CALL_HOOK[:1],
        *trainer.above,
    )

    def forward() -> None:
        for _ in range(trainer.shape.layers):
            for factor in (1, 3, 1, 1, 4, 4, 1):
                trainer.new(factor * trainer.shape.hidden, "empty_strided_cuda", *code)

    until_out_of_memory(forward)
    return write(trainer)


def caught_request() -> Snapshot:
    """cuDNN's benchmark asks for workspaces that do not fit, catches the error, and takes another algorithm."""
    trainer = Trainer(Device(total=24 * GIB), Shape(layers=8, batch=4))
    trainer.build()
    convolution = (("_conv_forward", TORCH + "nn/modules/conv.py", 543), ("forward", HOME + "unet.py", 61), *TRAIN)
    native = ("at::native::raw_cudnn_convolution_forward_out(at::Tensor const&, at::Tensor const&)",)
    until_out_of_memory(
        lambda: trainer.device.alloc(30 * GIB, trainer.recorder.frames("cudnn_convolution", convolution, native))
    )
    steps(trainer, 3)
    return write(trainer)


def teacher() -> Snapshot:
    """A frozen reference model takes most of the device; the policy's step does not fit beside it."""
    trainer = Trainer(Device(), Shape(layers=16, batch=8, sequence=2048))
    big = Trainer(trainer.device, Shape(layers=48, width=6144), trainer.recorder)
    big.build((("load_reference_model", HOME + "rlhf.py", 52), *TRAIN))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def adapters() -> Snapshot:
    """Adapters train on frozen weights that fill the device."""
    trainer = Trainer(Device(), Shape(layers=64, width=6656, heads=52, batch=2, sequence=1024))
    packages = TORCH.removesuffix("torch/")
    pretrained = ("from_pretrained", packages + "transformers/modeling_utils.py", 4400)
    trainer.build((pretrained, ("load_base", HOME + "lora.py", 33), *TRAIN))
    lora = (
        ("update_layer", packages + "peft/tuners/lora/layer.py", 210),
        ("get_peft_model", packages + "peft/mapping_func.py", 120),
        ("add_adapters", HOME + "lora.py", 41),
        *TRAIN,
    )
    trainer.weights = [trainer.new(6656 * 16 * 4, "empty_memory_format", *lora) for _ in range(2 * 4 * 64)]

    def step() -> None:
        trainer.forward()
        trainer.loss()

    until_out_of_memory(step)
    return write(trainer)


def no_trace() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=16))
    trainer.build()
    steps(trainer, 1)
    return write(trainer, trace=False)


def no_stacks() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=24, batch=10), Recorder(Stacks.NONE))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def native_stacks() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=24, batch=10), Recorder(Stacks.NATIVE))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def second_device() -> Snapshot:
    """Two devices of one process; the second one runs out of memory."""
    first = Trainer(Device(), Shape(layers=12))
    first.build()
    steps(first, 2)
    second = Trainer(Device(index=1), Shape(layers=24, batch=10))
    second.build()
    until_out_of_memory(lambda: steps(second, 1))
    return snapshot([first.device, second.device], annotations=first.annotations)


def old_leak() -> Snapshot:
    """A list of outputs that grows by one a step, recorded by PyTorch 2.1, which writes no times."""
    trainer = Trainer(Device(), Shape(layers=12, batch=2))
    trainer.build()
    log = (("log_outputs", HOME + "train.py", 88), *TRAIN)
    steps(trainer, 14, after_forward=lambda: trainer.new(700 * MIB, "clone", *log))
    return write(trainer, version=(2, 1))


def hip() -> Snapshot:
    trainer = Trainer(Device(total=192 * GIB), Shape(layers=48, batch=20), Recorder(device="hip"))
    trainer.build()
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def healthy_training() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    steps(trainer, 8)
    return write(trainer)


def healthy_beginning_lost() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    steps(trainer, 10)
    return write(trainer, lost=len(trainer.device.trace) // 2 + 13)


def healthy_warm_up() -> Snapshot:
    """A table of rotary embeddings and of masks fills up in the first five steps."""
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    table = (("mask_of_length", HOME + "masks.py", 12), *trainer.above)
    for number in range(16):
        if number < 5:
            trainer.new(512 * MIB, "tril", *table)
        trainer.step()
    return write(trainer)


def healthy_accumulation() -> Snapshot:
    trainer = Trainer(Device(), Shape(layers=12, batch=2))
    trainer.build()
    for _ in range(6):
        for _ in range(4):
            batch, saved = trainer.batch(), trainer.forward()
            trainer.backward(saved, trainer.loss(), keep_loss=False)
            trainer.free_all(batch)
        trainer.optimizer()
        trainer.zero_grad()
    return write(trainer)


def healthy_workspaces() -> Snapshot:
    """cuBLAS takes one workspace a thread and stream, and keeps it."""
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    native = ("at::cuda::(anonymous namespace)::getCUDABlasWorkspace()", "at::cuda::getCurrentCUDABlasHandle()")
    for number in range(8):
        if number < 3:
            trainer.device.alloc(33554432, trainer.recorder.frames("addmm", trainer.above, native))
        trainer.step()
    return write(trainer)


def healthy_evaluation() -> Snapshot:
    """An evaluation without a graph after every third step, with a larger batch that fits."""
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    for number in range(1, 10):
        trainer.step()
        if number % 3 == 0:
            above, trainer.above, trainer.shape.batch = trainer.above, EVALUATION, 8
            for _ in range(2):
                for part in trainer.forward(keep=False):
                    trainer.free_all(part)
            trainer.above, trainer.shape.batch = above, 4
    return write(trainer)


def healthy_lengths() -> Snapshot:
    """Sequences of varying length, none of which is far longer than the others."""
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    for number in range(14):
        trainer.shape.sequence = 1536 + 128 * (number * 5 % 7)
        trainer.step()
    return write(trainer)


def healthy_sums() -> Snapshot:
    """`total_loss += loss` after the backward pass keeps one number a step, which is nothing to act on."""
    trainer = Trainer(Device(), Shape(layers=12))
    trainer.build()
    total = (("train_step", HOME + "train.py", 82), *TRAIN)
    steps(trainer, 20, after_forward=lambda: trainer.new(4, "add_Tensor", *total))
    return write(trainer)


def healthy_serving() -> Snapshot:
    """A server that allocates its cache once and decodes under inference_mode."""
    trainer = Trainer(
        Device(), Shape(layers=16, batch=32, sequence=1), above=(("decode", HOME + "serve.py", 61), *TRAIN)
    )
    trainer.build()
    trainer.new(30 * GIB, "zeros", ("allocate_cache", HOME + "serve.py", 30), *TRAIN)
    for _ in range(30):
        for part in trainer.forward(keep=False):
            trainer.free_all(part)
    return write(trainer)


SMALLER = rf"(?i)batch|sequence|{RECOMPUTE}"
CASES = (
    Case("fragmented at the request", fragmented, EXPANDABLE),
    Case("fragmented, collection threshold without limit", fragmented_threshold, EXPANDABLE,
         somewhere=r"(?is)garbage_collection_threshold.*(no effect|without effect|does nothing|has no)"),
    Case("fragmented, max_split_size set", fragmented_max_split, EXPANDABLE),
    Case("expandable segments already on", expandable_on, SMALLER, never=EXPANDABLE),
    Case("a private pool for each captured graph", graph_pools, r"(?i)cuda graph|private pool|captur",
         never=rf"{EXPANDABLE}|(?i:grow)"),
    Case("optimizer state at the first step", state_at_first_step,
         r"(?i)shard|fsdp|zero|8-bit|lower precision|bfloat16|offload", never=rf"(?i){RECOMPUTE}"),
    Case("copies of a multi-tensor step", foreach_copies, r"foreach=False|fused=True"),
    Case("evaluation with a graph", evaluation_with_graph, r"no_grad|inference_mode", never=rf"(?i){RECOMPUTE}"),
    Case("evaluation with a large batch", evaluation_batch, r"(?i)evaluat|validat|chunk|pieces|fused",
         never=rf"(?i){RECOMPUTE}|no_grad"),
    Case("logits in float32", logits_in_float32, r"(?i)chunk|fused.{0,30}(loss|cross)|linear_cross_entropy|in pieces"),
    Case("attention written out", attention_written_out, r"scaled_dot_product_attention|(?i:flash)"),
    Case("losses summed in an evaluation", evaluation_sums_losses, r"no_grad|inference_mode|detach|\.item\(\)",
         never=rf"(?i){RECOMPUTE}"),
    Case("a cache of keys and values that grows", growing_kv_cache, r"(?i)cache", never=rf"(?i){RECOMPUTE}|detach"),
    Case("a hook keeps outputs", hook_keeps_outputs, r"debug_hooks\.py:17"),
    Case("reference cycles", cycles, r"(?i)cycle|gc\.collect|garbage.collect"),
    Case("a checkpoint gathered on one rank", checkpoint_on_rank_0,
         r"(?i)checkpoint.*(save|cpu|gather)|cpu_offload|save_checkpoint|state.dict",
         never=r"(?i)(smaller|half|halve).{0,20}batch"),
    Case("a backup of the weights for their average", average_swap, r"(?i)swap_in|ema\.py|average|backup",
         never=rf"(?i){RECOMPUTE}"),
    Case("recomputed already", recomputes_already, r"(?i)batch|sequence|shard|offload|chunk|pieces",
         never=r"(?i)(turn on|switch on|use|enable|with|full) activation checkpointing|torch\.utils\.checkpoint"),
    Case("offloaded layers reloaded too early", offload_reload, r"(?i)prefetch|offload", never=rf"(?i){RECOMPUTE}"),
    Case("accumulated gradients", accumulated_gradients, SMALLER, never=r"(?i)\bleak"),
    Case("gathered parameters of all layers", gathered_ahead, r"(?i)reshard_after_forward|prefetch|all.gather",
         never=r"(?i)grow"),
    Case("copies in buckets of DDP", bucket_copies, r"gradient_as_bucket_view"),
    Case("compiled", compiled, SMALLER, never=r"torchinductor_"),
    Case("a failed request that was caught", caught_request, healthy=True,
         somewhere=r"(?i)caught|went on|continued|survived", never=r"(?i)shard the parameters"),
    Case("a frozen second model", teacher,
         r"(?i)load_reference_model|rlhf\.py|frozen|teacher|second model|reference model"),
    Case("adapters on frozen weights", adapters, r"(?i)frozen|quanti|4-bit|8-bit (base|weights)|shard|load_base",
         never=r"(?i)optimizer (in|state).{0,20}(8.bit|bfloat16)"),
    Case("state without a history", no_trace, r"(?i)history|record", never=r"(?i)healthy"),
    Case("without stacks", no_stacks, r"(?i)stacks|record|context|batch"),
    Case("native stacks alone", native_stacks, SMALLER, never=r"train\.py"),
    Case("second device", second_device, SMALLER, title=r"(?i)(device|GPU|cuda:) ?1"),
    Case("a leak recorded by PyTorch 2.1", old_leak, r"alive", title=r"train\.py:88"),
    Case("HIP", hip, SMALLER, never=r"PYTORCH_CUDA_ALLOC_CONF|(?i:grow)"),
    Case("healthy training", healthy_training, healthy=True),
    Case("healthy, beginning lost", healthy_beginning_lost, healthy=True),
    Case("healthy, a table that fills up", healthy_warm_up, healthy=True),
    Case("healthy accumulation", healthy_accumulation, healthy=True),
    Case("healthy workspaces", healthy_workspaces, healthy=True),
    Case("healthy evaluation", healthy_evaluation, healthy=True),
    Case("healthy varying lengths", healthy_lengths, healthy=True),
    Case("healthy sums of losses", healthy_sums, healthy=True),
    Case("healthy serving", healthy_serving, healthy=True),
)  # fmt: skip
