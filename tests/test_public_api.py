"""What users rely on is neither removed nor changed by accident: see docs/deprecation.md."""

import pytest
from finding_ids import FAMILIES, finding_ids, ids_in_code

from documents import kept
from public_api import additions, breaks, public_api, recorded

BEFORE = {
    "python a.call()": "-> int",
    "python a.call() path": "required, positional or keyword, 0: Path",
    "python a.Result.rank": "int",
    "workbench hang": "command",
    "workbench hang --format": "optional, choice",
    "workbench hang --format=json": "choice",
    "document hang: data.waits[].rank": "integer",
}


@pytest.fixture(scope="module")
def now():
    return public_api()


def test_nothing_is_removed_or_changed(now):
    """If it is intended and docs/deprecation.md allows it: `python tests/public_api.py --breaking`."""
    assert breaks(recorded(), now) == []


def test_additions_are_recorded(now):
    """`python tests/public_api.py` records them: from then on they are a promise."""
    assert additions(recorded(), now) == []


def test_the_ids_of_recorded_runs_are_known(now):
    ids = {finding["id"] for document in kept().values() for finding in document.get("findings", [])}
    assert len(ids) > 20
    assert {f"finding {name}" for name in ids} <= now.keys()


def test_it_is_known_which_ids_each_expression_in_the_code_can_produce():
    """An id that the code puts together, such as f"logs.{cause.kind}", has a line in `FAMILIES`."""
    assert ids_in_code()[1] == FAMILIES.keys()


def test_ids_of_all_rooms_and_kinds_are_listed():
    listed = finding_ids()
    assert {
        "memory.oom", "hang.host_stuck", "logs.startup.port_in_use", "logs.oom", "run.unreadable", "trace.unreadable",
        "steps.nonfinite_loss_recovered", "steps.data_time", "trace.straggler", "trace.python", "values.not_finite",
        "incident.crashed", "compare.step_time_undecided", "compare.memory.grew", "doctor.no_gpu", "tokens.shift",
    } <= listed  # fmt: skip
    assert "trace.imbalance" not in listed, "trace.straggler reports it"


@pytest.mark.parametrize("name", [name for name in BEFORE if name != "workbench hang"])
def test_what_is_removed_is_named(name):
    [sentence] = breaks(BEFORE, {key: form for key, form in BEFORE.items() if key != name})
    assert sentence.startswith(f"removed: {name} ")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("python a.call() path", "required, by name: Path"),
        ("python a.Result.rank", "str"),
        ("document hang: data.waits[].rank", "string"),
        ("workbench hang --format", "required, choice"),
    ],
)
def test_what_is_changed_is_named(name, form):
    assert breaks(BEFORE, {**BEFORE, name: form}) == [f"changed: {name}  ({BEFORE[name]} -> {form})"]


@pytest.mark.parametrize("name", ["python a.call() step", "workbench hang --group"])
def test_only_what_is_optional_can_be_added(name):
    assert breaks(BEFORE, {**BEFORE, name: "required, integer"}) == [f"now required: {name}"]
    assert breaks(BEFORE, {**BEFORE, name: "optional, integer"}) == []
    assert additions(BEFORE, {**BEFORE, name: "optional, integer"}) == [name]


def test_a_new_call_may_require_what_it_likes():
    new = {"python a.other()": "-> int", "python a.other() path": "required, by name: Path"}
    assert breaks(BEFORE, {**BEFORE, **new}) == []
