"""Collect the entries on hangs, and write what they say of a cause."""

from analyzers.hangs.classify.blocks import BlockKind, Parting
from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.findings import ended, messages, operations, own_code
from analyzers.hangs.findings.entry import HangFailure, write
from analyzers.hangs.findings.wording import format_block, format_line, list_issued
from analyzers.hangs.model import HangClass, Reason, user_frame
from analyzers.words import agree, capitalised, rank_names

CATALOGUE: tuple[HangFailure, ...] = (*ended.ENTRIES, *messages.ENTRIES, *operations.ENTRIES, *own_code.ENTRIES)
"""All entries; where two fit the same cause, the one that comes first is the more specific."""


def entry_of(cause: Cause) -> HangFailure:
    return next(entry for entry in CATALOGUE if entry.fits(cause))


def title(cause: Cause) -> str:
    """Return the title of a finding: what the culprit ranks did, where, and which operation they did not join.

    For example `rank 3 is stuck at step 6 in tokenize (data/text.py:41) and never joined all_reduce #412 of dp`.
    """
    return write(entry_of(cause).title, cause)


def with_victims(cause: Cause) -> str:
    """Return the title of a cause, followed by the ranks that wait for the culprit: `...; ranks 0-2 wait for it`."""
    waiting = cause.victims
    if not waiting:
        return title(cause)
    whom = agree(cause.ranks, "it", "them")
    return f"{title(cause)}; {rank_names(waiting)} {agree(waiting, 'waits', 'wait')} for {whom}"


def why(cause: Cause) -> str:
    """Return why the culprit stops the other ranks, with the evidence that is not in the finding's title."""
    entry = entry_of(cause)
    parts = [write(entry.why, cause)]
    if cause.parting:
        parts.append(capitalised(_divergence(cause.parting)))
    if not entry.tells(cause) and (evidence := entry.evidence(cause)):
        # Of a tie nobody is named.
        named = entry.named and cause.reason is not Reason.TIE
        whom = f"{rank_names(cause.ranks)} {agree(cause.ranks, 'is', 'are')} named as the cause because {evidence}"
        parts.append(capitalised(whom if named else evidence))
    return ". ".join(parts)


def detail(cause: Cause) -> str:
    """Return the text of the field `data.culprits[].detail`: why these ranks are the culprits.

    For a mismatch the text begins with the operations that the ranks issued.
    """
    evidence = entry_of(cause).evidence(cause)
    if cause.kind is HangClass.MISMATCH and cause.sides and cause.reason is not Reason.DIFFERENT_HALVES:
        return f"{list_issued(cause.sides)}; {evidence}"
    return evidence


def next_step(cause: Cause) -> str:
    """Return the next thing to try, as an imperative sentence without a full stop."""
    entry = entry_of(cause)
    if cause.parting and not entry.keeps_next:
        return _for_parting(cause, cause.parting)
    return write(entry.next, cause)


# The `if` or loop at which ranks diverged.


def _divergence(parting: Parting) -> str:
    """Return which ranks are in the `if` or loop at which ranks diverged, and which are not, as a clause."""
    inside, outside = parting.inside, parting.outside
    there = f"{rank_names(inside)} {agree(inside, 'is', 'are')} in {format_block(parting.block)}"
    return f"{there}, {rank_names(outside)} {agree(outside, 'is', 'are')} not"


_CURES = {
    BlockKind.HANDLER: "let all ranks do the same after an error: {block} goes on where the other ranks had none",
    BlockKind.BRANCH: "let {block} decide alike on every rank, for example by an all_reduce of its condition, or move"
    " the collective out of it",
    BlockKind.NAMES: "let {block} go through the same names in the same order on every rank",
    BlockKind.BATCHES: "give every rank as many rounds of {block}: drop_last=True and a DistributedSampler for the"
    " data, or `with Join([model]):` around the loop",
    BlockKind.COUNTED: "find the `if`, `continue` or `break` in {block} by which {ranks} left its collective out",
    BlockKind.LOOP: "let {block} run equally often on every rank",
}
"""{kind of the block of source at which ranks diverged: what to do}."""


def _for_parting(cause: Cause, parting: Parting) -> str:
    """Return what to do about the `if` or loop at which the culprits diverged from the other ranks."""
    block = format_block(parting.block)
    if parting.block.kind is not BlockKind.RANK:
        return _CURES[parting.block.kind].format(block=block, ranks=rank_names(cause.ranks))
    side = cause.issued if cause.issued and parting.inside == cause.issued.ranks else cause.expected
    line = format_line(side.line if side else user_frame(cause.culprit.frames))
    what = f"the collective at {line}" if line else "the collective"
    return f"move {what} out of {block}: every rank of the group must call it"
