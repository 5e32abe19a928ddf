"""Cases that were written when the rules of the first ones were finished, and run once: a measure of what they miss."""

from benchmarks.advice.on_device.allocator import GIB, MIB, Device
from benchmarks.advice.on_device.cases import (
    CALL_HOOK,
    RECOMPUTE,
    SMALLER,
    Case,
    Snapshot,
    steps,
    until_out_of_memory,
    write,
)
from benchmarks.advice.on_device.messages import FULL, MAIN, STEP, Message, out_of_memory, traceback
from benchmarks.advice.on_device.training import HOME, TORCH, TRAIN, Recorder, Shape, Stacks, Trainer

PACKAGES = TORCH.removesuffix("torch/")


def trainer_of(device: Device, shape: Shape, stacks: Stacks = Stacks.PYTHON) -> Trainer:
    trainer = Trainer(device, shape, Recorder(stacks))
    trainer.build()
    return trainer


def gathered_predictions() -> Snapshot:
    """The Trainer of transformers concatenates the logits of the whole evaluation on the device."""
    trainer = trainer_of(Device(), Shape(layers=8, batch=2, vocabulary=128256), Stacks.ALL)
    loop = (("evaluation_loop", PACKAGES + "transformers/trainer.py", 4310), ("main", HOME + "finetune.py", 60))
    concat = (("nested_concat", PACKAGES + "transformers/trainer_pt_utils.py", 130), *loop)
    trainer.above = loop

    def evaluate() -> None:
        held = None
        for number in range(1, 200):
            for layer in trainer.forward(keep=False):
                trainer.free_all(layer)
            longer = trainer.new(number * 512 * MIB, "cat", *concat)
            if held:
                trainer.device.free(held)
            held = longer

    until_out_of_memory(evaluate)
    return write(trainer)


def lightning_validation() -> Snapshot:
    trainer = trainer_of(Device(), Shape(layers=12, vocabulary=64000))
    steps(trainer, 3)
    trainer.shape.batch = 120
    trainer.above = (
        ("validation_step", HOME + "module.py", 77),
        ("evaluation_loop", PACKAGES + "lightning/pytorch/loops/evaluation_loop.py", 410),
        *TRAIN,
    )
    until_out_of_memory(lambda: (trainer.forward(keep=False), trainer.loss()))
    return write(trainer)


def loss_without_native_stacks() -> Snapshot:
    shape = Shape(layers=8, vocabulary=151936, batch=4, sequence=8192, width=2048, heads=16)
    trainer = trainer_of(Device(total=48 * GIB), shape)
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def buckets_without_native_stacks() -> Snapshot:
    trainer = trainer_of(Device(total=72 * GIB), Shape(layers=19, weight=4, batch=1))
    ddp = (("_ddp_init_helper", TORCH + "nn/parallel/distributed.py", 1250), ("build", HOME + "train.py", 126), *TRAIN)
    for weight in trainer.weights:
        trainer.new(weight.requested, "empty", *ddp)
    until_out_of_memory(lambda: steps(trainer, 1, foreach=False))
    return write(trainer)


def kept_flat_parameters() -> Snapshot:
    """FSDP1 with SHARD_GRAD_OP: gathered parameters stay until the backward pass."""
    trainer = Trainer(Device(total=48 * GIB), Shape(layers=40, width=8192, heads=64, batch=1, sequence=512))
    gather = (
        ("_alloc_padded_unsharded_flat_param", TORCH + "distributed/fsdp/_flat_param.py", 1399),
        ("unshard", TORCH + "distributed/fsdp/_flat_param.py", 1340),
        ("_pre_forward", TORCH + "distributed/fsdp/_runtime_utils.py", 382),
    )

    def train() -> None:
        for _ in range(40):
            trainer.new(12 * 8192 * 8192 * 2, "empty", *gather, *CALL_HOOK, *trainer.above)
            trainer.layer()

    until_out_of_memory(train)
    return write(trainer)


def deep_first_pass() -> Snapshot:
    trainer = trainer_of(Device(), Shape(layers=64, batch=6))
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def list_of_outputs() -> Snapshot:
    trainer = trainer_of(Device(), Shape(layers=12, batch=2))
    keep = (("collect", HOME + "metrics.py", 19), *trainer.above)
    until_out_of_memory(lambda: steps(trainer, 60, after_forward=lambda: trainer.new(1536 * MIB, "clone", *keep)))
    return write(trainer)


def two_trained_models() -> Snapshot:
    """A generator and a discriminator, both of which are trained; the batch is too large."""
    device, recorder = Device(total=64 * GIB), Recorder()
    models = [Trainer(device, Shape(layers=10, batch=3), recorder) for _ in range(2)]
    for number, one in enumerate(models):
        name = ("build_generator", "build_discriminator")[number]
        one.build(((name, HOME + "gan.py", 9), ("main", HOME + "gan.py", 20 + number)))
    for one in models:
        steps(one, 2)
    models[0].shape.batch = 24
    until_out_of_memory(lambda: steps(models[0], 1))
    return write(models[0])


def state_without_native_stacks() -> Snapshot:
    trainer = trainer_of(Device(), Shape(layers=26, weight=4, batch=1))
    until_out_of_memory(lambda: steps(trainer, 1))
    return write(trainer)


def checkpoint_loaded_twice() -> Snapshot:
    """Resuming loads the checkpoint onto the device, beside the model that it is copied into."""
    trainer = trainer_of(Device(total=40 * GIB), Shape(layers=60), Stacks.ALL)
    load = (
        ("restore_location", TORCH + "serialization.py", 1700),
        ("load", TORCH + "serialization.py", 1521),
        ("resume", HOME + "train.py", 133),
        *TRAIN,
    )
    until_out_of_memory(lambda: [trainer.new(w.requested, "_to_copy", *load) for w in trainer.weights])
    return write(trainer)


def average_of_a_package() -> Snapshot:
    trainer = trainer_of(Device(total=64 * GIB), Shape(layers=12, weight=4, batch=1), Stacks.ALL)
    module = PACKAGES + "timm/utils/model_ema.py"
    average = (("_update", module, 120), ("update", module, 126), *trainer.above)

    def train() -> None:
        trainer.step(foreach=False)
        for weight in trainer.weights:
            for _ in range(4):
                trainer.new(weight.requested, "mul", *average)

    until_out_of_memory(train)
    return write(trainer)


def healthy_buffer() -> Snapshot:
    """Statistics of eight steps are collected in a list, written and dropped."""
    trainer = trainer_of(Device(), Shape(layers=12), Stacks.ALL)
    line = (("collect", HOME + "metrics.py", 19), *trainer.above)
    kept = []
    for number in range(1, 25):
        trainer.step(after_forward=lambda: kept.append(trainer.new(2 * MIB, "clone", *line)))
        if number % 8 == 0:
            trainer.free_all(kept)
            kept.clear()
    return write(trainer)


def healthy_pair() -> Snapshot:
    models = [Trainer(Device(), Shape(layers=6), Recorder())]
    models.append(Trainer(models[0].device, Shape(layers=6), models[0].recorder))
    for one in models:
        one.build()
    for _ in range(7):
        for one in models:
            one.step()
    return write(models[0])


def healthy_last_batch() -> Snapshot:
    """The last batch of each epoch is smaller."""
    trainer = trainer_of(Device(), Shape(layers=12), Stacks.ALL)
    for number in range(15):
        trainer.shape.batch = 1 if number % 5 == 4 else 4
        trainer.step()
    return write(trainer)


LATER = (
    Case("later: predictions gathered on the device", gathered_predictions,
         r"(?i)evaluat|eval_accumulation_steps|predictions", never=rf"(?i){RECOMPUTE}"),
    Case("later: validation of Lightning", lightning_validation, r"(?i)evaluat|validat|chunk|pieces",
         never=rf"(?i){RECOMPUTE}|no_grad"),
    Case("later: loss, Python stacks", loss_without_native_stacks, r"(?i)chunk|pieces|fused"),
    Case("later: buckets, Python stacks", buckets_without_native_stacks, r"gradient_as_bucket_view"),
    Case("later: flat parameters kept", kept_flat_parameters, r"(?i)reshard|FULL_SHARD|prefetch", never=r"(?i)grow"),
    Case("later: deep first pass", deep_first_pass, SMALLER, never=r"(?i)grow|alive"),
    Case("later: a list of outputs", list_of_outputs, r"metrics\.py:19"),
    Case("later: two trained models", two_trained_models, SMALLER, never=r"(?i)frozen"),
    Case("later: optimizer state, Python stacks", state_without_native_stacks,
         r"(?i)shard|fsdp|less state", never=rf"(?i){RECOMPUTE}"),
    Case("later: a checkpoint loaded onto the device", checkpoint_loaded_twice, r"(?i)map_location|cpu|mmap"),
    Case("later: average of a package", average_of_a_package, r"(?i)average|ema", never=rf"(?i){RECOMPUTE}"),
    Case("later: healthy buffer", healthy_buffer, healthy=True),
    Case("later: healthy pair of models", healthy_pair, healthy=True, never=r"(?i)frozen|grow"),
    Case("later: healthy, smaller last batch", healthy_last_batch, healthy=True),
    Message(
        "later: log of a validation step",
        traceback(
            ("/home/ana/llm/fit.py", 30, "<module>", "trainer.fit(model)"),
            (PACKAGES + "lightning/pytorch/loops/evaluation_loop.py", 410, "_evaluation_step", "output = call("),
            ("/home/ana/llm/module.py", 77, "validation_step", "out = self.model(batch)"),
            ("/home/ana/llm/model.py", 97, "forward", "x = layer(x)"),
            error=out_of_memory("768.00 MiB", *FULL),
        ),
        r"(?i)evaluat|no_grad|validat",
    ),
    Message(
        "later: log of logits in transformers",
        traceback(
            MAIN, STEP,
            (PACKAGES + "transformers/models/llama/modeling_llama.py", 1200, "forward", "logits = logits.float()"),
            error=out_of_memory("15.66 GiB", *FULL),
        ),
        r"(?i)chunk|pieces|fused",
    ),
    Message(
        "later: log of log-probabilities",
        traceback(
            MAIN,
            ("/home/ana/llm/rlhf.py", 88, "compute_ref_log_probs", "logps = logits.log_softmax(-1)"),
            error=out_of_memory("9.30 GiB", *FULL),
        ),
        r"(?i)chunk|pieces|fused",
    ),
    Message(
        "later: log of a full device",
        traceback(MAIN, STEP, ("/home/ana/llm/model.py", 58, "forward", "x = self.norm(x)"),
                  error=out_of_memory("2.00 MiB", "79.15 GiB", "1.00 MiB", "79.14 GiB", "78.40 GiB", "310.00 MiB")),
        r"(?i)batch|checkpointing|recompute|shard", never=r"expandable",
    ),
    Message(
        "later: log of a checkpoint that is loaded",
        traceback(
            MAIN,
            ("/home/ana/llm/train.py", 133, "resume", "state = torch.load(path)"),
            (TORCH + "serialization.py", 1521, "load", "return _load("),
            (TORCH + "serialization.py", 700, "_deserialize", "return obj.to(device=device)"),
            error=out_of_memory("224.00 MiB", *FULL),
        ),
        r"(?i)map_location|cpu|mmap",
    ),
    Message(
        "later: log of a training script with evaluation in its name",
        traceback(
            ("/home/ana/llm/run.py", 9, "<module>", "train_and_evaluate(config)"),
            ("/home/ana/llm/run.py", 30, "train_and_evaluate", "loss = model(batch)"),
            ("/home/ana/llm/model.py", 97, "forward", "x = layer(x)"),
            error=out_of_memory("768.00 MiB", *FULL),
        ),
        r"(?i)batch|recompute|shard", never=r"(?i)evaluat",
    ),
)  # fmt: skip
