"""The recorders for a training script of one's own; they live in the `trainer` package and need torch.

from workbench import recorders
recorders.start("outputs")          # on every rank, after init_process_group
"""

from trainer.recorders.attach import Attached, start

__all__ = ["Attached", "start"]
