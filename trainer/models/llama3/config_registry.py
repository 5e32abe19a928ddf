"""Ready configurations of Llama 3, for `--module llama3 --config NAME`."""

from trainer.config.sections import JobConfig, LRScheduler, Metrics, Model, Training


def llama3_debugmodel() -> JobConfig:
    """Return ten steps that fit on a laptop."""
    return JobConfig(
        metrics=Metrics(log_freq=1),
        model=Model(flavor="debugmodel"),
        lr_scheduler=LRScheduler(warmup_steps=2, decay_ratio=0.8),
        training=Training(local_batch_size=4, seq_len=128, steps=10, mixed_precision_param="float32"),
    )


def llama3_8b() -> JobConfig:
    """Return the published size of 8 billion parameters, with torchtitan's batch and rates."""
    return large("8B", batch=1, length=8192)


def llama3_70b() -> JobConfig:
    """Return the published size of 70 billion parameters, with torchtitan's batch and rates."""
    return large("70B", batch=8, length=8192)


def llama3_405b() -> JobConfig:
    """Return the published size of 405 billion parameters, with torchtitan's batch and rates."""
    return large("405B", batch=2, length=8192)


def large(flavor: str, batch: int, length: int) -> JobConfig:
    """Return the configuration of a size that needs many devices: tokens of a sequence, sequences of a rank's batch."""
    config = JobConfig(model=Model(flavor=flavor))
    # Rates of torchtitan's train_configs for these sizes.
    config.optimizer.lr = {"8B": 3e-4, "70B": 1.5e-4, "405B": 8e-5}[flavor]
    config.training = Training(local_batch_size=batch, seq_len=length, steps=1000)
    config.activation_checkpoint.mode = "selective" if flavor == "8B" else "full"
    if flavor == "8B":
        config.activation_checkpoint.selective_ac_option = "op"
    return config
