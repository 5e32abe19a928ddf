"""Choose the ranks with which a rank that ran out of memory is compared, and compare them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.memory.answers.training_loop import training_loop
from analyzers.memory.difference_model import RankDifference
from analyzers.memory.loading import open_snapshot
from analyzers.memory.model import Device, MissingEvidence, Oom
from analyzers.memory.ranks.across_ranks import latest
from analyzers.memory.ranks.call_sites import RankMemory
from analyzers.memory.ranks.difference import Comparison, difference_of, outside_difference
from analyzers.memory.replay.lifetimes import Replay
from analyzers.run import Artefact

_PEERS_AT_MOST = 8
"""With how many ranks a rank is compared: those with the highest peaks, as they excuse most."""
Open = Callable[[Device], Replay]
"""A function that returns the recording of a device."""


def with_differences(devices: Sequence[Device], artefacts: Sequence[Artefact], options: store.Options) -> list[Device]:
    """Return the devices; those that ran out of memory have the difference from the ranks that did not.

    `artefacts` are the snapshots of the devices. They have been read before, so nothing is counted as read again.
    """
    artefact_of = {str(artefact.path): artefact for artefact in artefacts}
    silent = replace(options, progress=None)

    def replay_of(device: Device) -> Replay:
        return Replay(open_snapshot(artefact_of[device.path], silent).device(device.device))

    peers = _peers_of(devices)
    return [_with_difference(device, peers, replay_of) if device.oom else device for device in devices]


def _peers_of(devices: Sequence[Device]) -> list[Device]:
    """Return the last recordings of the ranks that did not run out of memory, the fullest first."""
    failed = {device.rank for device in devices if device.oom}
    last = latest([device for device in devices if device.rank is not None and device.rank not in failed])
    recorded = [device for device in last if MissingEvidence.HISTORY not in device.missing and device.top_stacks]
    return sorted(recorded, key=lambda device: -device.peak_allocated_bytes)[:_PEERS_AT_MOST]


def _with_difference(device: Device, peers: Sequence[Device], replay_of: Open) -> Device:
    """Return a device that ran out of memory with its difference from `peers`, if there is one."""
    oom = device.oom
    if oom is None or device.rank is None or not peers:
        return device
    difference = outside_difference(device, oom, peers) or compared(device, oom, peers, replay_of)
    if difference is None:
        return device
    steps = [peer.step for peer in peers if peer.step is not None]
    ranks = sorted(peer.rank for peer in peers if peer.rank is not None)
    complete = msgspec.structs.replace(difference, ranks=ranks, until_step=min(steps, default=None))
    return msgspec.structs.replace(device, oom=msgspec.structs.replace(oom, difference=complete))


def compared(device: Device, oom: Oom, peers: Iterable[Device], replay_of: Open) -> RankDifference | None:
    """Return how the memory of a device that ran out of it differs from that of other ranks; None if it does not."""
    try:
        failed, others = replay_of(device), [RankMemory(replay_of(peer)) for peer in peers]
    except WorkbenchError:
        # A file has changed or gone since it was read: the report on it stands.
        return None
    ends = [step.end for step in training_loop(failed).steps if step.end and step.end <= oom.index]
    return difference_of(Comparison(RankMemory(failed), oom, others, max(ends, default=None)))
