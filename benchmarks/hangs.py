"""Measure how often the hang analyzer names the simulated cause, and its cost, compared with torchfrtrace.

    python benchmarks/hangs.py score [--seeds 10] [--ranks 1024] [--layers 1] [--steps 3] [--official]
    python benchmarks/hangs.py zoo [--official]                     real gloo jobs of 4 to 8 processes
    python benchmarks/hangs.py states                               what the collector gets of a rank in each state

A verdict counts only if its classes and culprit ranks are exactly the simulated ones. torchfrtrace prints a report for
each unmatched operation, without a class: it gets the point if any of its reports names exactly these ranks.
"""

import argparse
import itertools
import pickle
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from analyzers import run, store
from analyzers.hangs import analyze
from benchmarks.hang_jobs import (
    TIMEOUT_NS,
    Fault,
    Launch,
    Mesh,
    Simulation,
    Style,
    dump,
    places,
    program,
    with_past,
    write,
)

MESHES = (Mesh(4, 4, 4), Mesh(8, 4, 2), Mesh(8, 8, 1), Mesh(2, 16, 2), Mesh(4, 8, 4), Mesh(8, 8, 4))
COLLECTIVES = ("tp", "dp")
PLACES = {
    "host_stuck": ("tp", "dp", "pp", "default"),
    "dead": ("tp", "dp", "pp", "default"),
    "gpu_hang": ("tp", "dp", "default"),
    "lagging": ("tp", "dp", "default"),
    "unmatched_p2p": ("pp",),
    "order_cycle": ("order",),
    "swapped": ("same",),
}
"""{fault: kinds of groups in which it may happen}; all other faults happen in collectives of tp and dp."""
CLASS = {
    "gpu_hang": "all_arrived", "shape": "mismatch", "type": "mismatch", "dtype": "mismatch", "swapped": "mismatch",
    "extra": "mismatch",
}  # fmt: skip
SCENARIOS = (
    "healthy", "healthy_exchange", "healthy_skew", "host_stuck", "dead", "gpu_hang", "lagging", "shape", "type",
    "dtype", "skipped", "order_cycle", "unmatched_p2p", "extra", "swapped", "lost_dumps", "wrapped", "only_active",
    "two_faults",
)  # fmt: skip

DEFAULT_SIZE: Mapping[str, int] = {"layers": Style.layers, "steps": Style.steps}
"""How many layers and steps a simulated job has."""

Truth = set[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Case:
    """A folder of dumps, and the simulated causes as (class, culprit ranks)."""

    folder: Path
    truth: Truth
    groups: dict[tuple[int, ...], str] = field(default_factory=dict)
    """{culprit ranks: group of the operation at which the fault happened}."""

    @property
    def ranks(self) -> set[int]:
        return {rank for _, ranks in self.truth for rank in ranks}


def style_of(scenario: str, dice: random.Random) -> Style:
    style = Style(
        depth=dice.choice((1, 4, 1 << 30)),
        streams=scenario != "two_faults" and dice.random() < 0.3,
        exchange=scenario == "healthy_exchange" or dice.random() < 0.2,
    )
    match scenario:
        case "healthy_skew":
            return replace(style, skew_ns=dice.choice((2, 20, 200)) * 1_000_000)
        case "order_cycle" | "swapped":  # without run-ahead it leaves the same dumps as a skipped operation
            return replace(style, depth=1 << 30, streams=False)
        case "wrapped":
            return replace(style, ring=dice.choice((20, 40)))
        case "only_active":
            return replace(style, only_active=True)
    return style


def faults_of(scenario: str, mesh: Mesh, style: Style, dice: random.Random) -> list[Fault]:
    if scenario.startswith("healthy"):
        return []
    if scenario == "two_faults":
        kinds = dice.choices(("host_stuck", "gpu_hang", "shape", "lagging"), k=2)
    elif scenario in ("lost_dumps", "wrapped", "only_active"):
        kinds = [dice.choice(("host_stuck", "shape", "gpu_hang"))]
    else:
        kinds = [scenario]
    return [fault_of(kind, mesh, style, dice) for kind in kinds]


def fault_of(kind: str, mesh: Mesh, style: Style, dice: random.Random) -> Fault:
    rank = dice.randrange(mesh.size)
    launches = program(mesh, rank, style)
    wanted = PLACES.get(kind, COLLECTIVES)
    if wanted == ("order",):  # only groups that share a second rank can deadlock
        found = [i for i in places(launches, style.steps, ("tp", "pp", "dp")) if launches[i + 1].kind == "default"]
    elif wanted == ("same",):  # two operations of one group, which a thread beside the loop may issue in another order
        found = [i for i in places(launches, style.steps, COLLECTIVES) if differ_in_one_group(*launches[i : i + 2])]
    else:
        found = list(places(launches, style.steps, wanted))
    return Fault(kind, rank, dice.choice(found or list(places(launches, style.steps, COLLECTIVES))))


def differ_in_one_group(first: Launch, second: Launch) -> bool:
    """Return whether two launches are different operations of the same group."""
    return first.kind == second.kind and (first.ops, first.inputs) != (second.ops, second.inputs)


def make(
    scenario: str, seed: int, folder: Path, meshes: Sequence[Mesh] = MESHES, size: Mapping[str, int] = DEFAULT_SIZE
) -> Case | None:
    """Write the dumps of a case and return it; None if the random fault cannot be seen in the dumps."""
    dice = random.Random(f"{scenario} {seed}")
    mesh, style = dice.choice(meshes), replace(style_of(scenario, dice), **size)
    faults = faults_of(scenario, mesh, style, dice)
    if scenario in ("unmatched_p2p", "order_cycle") and mesh.pp == 1:
        return make(scenario, seed + 1_000_000, folder, meshes, size)
    job = Simulation(mesh, style, faults, seed)
    job.run()
    if faults and (len(job.finished) == mesh.size or not any(shows(job, f) for f in faults)):
        return None
    end = max(job.ranks[r].issued[-1][3] for r in range(mesh.size) if job.ranks[r].issued)
    lost = {f.rank for f in faults if f.kind == "dead"}
    if scenario == "lost_dumps":
        guilty = {rank for fault in faults if shows(job, fault) for rank in planted(job, fault)[1]}
        innocent = [rank for rank in range(mesh.size) if rank not in guilty]
        if not innocent:
            return None
        lost |= set(dice.sample(innocent, 2))
    start = min(state.issued[0][3] for state in job.ranks)
    at = end + TIMEOUT_NS if faults else dice.randrange(start + (end - start) // 4, end)
    instants = {rank: at + dice.randrange(max(1, style.skew_ns)) for rank in range(mesh.size)}
    write(job, folder, {rank: now for rank, now in instants.items() if rank not in lost})
    shown = [fault for fault in faults if shows(job, fault)]
    return Case(folder, {planted(job, f) for f in shown}, {planted(job, f)[1]: struck(job, f) for f in shown})


def shows(job: Simulation, fault: Fault) -> bool:
    """Return whether a fault happened and the dumps show it: they do not if its operation has left the ring buffer, or
    if a stuck host has launches that its device has not completed.
    """
    state = job.ranks[fault.rank]
    hidden = fault.kind == "host_stuck" and len(state.done_ns) < len(state.issued)
    since = sum(1 if len(launch.ops) == 1 else len(launch.ops) + 1 for launch, *_ in state.issued[fault.place :])
    hidden |= since > job.style.ring
    return (fault.rank, fault.place) in job.reached and not hidden


def planted(job: Simulation, fault: Fault) -> tuple[str, tuple[int, ...]]:
    ranks: tuple[int, ...] = (fault.rank,)
    if fault.kind == "gpu_hang":
        ranks = job.groups[fault.rank][job.ranks[fault.rank].issued[fault.place][0].kind][2]
    return CLASS.get(fault.kind, fault.kind), ranks


def struck(job: Simulation, fault: Fault) -> str:
    return job.groups[fault.rank][program(job.mesh, fault.rank, job.style)[fault.place].kind][0]


@dataclass(frozen=True)
class Answer:
    """The analyzer's answer: causes, the group of each, and the verdict's sentence."""

    found: Truth
    groups: dict[tuple[int, ...], str | None]
    sentence: str


def answer(folder: Path) -> Answer:
    report = analyze(run.discover(folder), store.Options(cache=False))
    known = [c for c in report.data.culprits if c.kind != "unknown"]
    return Answer(
        {(c.kind, tuple(c.ranks)) for c in known}, {tuple(c.ranks): c.group for c in known}, report.verdict.sentence
    )


def official(case: Case, limit_s: float = 120.0) -> bool:
    """Return whether a report of torchfrtrace names exactly the culprits; for a healthy job, whether none names any."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(case.folder), "-p", "rank_"]
    try:
        said = subprocess.run(
            [*command, "--allow-incomplete-ranks"], capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    text = said.stdout + said.stderr
    named = [set(map(int, re.findall(r"\d+", found))) for found in re.findall(r"missing ranks: \{([\d, ]*)\}", text)]
    named += [set(map(int, re.findall(r"Culprit rank (\d+)", line))) for line in re.findall(r"error msg: (.*)", text)]
    if not case.truth:
        return said.returncode == 0 and not named and "cannot decide" not in text
    return case.ranks in named


def score(asked: argparse.Namespace) -> bool:
    """Print a table of exact answers by scenario; return whether the target is reached."""
    right: dict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for scenario in asked.only or SCENARIOS:
        for case in cases(scenario, asked):
            total[scenario] += 1
            for tool, hit in hits(case, asked).items():
                right[tool][scenario] += hit
        exact = (f"{tool} {count[scenario]:4}" for tool, count in right.items())
        print(f"{scenario:18}", *exact, f"of {total[scenario]}", flush=True)
    for tool, count in right.items():
        print(f"{tool}: {count.total()} of {total.total()}, {count.total() / total.total():.1%}")
    return right["ours"].total() >= 0.99 * total.total()


def hits(case: Case, asked: argparse.Namespace) -> dict[str, bool]:
    """Return, for each tool, whether its answer is exact, and whether the culprit's group is right."""
    said = answer(case.folder)
    found = {"ours": said.found == case.truth, "its group": said.groups.items() >= case.groups.items()}
    if asked.verbose and not all(found.values()):
        print(f"  {case.folder.name}: planted {sorted(case.truth)} in {case.groups}\n     answered {said.groups}")
        print(f"     {said.sentence[:300]}")
    return found | ({"torchfrtrace": official(case)} if asked.official else {})


def cases(scenario: str, asked: argparse.Namespace) -> "itertools.islice[Case]":
    meshes = (Mesh(8, asked.ranks // 64, 8),) if asked.ranks else MESHES
    size = {"layers": asked.layers, "steps": asked.steps}

    def endless():
        for seed in itertools.count(asked.first * 1000):
            with tempfile.TemporaryDirectory() as home:
                if case := make(scenario, seed, Path(home) / f"{scenario}_{seed}", meshes, size):
                    yield case

    return itertools.islice(endless(), asked.seeds)


def zoo(asked: argparse.Namespace) -> bool:
    """Run real jobs with one fault each and print the named ranks; return whether all answers are exact."""
    import gloo_zoo

    gloo_zoo.warm_up()
    right: Counter[str] = Counter()
    jobs = [job for job in gloo_zoo.jobs() if not asked.only or job.fault in asked.only]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        for number, job in enumerate(jobs):
            folder = Path(home) / str(number)
            gloo_zoo.run(job, folder)
            said = answer(folder)
            exact = {"ours": job.explains(said.found)}
            if asked.official:
                exact["torchfrtrace"] = official(Case(folder / "dumps", job.truth))
            right.update(tool for tool, hit in exact.items() if hit)
            print(
                f"{job.fault:12} {job.kind:8} {job.world} ranks",
                exact,
                "" if exact["ours"] else said.sentence,
                flush=True,
            )
    for tool in exact:
        print(f"{tool}: {right[tool]} of {len(jobs)}")
    return right["ours"] == len(jobs)


def states(asked: argparse.Namespace) -> bool:
    """Print what the collector gets of a rank in each state, as Markdown; return whether each state is recognised."""
    import gloo_zoo

    gloo_zoo.warm_up()
    right = []
    print("| a rank is in | first look | second look | a rank that waits for it | after | verdict |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        for fault in asked.only or gloo_zoo.STATES:
            job = gloo_zoo.Job(4, fault, "default", 2)
            gloo_zoo.run(job, Path(home) / fault)
            told = msgspec.json.decode((Path(home) / fault / "dumps/collection.json").read_bytes())
            said = answer(Path(home) / fault)
            right.append(said.found == job.truth)
            row = (gloo_zoo.STATES[fault], *looks_at(told, "2"), said.sentence)
            print(f"| {' | '.join(row)} |", flush=True)
    return all(right)


def looks_at(told: dict[str, Any], rank: str) -> tuple[str, str, str, str]:
    """Return the results of both rounds for a rank and for rank 0, and the time of the last answer."""
    looks = [look["ranks"] for look in told["rounds"]]
    answers = [one["answered_ns"] for look in looks for one in look.values() if one["answered_ns"]]
    first, second, *_ = [*(channels(look[rank]) for look in looks), "none"]
    return first, second, channels(looks[0]["0"]), f"{(max(answers) - told['asked_ns']) / 1e9:.1f} s"


def channels(rank: dict[str, Any]) -> str:
    """Return what was received from a rank, such as `pickle, stacks by http`."""
    stacks = f", stacks by {rank['stacks']}" if rank["stacks"] else ", no stacks"
    return (rank["channel"] or f"no dump: {rank['status']}") + stacks


def big_set(folder: Path, ranks: int, entries: int) -> None:
    """Write dumps with full ring buffers; rank 643 never joins an operation of its dp group in the last step."""
    mesh, style = Mesh(8, ranks // 16, 2), Style(layers=4, steps=2)
    launches = program(mesh, 0, style)
    place = next(i for i in places(launches, style.steps, ("dp",)) if i > len(launches) // 2)
    job = Simulation(mesh, style, [Fault("host_stuck", 643 % ranks, place)], 1)
    job.run()
    folder.mkdir(parents=True)
    now = max(state.issued[-1][3] for state in job.ranks) + TIMEOUT_NS
    for rank in range(mesh.size):
        content = with_past(dump(job, rank, now), len(launches) // 2, entries)
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    scoring = what.add_parser("score")
    scoring.add_argument("--seeds", type=int, default=10)
    scoring.add_argument("--first", type=int, default=0)
    scoring.add_argument("--ranks", type=int, help="of every set, a multiple of 64; by default 64 to 256")
    scoring.add_argument("--layers", type=int, default=DEFAULT_SIZE["layers"])
    scoring.add_argument("--steps", type=int, default=DEFAULT_SIZE["steps"], help="at least 2")
    scoring.add_argument("--only", nargs="*", choices=SCENARIOS)
    scoring.add_argument("--verbose", action="store_true")
    scoring.set_defaults(ask=score)
    real = what.add_parser("zoo")
    real.add_argument("--only", nargs="*")
    real.set_defaults(ask=zoo)
    every = what.add_parser("states")
    every.add_argument("--only", nargs="*")
    every.set_defaults(ask=states)
    for one in (scoring, real):
        one.add_argument("--official", action="store_true", help="torchfrtrace too")
    asked = parser.parse_args()
    sys.exit(not asked.ask(asked))


if __name__ == "__main__":
    main()
