"""Record the history of CPU allocations with one session of PyTorch's profiler per step.

A process can have only one active session. So if the same steps are traced, the traces must come from this session.
"""

import atexit
import gc
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from heapq import merge
from typing import NamedTuple

import torch
from torch import _C
from torch.profiler import profile, record_function

from workbench.recorders.memory.block_categories import Block, BlockCategories
from workbench.recorders.memory.live_tensors import LiveStorage, live_storages
from workbench.recorders.memory.profiler_events import Allocation, FrameTable, ProfilerSession, Span
from workbench.recorders.memory.snapshot import Details, Frame, Segment, SegmentBlock, Snapshot, TraceEntry, first_entry
from workbench.recorders.memory.tensor_hooks import UNKNOWN, Note, TensorHooks, unseen
from workbench.recorders.own_files import harmless, note
from workbench.recorders.quiet import profiler_messages_hidden, torch_warnings_hidden
from workbench.recorders.signals import raise_of_script
from workbench.recorders.timing.profiler_traces import TracePlan, activities, export

_SEGMENT_ALIGNMENT = 2 << 20


class Event(NamedTuple):
    """An allocation or a free of a block, with its call stack; `action` is an action of PyTorch's trace entries."""

    action: str
    time_us: int
    block: Block
    frames: list[Frame]


class LiveBlocks(BlockCategories):
    """The live blocks of CPU memory, and the allocations and frees of the last `keep` steps.

    Each step has one profiler session.
    """

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.lost_notes = 0
        self._sessions: deque[list[Event]] = deque(maxlen=keep)
        self._of_last_window: dict[int, Block] = {}
        self._unseen: dict[int, Block] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no session is stored, so that a history begins now."""
        return not self._sessions

    def add_older_tensors(self, tensors: Iterable[tuple[torch.Tensor, str, str]]) -> None:
        """Add blocks for tensors that existed before the recording began, given as (tensor, category, label)."""
        for tensor, category, label in tensors:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address and address not in self.live:
                self.live[address] = self._unseen[address] = Block(address, storage.nbytes(), [], category, label)

    def add_found(self, storages: Iterable[LiveStorage]) -> None:
        """Add blocks for storages that are alive when a history begins, such as those that unrecorded steps left.

        One at the address and with the size of a block that was alive when the last history ended is taken to be this
        block, so that its call stack and category remain known; of all others these are unknown.
        """
        for found in storages:
            if found.address not in self.live:
                known = self._of_last_window.get(found.address)
                if known is None or known.size != found.size:
                    known = Block(found.address, found.size, [], UNKNOWN, found.name)
                self.live[found.address] = self._unseen[found.address] = known
        self._of_last_window = {}

    def unseen(self) -> set[int]:
        """Return the addresses of the live blocks that were allocated while no session was running.

        The profiler does not report when they are freed.
        """
        self._unseen = {at: block for at, block in self._unseen.items() if self.live.get(at) is block}
        return set(self._unseen)

    def free_unseen(self, alive: Collection[int]) -> None:
        """Record a free for each of the `unseen` blocks whose address is not among those `alive`."""
        for address, block in list(self._unseen.items()):
            if address not in alive:
                del self._unseen[address], self.live[address]
                self._log("free_completed", self._last_event_us() * 1000, block, [])

    def forget(self) -> None:
        """Delete all blocks and all recorded allocations and frees."""
        if self._sessions:
            self._of_last_window = dict(self.live)
        self.live.clear()
        self._unseen.clear()
        self._sessions.clear()
        self.begin_session()

    def add_session(self, session: ProfilerSession, notes: list[Note]) -> None:
        """Add the allocations and frees of a profiler session, and the notes taken during it."""
        self._sessions.append([])
        self.begin_session()
        history: Iterator[Allocation | Note] = merge(session.allocations, notes, key=lambda event: event.time_ns)
        for event in history:
            if isinstance(event, Note):
                self.lost_notes += not self.apply(event)
            elif event.size > 0:
                self._allocate(event)
            else:
                self._free(event)
        self._evict_transfers()
        self._evict_overlapped()

    def events(self) -> Iterator[Event]:
        """Yield the allocations and frees of all stored sessions, in the order of time."""
        for session in self._sessions:
            yield from session

    def _allocate(self, event: Allocation) -> None:
        if unseen := self.live.pop(event.address, None):
            # A block still had this address, so its free was not recorded.
            self._log("free_completed", event.time_ns, unseen, [])
        block = self.allocate(event.address, event.size, event.frames)
        self._log("alloc", event.time_ns, block, event.frames)

    def _free(self, event: Allocation) -> None:
        block = self.live.pop(event.address, None) or Block(event.address, -event.size, [], UNKNOWN, "")
        for action in ("free_requested", "free_completed"):
            self._log(action, event.time_ns, block, event.frames)

    def _log(self, action: str, time_ns: int, block: Block, frames: list[Frame]) -> None:
        self._sessions[-1].append(Event(action, time_ns // 1000, block, frames))

    def _evict_transfers(self) -> None:
        """Remove the blocks that collectives allocated for their own copies of tensors, and record a free for each.

        Gloo's threads free these blocks, and the profiler does not see it. This method runs at the end of a step, when
        no collective is running.
        """
        for block in [block for block in self.live.values() if any(map(_is_collective_copy, block.frames))]:
            del self.live[block.address]
            self._log("free_completed", self._last_event_us() * 1000, block, [])

    def _last_event_us(self) -> int:
        return self._sessions[-1][-1].time_us if self._sessions[-1] else 0

    def _evict_overlapped(self) -> None:
        """Remove each block that a block allocated later overlaps, and record a free for it.

        Such a block was freed while no session was running, or in a way that the profiler does not report.
        """
        # `live` is in the order of allocation.
        age = {address: number for number, address in enumerate(self.live)}
        kept: list[Block] = []
        last_us = self._last_event_us()
        for block in sorted(self.live.values(), key=lambda block: block.address):
            newest = block
            while kept and kept[-1].address + kept[-1].size > newest.address:
                newest, older = sorted((kept.pop(), newest), key=lambda each: age[each.address], reverse=True)
                del self.live[older.address]
                self._log("free_completed", last_us * 1000, older, [])
            kept.append(newest)


def _is_collective_copy(frame: Frame) -> bool:
    """Return whether memory allocated in this frame is a copy of a tensor that a collective made for itself."""
    name: str = frame["name"]
    return name.startswith("c10d::") or name == "aten::flatten_dense_tensors"


def trace_entries(events: Iterable[Event]) -> list[TraceEntry]:
    """Return allocations and frees as trace entries of a device in PyTorch's format.

    The first entry has the category `unknown`, because PyTorch's viewer shows categories only if there is such an
    entry.
    """
    entries = [_trace_entry(event) for event in events]
    return [first_entry(entries), *entries]


def _trace_entry(event: Event) -> TraceEntry:
    """Return an allocation or a free as an entry of a device's trace, in PyTorch's format."""
    entry: TraceEntry = {
        "action": event.action,
        "addr": event.block.address,
        "size": event.block.size,
        "stream": 0,
        "time_us": event.time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": event.frames,
    }
    if event.action == "alloc":
        entry["category"], entry["user_metadata"] = event.block.category, event.block.label
    return entry


def _blocks_before_trace(blocks: LiveBlocks) -> dict[int, list[str]]:
    """Return {address: [category, label]} of the blocks that were allocated before the stored events begin."""
    born = {id(event.block) for event in blocks.events() if event.action == "alloc"}
    older = {event.block.address: event.block for event in blocks.events() if id(event.block) not in born}
    older |= {address: block for address, block in blocks.live.items() if id(block) not in born}
    return {address: [block.category, block.label] for address, block in older.items()}


def segments(blocks: LiveBlocks) -> list[Segment]:
    """Return segments in PyTorch's format that contain all live blocks and all blocks in the stored events.

    These segments are made up: CPU memory has none, but viewers need aligned address ranges that contain every block.
    """
    everything = {event.block.address: event.block.size for event in blocks.events()}
    everything |= {address: block.size for address, block in blocks.live.items()}
    live = sorted(blocks.live.values(), key=lambda block: block.address)
    made_up, position = [], 0
    for start, stop in _aligned_ranges(everything.items()):
        inside = []
        while position < len(live) and live[position].address < stop:
            inside.append(live[position])
            position += 1
        made_up.append(segment(start, stop, inside))
    return made_up


def _aligned_ranges(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return address ranges (start, stop) that cover the spans, given as (address, size), in ascending order.

    Each span is extended to multiples of SEGMENT_ALIGNMENT (2 MiB); ranges that touch or overlap are merged. For
    example, in MiB: the spans (1, 1) and (3, 2) become the ranges 0-2 and 2-6; these touch, so the result is 0-6.
    """
    ranges: list[tuple[int, int]] = []
    unit = _SEGMENT_ALIGNMENT
    # -(-x // unit) rounds up.
    for start, stop in sorted((a // unit * unit, -(-(a + size) // unit) * unit) for a, size in spans):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], stop))
        else:
            ranges.append((start, stop))
    return ranges


def segment(start: int, stop: int, inside: list[Block]) -> Segment:
    """Return a made-up segment from address `start` to `stop`: the live blocks `inside`, and free blocks between."""
    used = sum(block.size for block in inside)
    blocks: list[SegmentBlock] = []
    position = start
    for block in inside:
        if block.address > position:
            blocks.append(_block_entry(position, block.address - position, "inactive", []))
        blocks.append(_block_entry(block.address, block.size, "active_allocated", block.frames))
        position = block.address + block.size
    if position < stop:
        blocks.append(_block_entry(position, stop - position, "inactive", []))
    return {
        "device": 0,
        "address": start,
        "total_size": stop - start,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block_entry(address: int, size: int, state: str, frames: list[Frame]) -> SegmentBlock:
    """Return a block of a segment in PyTorch's format; `state` is "active_allocated" (live) or "inactive" (free).

    `size` is in bytes. `frames` is the call stack of the allocation, innermost frame first (empty for a free block).
    """
    requested = size if state == "active_allocated" else 0
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Return a context without garbage collections, which would scan a profiler session's many objects repeatedly."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _script_has_profiler() -> bool:
    """Return whether the script has a profiler with a schedule, which may start at any of its steps.

    A process has one session at a time: where a second one begins within ours, PyTorch 2.13 ends with SIGSEGV. Between
    the sessions of a schedule nothing else shows that one will follow.
    """
    # Each object of a class made by `class` refers to it, so one pass in C finds them all. Ours have no schedule.
    kinds = {profile, *type.__subclasses__(profile)}
    return any(type(one) in kinds and one.__dict__.get("record_steps") for one in gc.get_referrers(*kinds))


class CpuHistory:
    """Records CPU allocations of the current step and the last `window` complete steps, one profiler session per step.

    Python frames are recorded from the second step on. Only consecutive steps are kept, because frees during an
    unrecorded step would be unknown. What is alive when a history begins is found by `live_storages`, so that memory
    that unrecorded steps left is in each snapshot. `traces` selects steps whose session is also exported as a profiler
    trace.
    """

    def __init__(self, hooks: TensorHooks, window: int, traces: TracePlan | None = None) -> None:
        self.spans: list[Span] = []
        self._hooks, self._traces = hooks, traces
        self._blocks, self._frames = LiveBlocks(window + 1), FrameTable()
        self._session: profile | None = None
        self._step_span, self._quiet = ExitStack(), ExitStack()
        self._step = 0
        self._first, self._has_failed = True, False

    @unseen
    def begin(self, step: int) -> None:
        """Start the profiler session of a step.

        If the session of an earlier step is still open after an error, stop it first and add it to the history.
        """
        self.end()
        is_left_out = _script_has_profiler()
        if is_left_out:
            self._blocks.forget()
        self._blocks.add_older_tensors(self._hooks.long_lived_tensors())
        if self._blocks.is_empty:
            harmless(self._blocks.add_found)(live_storages("cpu"))
        self._step = step
        if is_left_out:
            if not self._has_failed:
                note(f"the memory of step {step} is not recorded: the script has a profiler with a schedule of its own")
            self._has_failed = True
            return
        traced = self._traces is not None and self._traces.is_traced(step)
        self._hooks.start()
        # The first step of a process plans DTensor's layouts: with Python frames it would take many seconds and a GB.
        self._session = profile(
            activities=activities("cpu"), record_shapes=traced, profile_memory=True, with_stack=not self._first
        )
        self._first = False
        # It warns of each block that is older than the session, and such blocks are known from the hooks.
        self._quiet.enter_context(torch_warnings_hidden())
        with profiler_messages_hidden():
            self._session.start()
        # PyTorch 2.13 would stop the session after the end of the interpreter, and crash.
        atexit.register(self.end)
        with _C._DisableTorchDispatch():  # noqa: SLF001  # modes of the script would see it
            self._step_span.enter_context(record_function(f"ProfilerStep#{step}"))

    def skip(self) -> None:
        """Discard the recorded history, because the step that begins now is not recorded."""
        self.end()
        self._blocks.forget()
        self._first = False

    @unseen
    def end(self) -> bool:
        """Stop the profiler session, if one is running, and add its allocations and frees to the history.

        Return False if PyTorch's profiler failed. Then the history is discarded, and begins again with the next step.
        """
        if self._session is None:
            return True
        atexit.unregister(self.end)
        with _C._DisableTorchDispatch():  # noqa: SLF001
            self._step_span.close()
        with _garbage_collection_paused():
            stopped = self._stop(self._session)
            self._quiet.close()
            if stopped:
                # While the hooks still take notes: what a script replaced in this step got none.
                self._hooks.note_long_lived_tensors()
                self._add(self._session)
            self._hooks.stop()
        if stopped and self._traces and self._traces.is_traced(self._step):
            export(self._session, self._traces.path(self._step))
        self._session = None
        gc.collect(0)  # sessions are full of cycles, and loops that switch the collector off would keep them all
        return stopped

    def _add(self, stopped: profile) -> None:
        """Add the allocations, frees and spans of a stopped session to the history."""
        session = ProfilerSession(stopped, self._frames)
        self._blocks.add_session(session, self._hooks.take_notes())
        self._free_what_died()
        self.spans.extend(session.spans)

    @harmless
    def _free_what_died(self) -> None:
        """Record the frees of the step that the profiler does not report."""
        kept = {tensor.untyped_storage().data_ptr() for tensor, *_ in self._hooks.long_lived_tensors()}
        if not self._blocks.unseen() <= kept:  # else the search, which takes longer, would find nothing
            self._blocks.free_unseen({storage.address for storage in live_storages("cpu", own_only=False)})

    def _stop(self, session: profile) -> bool:
        """Stop a profiler session; if this fails, discard the recorded history and print a message on stderr."""
        try:
            with profiler_messages_hidden():
                session.stop()
        # With Python stacks, PyTorch 2.13 raises an IndexError at times. A recorder must not end the job.
        except Exception as error:  # noqa: BLE001
            raise_of_script(error)
            why = f"PyTorch's profiler failed ({type(error).__name__}: {error})"
            if not self._has_failed:  # it may fail in each step of a long job
                note(f"the memory of step {self._step} is not recorded: {why}")
            self._has_failed = True
            self._hooks.take_notes()
            self._blocks.forget()
            return False
        return True

    @unseen
    def snapshot(self) -> Snapshot:
        """Return the live blocks and their history in the format of PyTorch's memory snapshots."""
        self._blocks.add_older_tensors(self._hooks.long_lived_tensors())
        return {
            "segments": segments(self._blocks),
            "device_traces": [trace_entries(self._blocks.events())],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def details(self) -> Details:
        """Return the fields of a snapshot's entry `workbench` that have different values on CPU and CUDA."""
        return {
            "made_up_segments": True,
            "lost_notes": self._blocks.lost_notes + self._hooks.lost,
            "older_blocks_known": True,
            "blocks": _blocks_before_trace(self._blocks),
        }
