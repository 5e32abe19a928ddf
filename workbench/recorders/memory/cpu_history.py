"""The history of the CPU's memory, made from profiler sessions: one in each step, as only one can be active."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.profiler import profile, record_function

from workbench.recorders.memory.live_blocks import Ledger, older_blocks, segments, trace_entries
from workbench.recorders.memory.profiler_events import Frames, Session, Span
from workbench.recorders.memory.tensor_hooks import Notes
from workbench.recorders.timing.profiler_traces import TracePlan, activities, export


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collections inside: they would scan the many live objects of a session again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class CpuHistory:
    """Allocations of the last `keep` steps, with Python frames from the second on.

    Where `traces` are due, the step's session is exported as its trace too.
    """

    def __init__(self, notes: Notes, keep: int, traces: TracePlan | None = None) -> None:
        self.spans: list[Span] = []
        self._notes, self._traces = notes, traces
        self._ledger, self._frames = Ledger(keep), Frames()
        self._session: profile | None = None
        self._inside = ExitStack()
        self._step = 0
        self._first = True

    def begin(self, step: int) -> None:
        """Start the step's session; one that an error has left open is entered first."""
        self.end()
        self._ledger.adopt(self._notes.standing())
        self._step = step
        self._notes.open()
        # The first step of a process plans DTensor's layouts: with Python frames it would take many seconds and a GB.
        self._session = profile(
            activities=activities("cpu"), record_shapes=True, profile_memory=True, with_stack=not self._first
        )
        self._first = False
        self._session.start()
        self._inside.enter_context(record_function(f"ProfilerStep#{step}"))

    def end(self) -> None:
        """Stop the session and enter what it has seen."""
        if self._session is None:
            return
        self._inside.close()
        self._notes.shut()
        with collector_paused():
            self._session.stop()
            session = Session(self._session, self._frames)
            self._ledger.enter(session, self._notes.taken())
        self.spans.extend(session.spans)
        if self._traces and self._traces.active(self._step):
            export(self._session, self._traces.path(self._step))
        self._session = None
        gc.collect(0)  # sessions are full of cycles, and loops that switch the collector off would keep them all

    def snapshot(self) -> dict[str, Any]:
        """The present state and the history in PyTorch's schema."""
        return {
            "segments": segments(self._ledger),
            "device_traces": [trace_entries(self._ledger.events())],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def details(self) -> dict[str, Any]:
        """What is particular about a CPU's snapshot."""
        return {
            "made_up_segments": True,
            "lost_notes": self._ledger.lost_notes + self._notes.lost,
            "blocks": older_blocks(self._ledger),
        }
