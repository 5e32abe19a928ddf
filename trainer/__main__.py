"""Train a model: torchrun --nproc_per_node 2 -m trainer --config configs/debug_model.toml [--section.key value ...]."""

import os
import sys

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.config import JobConfig
from trainer.config.load import load_for_training, startup_notes
from trainer.config.schema import help_text
from trainer.distributed import leave
from trainer.dry_run import dry_run, world_size
from trainer.errors import ConfigError, TrainerError
from trainer.metrics import logger, start_logging
from trainer.train import Trainer


def in_one_process(config: JobConfig) -> None:
    """Run one training step in this single process, which simulates all ranks of the job.

    Raises:
        ConfigError: The configuration cannot run in one process, or this PyTorch version lacks `LocalTensor`.
    """
    if config.comm.mode == "fake_backend":
        return dry_run(config)
    try:
        from trainer.local_tensor import local_run
    except ImportError as error:
        hint = "install torch 2.10 or newer, or set comm.mode to fake_backend"
        raise ConfigError("comm.mode local_tensor: this PyTorch has no local tensors", hint) from error
    return local_run(config)


@record
def main() -> None:
    """Train as one rank, configured by the command line.

    The decorator `record` writes an exception to the error.json from which torchrun takes the cause of a failure.
    """
    start_logging()
    try:
        config = load_for_training(sys.argv[1:])
        # NGPU is the number of ranks only where one process stands for all of them.
        size = int(os.environ.get("WORLD_SIZE", "1")) if config.comm.mode == "default" else world_size()
        for note in startup_notes(sys.argv[1:], size):
            logger.warning(note)
        if config.comm.mode != "default":
            in_one_process(config)
            return
        trainer = Trainer(config)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        raise
    try:
        trainer.train()
    except Exception as error:
        trainer.recorders.failed(error)
        raise
    trainer.close()


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(help_text("torchrun -m trainer"))
        sys.exit()
    main()
    # A dry run joins groups only in processes of its own.
    if dist.is_initialized():
        leave()
