"""Count the steps with each tag, such as checkpoint or compile, and compute their median duration.

A tagged step did something besides training.
"""

import numpy as np

from analyzers.steps.model import TaggedSteps
from analyzers.steps.table import NOT_PLAIN, Steps


def tagged_steps(steps: Steps) -> dict[str, TaggedSteps]:
    """Return, for each tag that occurs, the number of its steps and their median duration, in the order of NOT_PLAIN.

    A step with two tags counts for both.
    """
    tags = steps.table["tags"]
    counted = {}
    for tag in NOT_PLAIN:
        # Rows hold joined tags ("first,gc"); there are few different texts, so they are searched instead of the rows.
        texts = [text for text in tags.unique() if tag in text.split(",")]
        if texts:
            rows = steps.table[tags.isin(texts)]
            median = rows["dur_s"].median()
            counted[tag] = TaggedSteps(
                steps=rows["step"].nunique(), median_step_s=None if np.isnan(median) else float(median)
            )
    return counted
