"""Check with real memory limits that the first plan of `workbench plan` runs, and that the next larger batch does not.

`python -m benchmarks.advice.plan_limits [NUMBER ...]`: each case of `benchmarks.advice.plans` is planned with the
margin that the command has by default. Then the first plan and the next larger batch are trained on gloo ranks, each
of which can have no more tensors than the limit from its second step on (`benchmarks.advice.limited_trainer`).
"""

import re
import subprocess
import sys
import tempfile

from benchmarks.advice.plans import CASES, ROOT, Case, flags_of
from benchmarks.start_job import start_job
from workbench.commands.plan import plan
from workbench.documents import PlannedSettings
from workbench.launch.plan import Request

MARGIN, STEPS = 0.1, "4"
REFUSED = re.compile("can(?:no|')t allocate memory|bad_alloc|MemoryError|failed to map segment", re.IGNORECASE)
"""Matches what PyTorch's allocator, C++, Python or the dynamic loader says of a request that the limit refuses."""


def runs(case: Case, planned: PlannedSettings) -> bool:
    """Return whether the job trains its steps under the limit; False if a request for memory was refused.

    Raises:
        RuntimeError: The job failed for another reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--config", str(ROOT / f"configs/{case.config}.toml"), "--training.steps", STEPS,
                 "--job.dump_folder", folder, *case.flags, *flags_of(planned)]  # fmt: skip
        module = "benchmarks.advice.limited_trainer"
        try:
            start_job(module, str(case.limit), *flags, ranks=case.ranks, MALLOC_MMAP_THRESHOLD_="16384")
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode()
            if not REFUSED.search(said):
                raise RuntimeError(said[-2000:]) from error
            return False
    return True


def row(case: Case) -> str:
    """Return a row of the table: the job, its first plan and whether it runs, the next larger batch and whether it."""
    request = Request(config=str(ROOT / f"configs/{case.config}.toml"), nproc=case.ranks, overrides=case.flags)
    data = plan(request, case.limit, MARGIN, "cpu", 1).data
    job = f"{case.ranks} ranks of {case.limit:,} {' '.join(case.flags)}".strip()
    return f"| {job} | {outcome(case, data.plans[0] if data.plans else None)} | {outcome(case, data.next_larger)} |"


def outcome(case: Case, planned: PlannedSettings | None) -> str:
    """Return what was planned, its peak, and whether it ran under the limit; `not named` if there is no such plan."""
    if planned is None:
        return "not named"
    shown = {key.rpartition(".")[2]: value for key, value in planned.settings.items() if value not in (1, False)}
    return f"{shown}, planned {planned.peak_bytes:,}: {'runs' if runs(case, planned) else 'out of memory'}"


def main() -> None:
    """Print the row of each case; arguments select cases by number."""
    for number in [int(word) for word in sys.argv[1:] if word.isdecimal()] or range(len(CASES)):
        print(row(CASES[number]), flush=True)


if __name__ == "__main__":
    main()
