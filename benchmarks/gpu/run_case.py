"""Run one case in this process: python -m benchmarks.gpu.run_case SECTION.NAME DEVICE OUT.

Writes OUT/rows/SECTION.NAME.json.
"""

import os
import shutil
import sys
import time
import traceback
from pathlib import Path

from benchmarks.gpu.__main__ import all_cases
from benchmarks.gpu.case import Case, CheckFailedError, Measured, Place, Row, State


def outcome(case: Case, place: Place) -> tuple[State, Measured, str]:
    """Run a case; return its state, the measured values, and the error if it failed."""
    try:
        return State.PASSED, case.run(place), ""
    except CheckFailedError as failure:
        return State.FAILED, failure.measured, str(failure)
    except Exception as error:  # noqa: BLE001 - whatever happens is a row of the table
        problem = f"{type(error).__name__}: {error}"[:500]
        return State.FAILED, {"traceback": traceback.format_exc()[-1500:]}, problem


def main() -> None:
    """Run the case and write its row."""
    key, device, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    [case] = [case for case in all_cases() if case.key == key]
    place = Place(device, out / "work" / key, out / "fixtures" / key)
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    started = time.monotonic()
    state, measured, problem = outcome(case, place)
    row = Row(case.section, case.name, state, round(time.monotonic() - started, 1), measured, problem)
    target = out / "rows" / f"{key}.json"
    draft = target.with_suffix(".draft")
    draft.write_text(row.as_json(), encoding="utf-8")
    draft.replace(target)
    if state is State.PASSED:
        shutil.rmtree(place.folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a device that ran out of memory, or a process group, may not end in order


if __name__ == "__main__":
    main()
