"""Check that a jump of the loss is found in runs of 10 to 30 steps, and that none is reported where there is none.

`python -m benchmarks.step_logs.short_curves [--kept-back]`: each case is a loss curve as a run logs it, and the steps
at which an engineer who looks at it would see a jump. The curves were written before the rule; a third of them,
chosen by the hash of their names, was kept back until the rule was done.
"""

import hashlib
import sys
from typing import NamedTuple

import numpy as np

from benchmarks.step_logs.faults import spike_steps


class Curve(NamedTuple):
    """The losses of a short run, from step 1 on, and the steps at which a jump begins."""

    name: str
    jumps: tuple[int, ...]
    losses: tuple[float, ...]


CURVES = [
    Curve("fine-tuning, one bad batch", (10,),
          (2.41, 2.28, 2.31, 2.19, 2.22, 2.10, 2.15, 2.06, 2.09, 4.87, 2.21, 2.04)),
    Curve("from scratch, another text in one step", (13,),
          (5.86, 5.41, 4.98, 4.55, 4.20, 3.92, 3.66, 3.47, 3.28, 3.15, 3.01, 2.88, 4.52, 3.05, 2.79, 2.70)),
    Curve("from scratch, warm-up, healthy", (),
          (10.93, 10.81, 10.52, 10.10, 9.63, 9.21, 8.84, 8.47, 8.13, 7.90, 7.62, 7.43, 7.31, 7.02, 7.11, 6.84, 6.70,
           6.79, 6.58, 6.51)),
    Curve("one sample a batch, healthy", (),
          (1.82, 1.21, 2.05, 1.64, 0.98, 1.77, 1.35, 2.22, 1.51, 1.10, 1.93, 1.42, 0.88, 1.69, 2.31, 1.25, 1.58, 1.02,
           1.87, 1.47, 1.14, 2.08, 1.31, 1.66)),
    Curve("one sample a batch, one of them broken", (17,),
          (1.82, 1.21, 2.05, 1.64, 0.98, 1.77, 1.35, 2.22, 1.51, 1.10, 1.93, 1.42, 0.88, 1.69, 2.31, 1.25, 9.74, 1.52,
           1.87, 1.47, 1.14, 2.08, 1.31, 1.66)),
    Curve("jump in the last step", (14,),
          (3.42, 3.31, 3.26, 3.15, 3.19, 3.08, 3.02, 3.05, 2.94, 2.97, 2.90, 2.86, 2.88, 6.12)),
    Curve("diverges and stays high", (11,),
          (3.21, 3.10, 3.02, 2.96, 2.91, 2.87, 2.85, 2.80, 2.83, 2.78, 6.93, 7.41, 7.12, 7.34, 7.22)),
    Curve("smaller last batch of each epoch, healthy", (),
          (0.69, 0.66, 0.67, 0.61, 0.63, 0.58, 0.60, 0.55, 0.57, 0.66, 0.52, 0.54, 0.50, 0.51, 0.47, 0.49, 0.45, 0.47,
           0.43, 0.52, 0.42, 0.40, 0.41, 0.39, 0.40, 0.37, 0.38, 0.36, 0.37, 0.43)),
    Curve("jump in step 5 of 10", (5,), (3.92, 3.64, 3.43, 3.31, 7.85, 3.40, 3.21, 3.15, 3.10, 3.04)),
    Curve("two bad batches", (9, 19),
          (4.61, 4.42, 4.29, 4.11, 4.02, 3.88, 3.81, 3.70, 6.92, 3.75, 3.58, 3.51, 3.44, 3.39, 3.33, 3.27, 3.24, 3.16,
           5.87, 3.22, 3.09, 3.05, 3.03, 2.97, 2.95)),
    Curve("loss of a policy around zero, healthy", (),
          (-0.021, 0.013, 0.034, -0.008, 0.019, -0.027, 0.002, 0.041, -0.015, 0.022, 0.009, -0.031, 0.017, 0.028,
           -0.004, 0.036, -0.018, 0.011)),
    Curve("bump as the learning rate warms up, healthy", (),
          (4.62, 4.31, 4.08, 3.99, 4.05, 4.21, 4.43, 4.58, 4.61, 4.49, 4.27, 4.05, 3.88, 3.71, 3.62, 3.55, 3.46)),
    Curve("adversarial, swings, healthy", (),
          (0.71, 0.93, 1.42, 1.05, 0.83, 1.26, 1.61, 1.12, 0.79, 1.33, 1.72, 1.19, 0.88, 1.21, 1.55, 1.02, 0.91, 1.48,
           1.77, 1.08, 0.86, 1.37)),
    Curve("small loss, three digits, one bad batch", (15,),
          (0.052, 0.047, 0.044, 0.041, 0.042, 0.038, 0.036, 0.037, 0.034, 0.033, 0.031, 0.032, 0.030, 0.029, 0.071,
           0.031, 0.028, 0.027, 0.028, 0.026)),
    Curve("falls fast, then one bad batch, 11 steps", (9,),
          (8.10, 5.93, 4.42, 3.51, 2.96, 2.61, 2.40, 2.27, 5.10, 2.31, 2.15)),
    Curve("reward model, ten steps, healthy", (), (0.71, 0.69, 0.74, 0.66, 0.70, 0.62, 0.68, 0.59, 0.65, 0.61)),
    Curve("hard batches now and then, healthy", (),
          (2.62, 2.48, 2.55, 2.97, 2.41, 2.36, 2.44, 2.31, 2.79, 2.29, 2.35, 2.24, 2.20, 2.71, 2.26, 2.17, 2.22, 2.13,
           2.58, 2.15)),
    Curve("two steps of a bad shard, then recovers", (12,),
          (3.05, 2.93, 2.98, 2.84, 2.89, 2.77, 2.81, 2.71, 2.76, 2.66, 2.70, 5.12, 5.31, 2.91, 2.68, 2.63, 2.65, 2.58)),
]  # fmt: skip


def is_kept_back(name: str) -> bool:
    """Return whether a curve belongs to the third that no rule was tuned on."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def main() -> int:
    """Print each wrong answer, and how many curves with jumps, and without one, are right."""
    kept_back, right = "--kept-back" in sys.argv, {True: [0, 0], False: [0, 0]}
    for curve in CURVES:
        if is_kept_back(curve.name) != kept_back:
            continue
        reported = tuple(sorted(spike_steps(np.array(curve.losses))))
        row = right[bool(curve.jumps)]
        row[0] += reported == curve.jumps
        row[1] += 1
        if reported != curve.jumps:
            print(f"wrong: {curve.name}: jumps at {curve.jumps}, reported {reported}")
    print(f"with a jump: {right[True][0]} of {right[True][1]} right; without: {right[False][0]} of {right[False][1]}")
    return int(any(row[0] != row[1] for row in right.values()))


if __name__ == "__main__":
    sys.exit(main())
