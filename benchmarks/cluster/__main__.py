"""Run the cases on a simulated cluster, and compare the answers with the expected ones.

python -m benchmarks.cluster [CASE ...] [--aside] [--keep FOLDER]      Linux, as root; a case takes about a minute
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.cluster.cases import CASES
from benchmarks.cluster.run_case import run_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--aside", action="store_true", help="the cases that were kept aside")
    parser.add_argument("--keep", type=Path, help="where to keep the folders of the nodes")
    asked = parser.parse_args()
    chosen = [case for case in CASES if case.name in asked.names or (not asked.names and case.aside == asked.aside)]
    right = 0
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            answer = run_case(case, (asked.keep or Path(folder)) / case.name)
        problems = answer.problems(case)
        right += not problems
        print(f"{'right' if not problems else 'WRONG'}  {case.name}: {answer.kind} {answer.ranks}: {answer.sentence}")
        print(f"       missing: {'; '.join(answer.missing) or 'nothing'}")
        for problem in problems:
            print(f"       {problem}")
    print(f"{right} of {len(chosen)} right")


if __name__ == "__main__":
    main()
