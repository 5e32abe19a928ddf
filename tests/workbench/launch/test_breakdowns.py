"""The tables of memory and time at the end of a launch."""

from pathlib import Path

import pytest

from workbench.launch.plan import Request, plan
from workbench.launch.run import breakdowns

LOG = """[trainer] 2026-11-26 02:56:19,436 - root - INFO - step:  2  loss:  6.0100
[trainer] 2026-11-26 02:56:19,500 - root - INFO - Timing breakdown of 1 steps from 1 to 1, in ms:
  bwd   50.0
[trainer] 2026-11-26 02:56:19,695 - root - INFO - Timing breakdown of 1 steps from 2 to 2, in ms:
  bwd   59.0
[trainer] 2026-11-26 02:56:19,695 - root - INFO - Training completed
[trainer] 2026-11-26 02:56:19,715 - root - INFO - Memory by category at the peak of 8.2 MiB:
  \x1b[2Jactivations  6.0 MiB
"""


@pytest.mark.parametrize(
    ("flags", "tables"),
    [
        ((), []),
        (("--debug.timing_breakdown",), ["Timing breakdown of 1 steps from 2 to 2, in ms:\n  bwd   59.0"]),
        (("--debug.memory_breakdown",), ["Memory by category at the peak of 8.2 MiB:\n  [2Jactivations  6.0 MiB"]),
    ],
)
def test_the_last_tables_that_were_asked_for_are_printed(
    tmp_path: Path, flags: tuple[str, ...], tables: list[str]
) -> None:
    job = plan(Request(nproc=1, overrides=("--job.dump_folder", str(tmp_path), *flags)))
    assert breakdowns(job) == []
    log = tmp_path / "logs" / "run" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    assert breakdowns(job) == tables
