"""Functions that profilers do not see."""

import sys

import pytest

from workbench.recorders.memory.tensor_hooks import untraced


def helper(value: int) -> int:
    return len("x" * value)


def noted(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return helper(value)


def called(value: int) -> list[str]:
    """Return the functions whose calls and returns a profile function sees around an untraced call."""
    seen: list[str] = []
    function = untraced(noted)
    sys.setprofile(lambda frame, event, _: seen.append(f"{event} {frame.f_code.co_name}"))
    try:
        function(value)
        helper(1)
    except ValueError:
        helper(1)
    finally:
        sys.setprofile(None)
    return [event for event in seen if not event.startswith("c_")]


@pytest.mark.parametrize("value", [3, -1])
def test_only_the_call_itself_is_traced_and_what_follows_it(value: int) -> None:
    assert called(value) == ["call run", "return run", "call helper", "return helper"]


def test_the_result_is_that_of_the_function() -> None:
    assert untraced(noted)(3) == 3
    assert untraced(noted).__name__ == "noted"
    sys.setprofile(lambda *_: None)
    try:
        assert untraced(noted)(3) == 3
    finally:
        sys.setprofile(None)
