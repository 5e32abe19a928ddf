"""The cases: which rank runs out of memory in which job, and the advice that an expert would begin with."""

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

KEPT_ASIDE = 3
"""One of so many cases is kept aside: no rule was tuned on it."""


class Peers(StrEnum):
    """The snapshots of the other ranks: after the last step, or after the step before."""

    AT_END = "at_end"
    STEP_BEFORE = "step_before"


class Recorded(StrEnum):
    """How the snapshots were recorded: by our recorder, or by PyTorch alone with Python stacks."""

    OURS = "ours"
    STOCK = "stock"


class Expected(NamedTuple):
    """A job, the rank that fails in it, and the pattern that the beginning of the advice must match.

    `never` must match nowhere in the advice. `outside` is the share of the device that another process has.
    """

    job: str
    rank: int
    words: str
    never: str = ""
    outside: float = 0.0


BATCH = r"First check (the|why the failing step's) batch"
RANKS = r"(?i)(other|all|each|every) ranks?"
EXPECTED = (
    Expected("uneven_batch", 2, r"(?is)(?=.*rank 2).*(batch|samples|inputs)"),
    Expected("long_sample", 1, r"(?i)(batch|sample|sequence).*(long|large)"),
    Expected("long_sample_first_step", 3, r"(?is)(?=.*rank 3).*(batch|samples|inputs|sequence)"),
    Expected("large_image", 3, r"(?i)(batch|sample|input|image).*large"),
    Expected("last_stage_with_head", 3, r"(?is)(?=.*rank 3).*(stage|head|logits|loss)"),
    Expected("first_stage_in_flight", 0, r"(?is)(?=.*rank 0).*microbatch"),
    Expected("uneven_stages", 1, r"(?is)(?=.*rank 1).*(parameters|layers)"),
    Expected("moving_average", 0, r"(?is)(?=.*rank 0).*(update_ema|moving average)"),
    Expected("full_checkpoint", 0, r"(?is)(?=.*rank 0).*(gather_full_state_dict|checkpoint)"),
    Expected("uneven_experts", 3, r"(?is)(?=.*rank 3).*(expert|dispatch|router|MoE)", never=BATCH),
    Expected("evaluation_on_rank_0", 0, r"(?is)(?=.*rank 0).*evaluat"),
    Expected("evaluation_everywhere", 1, r".", never=RANKS),
    Expected("alike", 2, r".", never=RANKS),
    Expected("alike_varied", 2, r".", never=RANKS),
    Expected("without_recomputation", 2, r"(?is)(?=.*rank 2).*(keep|recomput|checkpointing)", never=BATCH),
    Expected("longer_from_now", 1, r"(?i)batch|sequence", never=r"Give all ranks|no other rank|in every step"),
    Expected("small_logging", 0, r".", never=RANKS),
    Expected("recorded_activations", 0, r"(?is)(?=.*rank 0).*remember_output"),
    Expected("logged_losses", 0, r"(?i)log_metrics|keeps"),
    Expected("teacher_on_rank_0", 0, r"(?is)(?=.*rank 0).*build_teacher"),
    Expected("alike", 1, r"(?i)(process|outside|nvidia-smi|other than)", outside=0.4),
    Expected("other_loop", 1, r".", never=RANKS),
    Expected("other_loop_and_batch", 2, r"(?is)(?=.*rank 2).*(batch|samples|inputs)", never=r"no other rank ran"),
    Expected("wrapped_model", 3, r".", never=RANKS),
    Expected("warm_up_stage", 0, r"(?is)(?=.*rank 0).*microbatch", never=r"no other rank ran"),
    Expected("other_loop_and_evaluation", 0, r"(?is)(?=.*rank 0).*evaluat"),
    Expected("samples_on_rank_0", 0, r"(?is)(?=.*rank 0).*make_figure"),
)  # fmt: skip


class Case(NamedTuple):
    """One expectation with one way of recording and one kind of snapshots of the other ranks."""

    expected: Expected
    recorded: Recorded
    peers: Peers

    @property
    def name(self) -> str:
        outside = "+process" if self.expected.outside else ""
        return f"{self.expected.job}{outside}/{self.recorded}/{self.peers}"

    @property
    def is_kept_aside(self) -> bool:
        """Whether no rule was tuned on this case."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % KEPT_ASIDE == 0


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for expected in EXPECTED:
        for recorded in Recorded:
            for peers in Peers:
                yield Case(expected, recorded, peers)
