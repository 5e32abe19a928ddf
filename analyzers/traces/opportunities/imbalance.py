"""Find how much time the job would save if one rank worked no longer than the others."""

from collections.abc import Iterator, Sequence

import msgspec

from analyzers.traces.across.rank_waits import RankWaits
from analyzers.traces.across.stragglers import Straggler
from analyzers.traces.model import NamedTime, Opportunity, OpportunityKind, RankTrace
from analyzers.traces.opportunities.account import SHARE_AT_LEAST


def imbalances(
    accounts: Sequence[RankTrace], stragglers: Sequence[Straggler]
) -> Iterator[tuple[RankTrace, Opportunity]]:
    """Yield (device or host, opportunity) for each straggler: the time saved if it worked no longer than the others.

    "Device or host" is the `RankTrace` of the straggler's first device or host. The names in the opportunity are the
    causes of its excess work.
    """
    # Of several devices of a rank the first one stands for it.
    account_of = {account.rank: account for account in reversed(accounts)}
    for late in stragglers:
        if late.saved_share >= SHARE_AT_LEAST and late.rank in account_of:
            steps = max(1, late.steps)
            # The excess is a sum over all collectives. Where the rank works less than the others elsewhere, this sum is
            # smaller than the excess that the simulation removes.
            taken = max(late.excess_ns, late.saved_ns)
            yield (
                account_of[late.rank],
                Opportunity(
                    kind=OpportunityKind.IMBALANCE,
                    count=late.late_steps,
                    taken_ns=taken // steps,
                    saved_ns=late.saved_ns // steps,
                    saved_share=late.saved_share,
                    names=[
                        NamedTime(name=cause, count=late.late_steps, total_ns=ns)
                        for cause, ns in sorted(late.causes_ns.items(), key=lambda part: part[0] != late.cause)
                    ][:3],
                ),
            )


def without_waiting(account: RankTrace, waits: Sequence[RankWaits]) -> RankTrace:
    """Return a copy of `account` whose opportunity to hide communication leaves out waiting for late ranks.

    `account` has the results of a device or host. Overlapping communication with computing would not save this waiting.
    `waits` has the waiting of each rank. If the opportunity becomes too small, it is left out.
    """
    waited = sum(row.wait_ns for row in waits if row.rank == account.rank)
    if not waited:
        return account
    left = [shortened(one, waited // max(1, account.steps)) for one in account.opportunities]
    listed = [one for one in left if one.saved_share >= SHARE_AT_LEAST]
    return msgspec.structs.replace(account, opportunities=listed)


def shortened(one: Opportunity, waited_ns: int) -> Opportunity:
    """Return an opportunity with `waited_ns` less to save per step if it is exposed communication, else unchanged.

    `waited_ns` is the time per step that the rank waits in collectives for other ranks. Overlapping communication with
    computing would not save this time.
    """
    if one.kind is not OpportunityKind.EXPOSED_COMMUNICATION or not one.saved_ns:
        return one
    saved = max(0, one.saved_ns - waited_ns)
    return msgspec.structs.replace(one, saved_ns=saved, saved_share=round(one.saved_share * saved / one.saved_ns, 4))
