"""Record the history of CPU allocations with one session of PyTorch's profiler per step.

A process can have only one active session. So if the same steps are traced, the traces must come from this session.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.profiler import profile, record_function

from workbench.recorders.memory.live_blocks import LiveBlocks, blocks_before_trace, segments, trace_entries
from workbench.recorders.memory.profiler_events import FrameTable, ProfilerSession, Span
from workbench.recorders.memory.snapshot import Details, Snapshot
from workbench.recorders.memory.tensor_hooks import TensorHooks
from workbench.recorders.quiet import profiler_messages_hidden, torch_warnings_hidden
from workbench.recorders.timing.profiler_traces import TracePlan, activities, export


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


class CpuHistory:
    """Records CPU allocations of the current step and the last `window` complete steps, one profiler session per step.

    Python frames are recorded from the second step on. Only consecutive steps are kept, because frees during an
    unrecorded step would be unknown. `traces` selects steps whose session is also exported as a profiler trace.
    """

    def __init__(self, hooks: TensorHooks, window: int, traces: TracePlan | None = None) -> None:
        self.spans: list[Span] = []
        self._hooks, self._traces = hooks, traces
        self._blocks, self._frames = LiveBlocks(window + 1), FrameTable()
        self._session: profile | None = None
        self._step_span, self._quiet = ExitStack(), ExitStack()
        self._step = 0
        self._first = True

    def begin(self, step: int) -> None:
        """Start the profiler session of a step.

        If the session of an earlier step is still open after an error, stop it first and add it to the history.
        """
        self.end()
        self._blocks.add_older_tensors(self._hooks.long_lived_tensors())
        self._step = step
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
        self._step_span.enter_context(record_function(f"ProfilerStep#{step}"))

    def skip(self) -> None:
        """Discard the recorded history, because the step that begins now is not recorded."""
        self.end()
        self._blocks.forget()
        self._first = False

    def end(self) -> bool:
        """Stop the profiler session, if one is running, and add its allocations and frees to the history.

        Return False if PyTorch's profiler failed. Then the history is discarded, and begins again with the next step.
        """
        if self._session is None:
            return True
        atexit.unregister(self.end)
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
        self.spans.extend(session.spans)

    def _stop(self, session: profile) -> bool:
        """Stop a profiler session; if this fails, discard the recorded history and print a message on stderr."""
        try:
            with profiler_messages_hidden():
                session.stop()
        # With Python stacks, PyTorch 2.13 raises an IndexError at times. A recorder must not end the job.
        except Exception as error:  # noqa: BLE001
            why = f"PyTorch's profiler failed ({type(error).__name__}: {error})"
            print(f"workbench: the memory of step {self._step} is not recorded: {why}", file=sys.stderr)
            self._hooks.take_notes()
            self._blocks.forget()
            return False
        return True

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
            "blocks": blocks_before_trace(self._blocks),
        }
