"""What a particular change of the code avoids where a request failed, on snapshots of a simulated caching allocator."""

import pytest

from analyzers.memory import analyze
from analyzers.memory.model import AvoidableKind
from benchmarks.advice.on_device import cases
from benchmarks.advice.on_device.__main__ import faults
from benchmarks.advice.on_device.allocator import GIB, MIB, Device, OutOfMemoryError
from benchmarks.advice.on_device.cases import CASES, Case
from benchmarks.advice.on_device.later_cases import LATER

SLOW = ("a cache of keys and values that grows", "a hook keeps outputs", "losses summed in an evaluation")
QUICK = [case for case in (*CASES, *LATER) if isinstance(case, Case) and case.name not in SLOW]


def report_on(maker, snapshot):
    return analyze([maker.save(snapshot)])


def uses_of(maker, snapshot):
    device = report_on(maker, snapshot).data.devices[0]
    return {use.kind: use for use in device.oom.avoidable or []}


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_the_first_advice_is_what_an_expert_would_say(maker, case):
    report = report_on(maker, case.build())
    findings = [{"title": f.title, "next": f.next, "why": f.why, "severity": f.severity} for f in report.findings]
    assert faults(case, report.verdict.status, findings) == []


def test_the_bytes_of_the_loss_are_the_logits_and_their_copies(maker):
    use = uses_of(maker, cases.logits_in_float32())[AvoidableKind.LOSS]
    # bfloat16 logits, their float32 copy, the log-probabilities and the request for their gradient.
    wide = 4 * 8192 * 128256 * 4
    assert use.bytes == pytest.approx(wide // 2 + 3 * wide, rel=0.001)


def test_the_bytes_of_buckets_are_those_of_the_parameters(maker):
    shape = cases.Shape(layers=19, weight=4, batch=1)
    assert uses_of(maker, cases.bucket_copies())[AvoidableKind.BUCKETS].bytes == shape.parameter_bytes


def test_buckets_of_which_gradients_are_views_are_not_counted_twice(maker):
    """With gradient_as_bucket_view=True no gradient has memory of its own."""
    recording = maker.Recording(segment_bytes=2 * GIB)
    module = maker.frame("_ddp_init_helper", "/x/torch/nn/parallel/distributed.py", 9)
    recording.alloc(900 * MIB, [maker.frame("c10d::Reducer::initialize_buckets()", "", 0), module])
    recording.oom(500 * MIB, 1 * MIB, [maker.frame("forward", "train.py", 3)])
    assert AvoidableKind.BUCKETS not in uses_of(maker, recording.snapshot())


def test_an_evaluation_that_keeps_a_graph_is_told_from_one_with_a_large_batch(maker):
    with_graph, without = uses_of(maker, cases.evaluation_with_graph()), uses_of(maker, cases.evaluation_batch())
    assert next(iter(with_graph)) is AvoidableKind.EVALUATION_GRAPH
    assert next(iter(without)) is AvoidableKind.EVALUATION
    assert "evaluate" in with_graph[AvoidableKind.EVALUATION_GRAPH].line


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("validation_step", AvoidableKind.EVALUATION),
        ("run_eval", AvoidableKind.EVALUATION),
        ("train_and_evaluate", None),
        ("retrieval", None),
        ("load_state_dict", None),
        ("save_model_state", AvoidableKind.CHECKPOINT),
        ("checkpointed_forward", None),
        ("update_ema", AvoidableKind.AVERAGE),
        ("schema", None),
    ],
)
def test_the_purpose_of_a_request_follows_from_the_names_of_functions(maker, function, kind):
    recording = maker.Recording()
    recording.alloc(100 * MIB, [maker.frame("main", "train.py", 3)])
    recording.oom(900 * MIB, 1 * MIB, [maker.frame(function, "train.py", 8), maker.frame("main", "train.py", 3)])
    assert set(uses_of(maker, recording.snapshot())) == ({kind} if kind else set())


def test_layers_of_one_forward_pass_are_no_leak(maker):
    """Each of 40 layers keeps its activations when the request fails: they recur, but are no steps."""
    trainer = cases.Trainer(Device(), cases.Shape(layers=40, batch=12))
    trainer.build()
    cases.until_out_of_memory(trainer.forward)
    report = report_on(maker, cases.write(trainer))
    assert "memory.leak" not in {finding.id for finding in report.findings}
    assert "grow" not in report.findings[0].next


@pytest.mark.parametrize(("later", "caught"), [(3, True), (0, False)], ids=["went on", "ended"])
def test_a_program_that_goes_on_after_a_failed_request_has_caught_the_error(maker, later, caught):
    trainer = cases.Trainer(Device(total=24 * GIB), cases.Shape(layers=8))
    trainer.build()
    cases.steps(trainer, 1)
    with pytest.raises(OutOfMemoryError):
        trainer.new(30 * GIB, "empty", ("try_batch", "/home/ana/llm/train.py", 20))
    cases.steps(trainer, later)
    report = report_on(maker, cases.write(trainer))
    assert ("memory.oom.caught" in {f.id for f in report.findings}) is caught
    assert (report.data.devices[0].oom is None) is caught
    assert (report.verdict.kind == "oom") is not caught


def test_a_few_per_cent_in_pieces_do_not_explain_a_failure_in_a_first_step(maker):
    recording = maker.Recording(segment_bytes=1000 * MIB)
    held = [recording.alloc(10 * MIB, [maker.frame("main", "train.py", 3)]) for _ in range(100)]
    for address in (held[20], held[50], held[80]):
        recording.free(address)
    recording.oom(25 * MIB, 1 * MIB, [maker.frame("main", "train.py", 4)])
    report = report_on(maker, recording.snapshot())
    assert "memory.fragmentation" not in {finding.id for finding in report.findings}
    assert "expandable_segments" not in report.findings[0].next


def test_a_threshold_with_a_limit_has_an_effect(maker):
    settings = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9"
    found = report_on(maker, cases.pinned_gaps(Device(), configuration=settings)).findings
    assert "memory.idle_threshold" not in {finding.id for finding in found}


def test_a_second_device_is_named(maker):
    [oom] = [f for f in report_on(maker, cases.second_device()).findings if f.id == "memory.oom"]
    assert oom.title.startswith("Out of device memory (GPU 1)")


@pytest.mark.parametrize(("kept_for", "found"), [(6, True), (2, False)], ids=["six steps", "two steps"])
def test_what_is_freed_steps_later_and_together_may_be_a_reference_cycle(maker, kept_for, found):
    trainer = cases.Trainer(Device(), cases.Shape(layers=6, batch=2))
    trainer.build()
    line = ("wrap_outputs", "/home/ana/llm/outputs.py", 33)
    kept = []
    for number in range(1, 19):
        trainer.step(after_forward=lambda: kept.append(trainer.new(1 * GIB, "clone", line, *trainer.above)))
        if number % kept_for == 0:
            trainer.free_all(kept)
            kept.clear()
    late = [f for f in report_on(maker, cases.write(trainer)).findings if f.id == "memory.late_frees"]
    assert bool(late) is found
    # Five of six blocks outlive their step.
    assert all(f.title.startswith("Up to 5.0 GiB stays allocated for several steps in wrap_outputs") for f in late)


def test_a_queue_frees_one_step_at_a_time(maker):
    trainer = cases.Trainer(Device(), cases.Shape(layers=6, batch=2))
    trainer.build()
    kept = []
    for _ in range(18):
        trainer.step(after_forward=lambda: kept.append(trainer.new(1 * GIB, "clone", *trainer.above)))
        if len(kept) > 4:
            trainer.device.free(kept.pop(0))
    assert "memory.late_frees" not in {f.id for f in report_on(maker, cases.write(trainer)).findings}
