"""The metrics of a speech model are called errors, and some warnings speak of failures that do not matter.

class: healthy
culprit: none
ranks: 2
collection: third
"""

import logging
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(stream=sys.stdout, format="[%(asctime)s][%(levelname)s] %(message)s", level=logging.INFO)
logger = logging.getLogger(__name__)


def main():
    warnings.warn("Failed to load image Python extension: libjpeg.so.8: cannot open shared object file", stacklevel=1)
    logger.error("Could not find a version file; assuming 0.0. This error can be ignored.")
    for step in range(20):
        error = torch.tensor([1 / (step + 1)])
        dist.all_reduce(error)
        if step % 5 == 0:
            logger.info("step %d: word error rate: %.3f, character error: %.3f", step, error / 2, error / 5)
            logger.info("quantization error 0.01, error_norm inf clipped, failed alignments: 3, timeout 0")
    logger.info("best word error rate 0.05; killed 0 hypotheses")


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
