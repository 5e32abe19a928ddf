"""The windows of an estimate read as phrases, also those of a pipeline; other names stay as they are."""

import pytest

from workbench.present.tables.estimate import window_words


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("fwd +0", "the forward pass of the first layer"),
        ("bwd", "the backward pass of the loss and the output layer"),
        ("bwd -2", "the backward pass of the last layer but one"),
        ("bwd -1 #0.2", "the backward pass of the last layer, pass 2 of model part 0"),
        ("optimizer", "the optimizer step"),
        ("bwd +7", "bwd +7"),
        ("set-up", "set-up"),
    ],
)
def test_a_window_is_a_phrase(window, words):
    assert window_words(window) == words
