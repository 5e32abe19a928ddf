"""Why a trace report lists no waits."""

from dataclasses import dataclass, field

import pytest

from workbench.present.tables.trace import why_no_waits


@dataclass(frozen=True)
class Account:
    """What the reason depends on: the rank, and the collectives that it recorded."""

    rank: int | None
    collectives: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("accounts", "reason"),
    [
        ([Account(None)], "The traces do not tell their ranks"),
        ([Account(None), Account(3)], "Only rank 3 was traced"),
        ([Account(0), Account(1)], "None of the 2 traced ranks recorded a collective"),
        ([Account(0, ["all_reduce"]), Account(1, ["all_reduce"])], "No two of the 2 traced ranks"),
    ],
)
def test_the_reason_is_named(accounts, reason):
    assert why_no_waits(accounts).startswith(reason)
