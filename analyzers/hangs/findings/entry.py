"""Define an entry on hangs: one way in which ranks stop a job, with all that is said of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.findings.wording import at_step, choose_pronoun, in_function, is_message, name_operation
from analyzers.hangs.model import HangClass, Reason
from analyzers.report import Severity
from analyzers.words import agree, rank_names

Text = str | Callable[[Cause], str]
"""A text of an entry, or a function that writes it.

In a text, these names are filled in: `{ranks}` and `{step}` (` at step 6`), `{place}` (` in load (data.py:3)`),
`{operation}` (the one in which the victims wait), `{whom}` (who must join it), and words that agree with the number of
the ranks: `{they}`, `{them}`, `{their}`, `{are}`, `{have}`, `{wait}`, `{do}`.
"""


@dataclass(frozen=True, kw_only=True)
class HangFailure:
    """One way in which ranks stop a job, with all that is known of it.

    It shows in a cause of class `kind` (None: any) with one of the `reasons` (empty: any), if `when` holds. `what` says
    in a sentence what it is. `title` is what the culprits did, `why` how that stops the others, and `next` what to try.

    `shown_by` is the evidence that tells the culprits from other ranks: a text, or {reason: text}. `in_title` says that
    the title has told it, always or for some reasons. `named` begins it with whom it names. Where the `if` or loop is
    known at which ranks diverged, advice about it replaces `next`, unless `keeps_next`.
    """

    id: str
    kind: HangClass | None
    what: str
    title: Text
    why: Text
    next: Text
    reasons: tuple[Reason, ...] = ()
    when: Callable[[Cause], bool] | None = None
    shown_by: Text | Mapping[Reason, Text] = field(default="")
    in_title: bool | tuple[Reason, ...] = False
    named: bool = False
    keeps_next: bool = False
    severity: Severity = Severity.ERROR
    check: str = ""
    rules_out: str = ""
    knowledge: str = ""

    def fits(self, cause: Cause) -> bool:
        if self.kind not in (None, cause.kind) or (self.reasons and cause.reason not in self.reasons):
            return False
        return self.when is None or self.when(cause)

    def tells(self, cause: Cause) -> bool:
        """Return whether the title has told the evidence."""
        return self.in_title if isinstance(self.in_title, bool) else cause.reason in self.in_title

    def evidence(self, cause: Cause) -> str:
        """Return the evidence that tells the culprits from other ranks, as a phrase; empty if it needs no words."""
        shown = self.shown_by
        return write(shown.get(cause.reason, "") if isinstance(shown, Mapping) else shown, cause)


def write(text: Text, cause: Cause) -> str:
    """Return a text of an entry for a cause, with the names in it filled in."""
    if not isinstance(text, str):
        return text(cause)
    if "{" not in text:
        return text
    ranks = cause.ranks
    return text.format(
        ranks=rank_names(ranks),
        step=at_step(cause),
        place=in_function(cause),
        operation=name_operation(cause.culprit),
        whom="the matching send or recv" if is_message(cause.culprit) else "every member",
        they=choose_pronoun(ranks),
        them=agree(ranks, "it", "them"),
        their=agree(ranks, "its", "their"),
        are=agree(ranks, "is", "are"),
        have=agree(ranks, "has", "have"),
        wait=agree(ranks, "waits", "wait"),
        do=agree(ranks, "does", "do"),
    )
