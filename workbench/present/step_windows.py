"""Name in words the windows of an estimate: the parts of a training step that have separate memory peaks."""

NAMES = {
    "fwd": "the forward pass before the first layer",
    "fwd head": "the forward pass of the output layer and the loss",
    "bwd": "the backward pass of the loss and the output layer",
    "grad_clip": "gradient clipping",
    "optim": "the optimizer step",
    "eval": "the validation",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
}
_PASSES = {"fwd": "the forward pass", "bwd": "the backward pass"}
_LAYERS = {
    "+0": "the first layer",
    "+1": "the second layer",
    "middle": "a layer between",
    "-2": "the last layer but one",
    "-1": "the last layer",
}
"""{name of a layer in the names of windows: words for it}; only these layers of a model have windows of their own."""


def window_words(window: str) -> str:
    """Return a window of the step as a phrase: `the backward pass of the last layer` for `bwd -1`.

    In a pipeline, `bwd -1 #0.2` is the window of the second pass through the rank's model part 0. An unknown name is
    returned unchanged.
    """
    name, _, turn = window.partition(" #")
    kind, _, layer = name.partition(" ")
    words = NAMES.get(name) or (
        f"{_PASSES[kind]} of {_LAYERS[layer]}" if kind in _PASSES and layer in _LAYERS else name
    )
    part, _, count = turn.partition(".")
    return f"{words}, pass {count} of model part {part}" if count else words
