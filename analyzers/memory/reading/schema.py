"""The fixed names in a snapshot (actions, block states, categories), and the numbers that encode them in columns."""

from enum import IntEnum

import numpy as np

from analyzers.columns import Column


class Action(IntEnum):
    """The allocator event that a trace entry records; `UNKNOWN` is an event of any other name.

    `FREE_REQUESTED`: the program freed the block, but CUDA streams may still use it. `FREE_COMPLETED`: its memory is
    free again.
    """

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    UNKNOWN = 10


class Category(IntEnum):
    """What the memory of a block is used for. The value is the index of the name in `CATEGORIES`."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    INPUTS = 4
    TEMPORARY = 5
    COMMUNICATION = 6
    WORKSPACE = 7
    UNKNOWN = 8


class BlockState(IntEnum):
    """The state of a block when the snapshot was taken.

    `PENDING_FREE`: the program freed the block, but a CUDA stream may still use it.
    """

    INACTIVE = 0
    ACTIVE = 1
    PENDING_FREE = 2


ACTIONS = tuple(action.name.lower() for action in Action)
CATEGORIES = tuple(category.name.lower() for category in Category)
UNTAGGED = -1
"""The number in a category column for blocks to which the recorder gave no category."""

ACTION_OF = {name: number for number, name in enumerate(ACTIONS)}
CATEGORY_OF = {name: number for number, name in enumerate(CATEGORIES)} | {
    # The singular forms are what torch.profiler's own conversion to a snapshot writes.
    "parameter": Category.PARAMETERS,
    "gradient": Category.GRADIENTS,
    "activation": Category.ACTIVATIONS,
    "input": Category.INPUTS,
    "autograd_detail": Category.TEMPORARY,
}
STATE_OF = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING_FREE,
    # The docstring of torch.cuda.memory._snapshot says so; no release writes it.
    "active_awaiting_free": BlockState.PENDING_FREE,
}

# Memory that the allocator takes from the device, and gives back to it.
RESERVING = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
RETURNING = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def category_names(numbers: Column) -> Column:
    """Return the name of each category number, as an array of the same length."""
    return np.array(CATEGORIES, object)[numbers]
