"""The trainer's memory table has the same rows and bytes as the analyzers' table of the same snapshot."""

import json
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest

from analyzers.memory.breakdown import breakdowns
from analyzers.run import Kind, discover
from workbench.recorders.memory.breakdown_table import find_peaks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def printed(run_once):
    """Fixture: a run of two ranks that print their memory table, and write a snapshot after the last step."""
    return run_once("breakdown", 2, "--debug.memory_breakdown", "--profiling.profile_freq", "6")


def test_one_rank_prints_it(printed):
    assert printed.output.count("Memory by category at the peak") == 1
    rows = re.findall(r"^  (\w+) +([\d.]+) MiB  \S", printed.output, re.MULTILINE)
    assert {"activations", "optimizer_state", "parameters"} <= {name for name, _ in rows}
    assert "untracked" in printed.output


def test_both_tables_agree(printed):
    artefact = next(a for a in discover(printed.folder).of(Kind.SNAPSHOT) if a.rank == 0)
    [theirs] = breakdowns([artefact])
    peak, highest = find_peaks(pickle.loads(Path(artefact.path).read_bytes()))
    ours = Counter()
    for category, _, size in peak:
        ours[category] += size
    assert dict(ours) == {holder.name: holder.bytes for holder in theirs.categories}
    assert {mark.name: mark.bytes for mark in theirs.high_water} == {
        name: highest[name] for name in ("temporary", "communication") if highest[name]
    }


def test_the_model_and_its_layers_are_told(printed):
    artefact = next(a for a in discover(printed.folder).of(Kind.SNAPSHOT) if a.rank == 0)
    [one] = breakdowns([artefact])
    job = one.activations.job
    model = json.loads((printed.folder / "run.json").read_text())["model"]
    assert (job.dim, job.layers, job.hidden_dim) == (model["dim"], model["n_layers"], model["hidden_dim"])
    assert len(one.activations.layers) == job.layers
    for layer in one.activations.layers:
        assert layer.bytes == pytest.approx(one.activations.theoretical_bytes_per_layer, rel=0.1)
    assert one.overhead.of == "process"
    assert one.overhead.untracked_bytes > 0
