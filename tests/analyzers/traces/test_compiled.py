"""Real recordings of torch.compile: the number and the lines of graph breaks, and the compiled functions."""

import json
import subprocess
import sys

import pytest

from analyzers import traces

JOB = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile

told = {"compiled": 0, "called": 0}

def counting(graph, _):
    told["compiled"] += 1
    def called(*args):
        told["called"] += 1
        return graph(*args)
    return called

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, x):
        x = self.a(x).relu()
        torch._dynamo.graph_break()  # BREAK
        return self.b(x)

block = torch.compile(Block(), backend=counting)
block(torch.randn(4, 8))

def record(name, stacks, sizes):
    told.update(compiled=0, called=0)
    with profile(activities=[ProfilerActivity.CPU], with_stack=stacks) as recorder:
        for size in sizes:
            block(torch.randn(size, 8)).sum().backward()
    recorder.export_chrome_trace(sys.argv[1] + name)
    return dict(told)

print(json.dumps([record("/stacks.json", True, [4] * 5), record("/compiling.json", False, [4, 5, 5])]))
"""
LINE = next(number for number, text in enumerate(JOB.splitlines(), 1) if "BREAK" in text)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Fixture: the folder of both recordings, and how often the backend compiled and ran graphs in each."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "job.py", "."], capture_output=True, text=True, check=True, cwd=folder
    )
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_breaks_are_counted_and_placed(job, maker):
    folder, (told, _) = job
    [account] = maker.accounts((folder / "stacks.json").read_bytes())
    found = account.compiled
    assert (told["compiled"], found.compilations) == (0, 0)
    assert found.calls == found.lookups == told["called"] == 2 * found.breaks == 10
    behind, first = sorted(found.frames, key=lambda one: -one.breaks)
    assert (behind.breaks, behind.broken_at) == (5, f"job.py:{LINE}")
    assert (first.breaks, first.function.split(": ")[1]) == (0, "forward")
    assert 0 < found.between_ns == behind.between_ns < account.span_ns


def test_what_is_compiled_meanwhile_is_told_by_frame(job, maker):
    folder, (_, told) = job
    [account] = maker.accounts((folder / "compiling.json").read_bytes())
    found = account.compiled
    assert found.compilations == told["compiled"] == sum(one.compilations for one in found.frames) == 2
    assert sum(one.compile_ns for one in found.frames) == found.compile_ns < account.span_ns
    assert [one.versions for one in found.frames] == [2, 2]
    assert found.between_ns < found.compile_ns


@pytest.mark.parametrize(("between", "severity"), [(500_000, "warning"), (5_000, "info")])
def test_breaks_are_a_finding_where_they_cost_much(maker, between, severity):
    made = maker.Tracing(backend="gloo")
    made.step(1, 0, 10_000_000)
    made.event("Torch-Compiled Region: 0/0", "cpu_op", 1_000, 4_000_000)
    made.event("CompiledFunction", "cpu_op", 2_000, 1_000_000)
    made.event("aten::item", "cpu_op", 1_002_000, between // 2)
    made.event("Torch-Compiled Region: 1/0", "cpu_op", 1_002_000 + between, 1_000_000)
    made.event("aten::mm", "cpu_op", 5_000_000, 1_000_000)
    [artefact] = [maker.save(made.text())]
    report = traces.analyze([artefact])
    [found] = [finding for finding in report.findings if finding.id == "trace.graph_breaks"]
    assert found.severity == severity
    assert report.data.ranks[0].compiled.between_ns == between
