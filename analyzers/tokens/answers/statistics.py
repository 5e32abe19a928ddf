"""Sum up the numbers about all rows of a data set."""

from collections import Counter
from typing import Any

import numpy as np

from analyzers.columns import Column
from analyzers.tokens.answers.problems import Rows
from analyzers.tokens.model import ROLE_NAMES, UNKNOWN_SHIFT, Lengths, Role, TokenStatistics
from analyzers.tokens.reading.facts import FORMS

_SHIFT_NAMES = {0: "the token itself", 1: "the next token", UNKNOWN_SHIFT: "unknown"}


def statistics_of(rows: Rows, meta: dict[str, Any]) -> TokenStatistics:
    """Return the statistics of all rows of a data set; `meta` is the metadata that the reader returned."""
    forms = Counter(rows["form"].tolist())
    shifts = Counter(rows["shift"][rows.is_labelled].tolist())
    return TokenStatistics(
        rows=len(rows["row"]) + meta["damaged_rows"],
        damaged_rows=meta["damaged_rows"],
        complete=meta["complete"],
        forms={str(FORMS[form]): count for form, count in forms.most_common()},
        tokens=int(rows["length"].sum()),
        trained=int(rows["trained"].sum()),
        padding=int(rows["padding"].sum()),
        length=lengths(rows["length"]),
        trained_of_row=lengths(rows["trained"]),
        first_trained=lengths(rows["first_trained"][rows["first_trained"] >= 0]),
        documents=int(rows["documents"].sum()),
        turns=int(rows["turns"].sum()),
        at_limit=int(np.count_nonzero(rows.at_limit)),
        shifts={shift_name(shift): count for shift, count in shifts.most_common()},
        roles=_by_role(rows.facts["role_counts"]),
        trained_roles=_by_role(rows.facts["trained_counts"]),
    )


def lengths(values: Column) -> Lengths:
    """Return the median, the 90th percentile and the largest of some numbers; zeros if there are none."""
    if not len(values):
        return Lengths(0, 0, 0)
    # Lengths that rows really have, not values between two of them.
    median, p90 = np.percentile(values, (50, 90), method="lower").tolist()
    return Lengths(int(median), int(p90), int(values.max()))


def shift_name(shift: int) -> str:
    """Return which token the labels stand for, given their shift: `the next token` for 1."""
    return _SHIFT_NAMES.get(shift) or f"the token {abs(shift)} {'later' if shift > 0 else 'before'}"


def _by_role(counts: Column) -> dict[str, int]:
    """Return {name of a role: number of its tokens}, without roles that no token has.

    `counts[role]` is the number of tokens of each `Role`.
    """
    return {ROLE_NAMES[Role(role)]: count for role, count in enumerate(counts.tolist()) if count}
