"""What is answered beside a memory report only when it is asked for, as it takes opening the files themselves."""

from collections.abc import Sequence

import msgspec

from analyzers import store
from analyzers.memory.model import MemoryData
from analyzers.report import Report
from analyzers.run import Artefact, selected


def with_further(
    report: Report[MemoryData],
    artefacts: Sequence[Artefact],
    options: store.Options,
    *,
    breakdown: bool,
    changes: str | None,
) -> Report[MemoryData]:
    """The report with the breakdown tables, and with what would be under `changes` such as `batch=2x,ac=full`.

    Raises:
        InputError: There is no such change, or a recording does not hold what it takes to tell.
    """
    from analyzers.memory.answers.breakdown import breakdowns  # late, as most reports do without
    from analyzers.memory.answers.what_if import what_if

    chosen = selected(artefacts, options.rank, options.step)
    data = msgspec.structs.replace(
        report.data,
        breakdown=breakdowns(chosen, options) if breakdown else [],
        what_if=what_if(chosen, changes, options) if changes else [],
    )
    return msgspec.structs.replace(report, data=data)
