"""Train: torchrun --nproc_per_node 2 -m trainer --config configs/debug_model.toml [--section.key value ...]."""

import sys

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.config.load import load_for_training, startup_notes
from trainer.config.show import help_text
from trainer.distributed import leave
from trainer.dry_run import dry_run
from trainer.errors import TrainerError
from trainer.metrics import logger, start_logging
from trainer.train import Trainer


@record
def main() -> None:
    """Run one rank from its command line to its end. An error leaves through `record`, which writes error.json."""
    start_logging()
    try:
        config = load_for_training(sys.argv[1:])
        for note in startup_notes(sys.argv[1:]):
            logger.warning(note)
        if config.comm.mode == "fake_backend":
            dry_run(config)
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
    if dist.is_initialized():
        leave()
