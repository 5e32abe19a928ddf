"""Cut texts that are too long for the screen."""

from workbench.present.run_names import CUT


def fitted(label: str, width: int) -> str:
    """Return a label cut to at most `width` characters; a sign at the end of a cut label shows that text is missing."""
    return label if len(label) <= width else label[: width - 1] + CUT
