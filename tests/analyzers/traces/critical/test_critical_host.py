"""The critical path of a host that computes itself, compared with a small simulation that records each cause of
waiting.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from analyzers import traces
from analyzers.run import Kind, discover
from analyzers.traces import views
from analyzers.traces.critical_path import critical_path, path_sums

RECORDED = Path(__file__).parents[3] / "fixtures" / "traces"
US = 1_000
MAIN, AUTOGRAD, GLOO = 4000, 4001, 4002
WAITED = 50 * US
"""A shorter stall counts as the thread's own time, because nothing recorded distinguishes it from Python code."""


class Simulated:
    """A main thread, a backward thread, and a thread for collectives in order; `chain` records what each waited for."""

    def __init__(self, made, factors):
        self.made, self.factors, self.now, self.free = made, factors, 0, 0
        self.chain = [(None, 0, 0, None)]
        self.at = 0
        self.ended = {}

    def ran(self, name, start, end, before):
        """Record an interval and the interval that it waited for; return its index, to which later ones refer."""
        self.chain.append((name, start, end, before))
        return len(self.chain) - 1

    def op(self, name, ns, tid=MAIN):
        ns = round(ns * self.factors.get(name, 1))
        self.made.event("aten::outer", "cpu_op", self.now, ns + 3 * US, tid=tid)
        self.made.event(name, "cpu_op", self.now + US, ns, tid=tid)
        for own, length in (("aten::outer", US), (name, ns), ("aten::outer", 2 * US)):
            self.at = self.ran(own, self.now, self.now + length, self.at)
            self.now += length

    def python(self, ns):
        self.now += ns

    def issue(self, key, ns):
        self.made.event("c10d::allreduce_", "cpu_op", self.now, 20 * US, tid=MAIN)
        self.now += 20 * US
        begun, queues = max(self.now, self.free), self.free > self.now
        self.made.event(f"gloo:{key}", "user_annotation", begun, ns, tid=GLOO)
        self.free = begun + ns
        before = self.ended["last"] if queues else self.at
        self.ended[key] = self.ended["last"] = self.ran(f"gloo:{key}", begun, self.free, before)

    def wait(self, key):
        self.now += 2 * US
        self.resume(self.chain[self.ended[key]][2], self.ended[key])

    def resume(self, end, note):
        """Continue the main thread 5 us after another interval has ended."""
        if end - self.chain[self.at][2] > WAITED:
            self.at = note
        self.now = max(self.now, end + 5 * US)

    def backward(self, ops):
        before, began = self.at, self.now
        for name, ns in ops:
            self.op(name, ns, tid=AUTOGRAD)
            self.python(3 * US)
        self.now -= 3 * US
        after, self.at = self.at, before
        assert self.now - began > WAITED
        self.resume(self.now, after)

    def path(self):
        """Return {name: ns on the critical path}."""
        found, note = Counter(), self.at
        while note:
            name, start, end, note = self.chain[note]
            found[name] += end - start
        return found


def program(seed):
    """Return random parts of a program; each wait is for work that was issued before it."""
    dice, parts, pending = random.Random(seed), [("op", "aten::add", 5 * US)], []
    for number in range(40):
        kind = dice.choice(["op", "op", "python", "issue", "wait", "backward"])
        if kind == "op":
            parts.append(("op", f"aten::op{dice.randrange(3)}", dice.randrange(10, 200) * US))
        elif kind == "python":
            parts += [("python", dice.randrange(1, 20) * US), ("op", "aten::add", 5 * US)]
        elif kind == "issue":
            pending.append(f"all_reduce_{number}")
            parts.append(("issue", pending[-1], dice.randrange(100, 900) * US))
        elif kind == "wait" and pending:
            parts.append(("wait", pending.pop(0)))
        elif kind == "backward":
            ops = [(f"aten::op{dice.randrange(3)}", dice.randrange(30, 90) * US) for _ in range(4)]
            parts.append(("backward", ops))
        parts.append(("op", "aten::add", 5 * US))
    return [*parts, *(("wait", key) for key in pending), ("op", "aten::add", 5 * US)]


def simulate(made, parts, factors=None):
    job = Simulated(made, factors or {})
    for what, *told in parts:
        getattr(job, what)(*told)
    return job


def saved_by_half(path, name):
    """How much shorter the path says that the step is if the pieces of this name take half their time."""
    return sum(part.saved_ns for part in path_sums(path, None, None, None) if part.name == name)


@pytest.mark.parametrize("seed", range(25))
def test_the_path_is_the_chain_of_what_held_up_what(maker, seed):
    made = maker.Tracing(backend="gloo")
    job = simulate(made, program(seed))
    path = critical_path(maker.opened(made.text()))
    named = path[path["kind"].isin(["compute", "communication"])]
    assert named.groupby("name")["dur_ns"].sum().to_dict() == job.path()
    assert path["dur_ns"].sum() == job.now
    assert (path["start_ns"].iloc[1:].to_numpy() == (path["start_ns"] + path["dur_ns"]).iloc[:-1].to_numpy()).all()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_faster_operator_saves_is_no_more_than_promised(maker, seed):
    made, parts = maker.Tracing(backend="gloo"), program(seed)
    whole = simulate(made, parts).now
    path = critical_path(maker.opened(made.text()))
    saved = whole - simulate(maker.Tracing(), parts, {"aten::op1": 0.5}).now
    promised = saved_by_half(path, "aten::op1")
    assert 0 < saved <= promised + 8 * WAITED
    alone = [part for part in parts if part[0] == "op"]
    made = maker.Tracing(backend="gloo")
    whole = simulate(made, alone).now
    path = critical_path(maker.opened(made.text()))
    assert saved_by_half(path, "aten::op1") == whole - simulate(maker.Tracing(), alone, {"aten::op1": 0.5}).now


def test_collecting_garbage_is_no_waiting(maker):
    """A collective ends while the host collects garbage; the host would have continued at the same time without it."""
    made = maker.Tracing(backend="gloo")
    made.event("aten::mm", "cpu_op", 0, 100 * US)
    made.event("c10d::allreduce_", "cpu_op", 100 * US, 20 * US)
    made.event("gloo:all_reduce", "user_annotation", 110 * US, 400 * US, tid=GLOO)
    made.event("gc", "user_annotation", 120 * US, 900 * US)
    made.event("aten::mm", "cpu_op", 1_020 * US, 100 * US)
    path = critical_path(maker.opened(made.text()))
    assert path.groupby("name")["dur_ns"].sum().to_dict() == {
        "aten::mm": 200 * US, "c10d::allreduce_": 20 * US, "gc": 900 * US
    }  # fmt: skip


def test_the_path_of_a_recorded_step_holds_no_more_than_there_is():
    """Most of a step of four ranks on two cores is communication; no part is longer than all work of its kind."""
    artefact = next(a for a in discover(RECORDED / "healthy_4ranks").of(Kind.TRACE) if a.rank == 0)
    [step] = traces.analyze([artefact]).data.ranks[0].step_times
    path = views.critical_path(artefact, step=step.step)
    spent = path.groupby("kind")["dur_ns"].sum()
    assert spent.sum() == step.dur_ns
    assert 0.5 * step.dur_ns < spent["communication"] <= step.communication_ns
    assert 0.5 * step.compute_ns < spent["compute"] <= step.compute_ns
    assert set(path.loc[path["kind"] == "communication", "name"]) == {"gloo:all_gather", "gloo:all_reduce"}
    assert path["dur_ns"].max() < 0.2 * step.dur_ns
