"""Ends of processes: signals, exit codes, and orders to stop."""

import re

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Advice, Example, Failure, sign
from analyzers.words import capitalised, exit_reason


def signal(case: Case) -> str:
    """Return the title for a rank that a signal ended."""
    lead = case.lead
    name = lead.facts.signal or "a signal"
    verb = f"{'were' if len(case.ranks) > 1 else 'was'} killed by" if name == "SIGKILL" else "crashed with"
    return f"{who(case.ranks)} {verb} {name}{place(lead)}{at_step(lead)}"


def exit_code(case: Case) -> str:
    """Return the title for a rank that failed if the logs show only its exit code."""
    lead = first_with(case, "exit_code")
    code = lead.facts.exit_code
    return f"{who(case.ranks)} ended with {exit_reason(code or 1)}{at_step(lead)}, and these logs do not show why"


def time_limit(case: Case) -> str:
    """Return the title for a job that reached its time limit."""
    return f"the scheduler ended the job at its time limit{at_step(case.lead)}"


def terminated(case: Case) -> str:
    """Return the title for a job that was ended from outside."""
    how = {
        Reason.PREEMPTION: "the scheduler preempted the job",
        Reason.CANCELLED: "the job was cancelled from outside",
    }.get(case.reason or Reason.LAUNCHER_SIGNAL, "the launcher received a signal to stop")
    name = case.lead.facts.signal
    return f"{how}{f' ({name})' if name else ''}{at_step(case.lead)}"


def unknown(case: Case) -> str:
    """Return the title for a cause of unknown class.

    There are two cases: nothing shows whether the program caught an exception or ended with it; or ranks lost their
    connection to a rank that the logs do not name.
    """
    if case.lead.kind is EventKind.EXCEPTION:
        return (
            f"{who(case.failure.ranks)} printed {quoted(case.lead)}{place(case.lead)}, and nothing shows whether the"
            " program caught this exception or ended with it"
        )
    lost = case.failure.events[0]
    ranks = who(case.failure.ranks, "ranks")
    return f"{ranks} lost the connection to a rank that these logs do not name: {quoted(lost)}"


_READ_ALL = (
    "read the output of every rank: torchrun's `--log-dir logs --tee 3` writes a file for each. If none of them shows"
    " the cause, run under `workbench launch -- COMMAND`, which records what each rank waits in"
)
_WHO_ENDED = (
    "find out who ended the job, because the logs show no rank that failed before: look at `sacct -j JOB`, at the scheduler's log, and for"
    " a `timeout` command or a closed terminal"
)
_NATIVE = (
    "look at the native extension that the line calls; if the title names no line, run with `python -X faulthandler`,"
    " and read the kernel's log (`dmesg -T`) of the node of {ranks} at the time of the crash"
)
_CAUGHT_OR_ENDED = (
    "compare the last step in the log with the number of steps that were planned, and look at the exit code of the job:"
    " both show whether this exception ended it. If it did, open the line that raised it"
)


_PREEMPTED = (
    "resume from the last checkpoint. To lose fewer steps at the next preemption, save checkpoints more often, or let a"
    " handler of SIGTERM save one if the scheduler grants a time of grace (Slurm: GraceTime of the partition)"
)


def _for_unknown(case: Case) -> str:
    """Return how to find the cause if the logs do not show it."""
    return _CAUGHT_OR_ENDED if case.lead.kind is EventKind.EXCEPTION else _READ_ALL


def _for_terminated(case: Case) -> str:
    """Return what to do about a job that was ended from outside."""
    return _PREEMPTED if case.reason is Reason.PREEMPTION else _WHO_ENDED


def _for_signal(case: Case) -> str:
    """Return how to find out why a signal ended a rank; for SIGKILL, whether it came from the kernel's OOM killer."""
    if case.lead.facts.signal == "SIGKILL":
        return (
            "find out who sent SIGKILL, because the log does not show it. Look for the kernel's out-of-memory killer"
            " first (`dmesg -T | grep -i 'killed process'`; under Slurm also `sacct -j JOB -o State,MaxRSS`)"
        )
    return _NATIVE.replace("{ranks}", who(case.ranks, "the failed rank"))


# Signals and wrappers that show by their text.

_BUS = (
    "a bus error is most often a full /dev/shm (64 MB in a container unless more is asked for), or a file that became shorter"
    " while it was mapped into memory"
)
_FROM_FAULTHANDLER = "run with `python -X faulthandler`: it prints the line of Python in which the crash happened"


def _at_interrupt(case: Case) -> str:
    """Return what the program was doing when it was interrupted, by the frames of its traceback."""
    last = " ".join(case.lead.calls[-3:])
    if re.search(r"threading\.py|connection\.py|selectors\.py|queues\.py|dataloader\.py", last):
        return "; at that moment it waited for a thread, a data-loader worker or another process"
    if re.search(r"distributed_c10d\.py", last):
        return "; at that moment it was in a collective: if it hung there, look for a rank that did not come"
    return ""


_OF_WINDOWS = {
    3221225477: "access violation: native code read or wrote memory that is not its own",
    3221225725: "stack overflow",
    3221225786: "Ctrl-C, or a closed window",
    3221226505: "a check of native code ended the process (abort, or a damaged stack)",
    3221225781: "a DLL is missing",
}
"""{exit status of Windows (NTSTATUS): what it means}."""


def _only_launcher(case: Case) -> str:
    name = next((n for n in ("ChildFailedError", "CalledProcessError") if n in case.lead.message), "")
    who = {"ChildFailedError": "torchrun", "CalledProcessError": "The launcher"}.get(name, "torch.multiprocessing")
    return f"{who} only says that a {'rank' if name == 'ChildFailedError' else 'process'} failed, and not why"


def _meaning_of_status(case: Case) -> str:
    code = int(case.given.get("code") or case.given.get("exit") or 0)
    by = case.given.get("signal") or case.given.get("by")
    status = f"a signal ended it ({by})" if by else ""
    if code:
        means = _OF_WINDOWS.get(code) or (exit_reason(code) if code < 0 else "")
        status = f"exit status {code}" + (f" means {means}" if means else " alone does not say why")
    source = (
        "the launcher raises this exception after the process has ended; the cause is in the output of that process"
    )
    return f"{source}. {capitalised(status)}" if status else source


TEXTS = (
    Failure(
        id="processes.hangup",
        kind=LogClass.TERMINATED,
        what="The terminal or connection from which a job was started was closed (SIGHUP).",
        signs=(
            sign("death signal", r"Received 1 death signal"),
            sign("got signal:", r"got signal: 1\b"),
            sign("SIGHUP", r"(?:Signals\.SIGHUP|signal 1 \(SIGHUP\)|SIGHUP: 1)"),
        ),
        headline="The launcher got SIGHUP, as when its terminal is closed, and stopped all ranks",
        why="a program that runs in a shell gets SIGHUP when its ssh connection or terminal ends; the signal came from"
        " outside of the ranks",
        next=(
            "start it so that it outlives the terminal: in tmux or screen, by sbatch, or nohup ... & (with setsid, as torchrun installs its"
            " own handler for SIGHUP even under nohup)",
            "resume from the last checkpoint",
        ),
        tier=Tier.STOPPED,
        event=EventKind.STOP_REQUESTED,
        examples=(
            Example(
                "W0920 09:10:41.194000 84933 site-packages/torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting down workers\n"
                "W0920 09:10:41.195000 84933 site-packages/torch/distributed/elastic/multiprocessing/api.py:900] Sending process 85005 closing signal SIGHUP\n"
                "W0920 09:10:41.195000 84933 site-packages/torch/distributed/elastic/multiprocessing/api.py:900] Sending process 85006 closing signal SIGHUP\n"
                "Traceback (most recent call last):\n"
                '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
                '  File "<frozen runpy>", line 88, in _run_code\n'
                '  File "/data/user/miniconda3/envs/msswift/lib/python3.11/site-packages/torch/distributed/run.py", line 896, in <module>\n'
                "    main()",
                source="modelscope/ms-swift#5884",
                says=("tmux",),
            ),
            Example(
                "22-09-01 02:48:36.264 : <epoch:  0, iter:     600, lr:4.000e-04> G_loss: 1.637e-02 \n"
                "22-09-01 03:06:01.631 : <epoch:  0, iter:     800, lr:4.000e-04> G_loss: 7.941e-02 \n"
                "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n"
                "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2704351 closing signal SIGHUP\n"
                "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2704352 closing signal SIGHUP\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/miniconda3/envs/deblur/lib/python3.7/runpy.py", line 193, in _run_module_as_main\n'
                '    "__main__", mod_spec)',
                source="JingyunLiang/VRT#47",
            ),
        ),
        near_misses=(
            "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
        ),
        knowledge="pytorch/pytorch#76894; signal(7)",
    ),
    Failure(
        id="processes.interrupted",
        kind=LogClass.TERMINATED,
        what="The job was interrupted (SIGINT), most often by Ctrl-C.",
        signs=(
            sign("death signal", r"Received 2 death signal"),
            sign("got signal:", r"got signal: 2\b"),
        ),
        headline="The job was interrupted (SIGINT, as by Ctrl-C)",
        why="tracebacks after this signal only show where each process was at that time; if it was interrupted because"
        " it hung, these tracebacks need not show why",
        next=(
            "if it hung: run again, and take the stacks while it hangs (py-spy dump --pid PID for each rank), or start it under `workbench"
            " launch -- COMMAND`",
            "else nothing: resume from the last checkpoint",
        ),
        tier=Tier.STOPPED,
        event=EventKind.STOP_REQUESTED,
        examples=(
            Example(
                "[2024-02-22 19:20:22,163][torch.nn.parallel.distributed][INFO] - Reducer buckets have been rebuilt in this iteration.\n"
                "\n"
                "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers\n"
                "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4797 closing signal SIGINT\n"
                "Traceback (most recent call last):\n"
                '  File "main.py", line 84, in <module>\n'
                "    main()",
                source="MCG-NJU/RTD-Action#31",
                says=("py-spy",),
            ),
        ),
        knowledge="signal(7)",
    ),
    Failure(
        id="processes.keyboard_interrupt",
        kind=LogClass.TERMINATED,
        what="Python was interrupted (Ctrl-C, or the stop button of a notebook).",
        signs=(sign("KeyboardInterrupt", r"\AKeyboardInterrupt\b"),),
        headline="Python was interrupted from outside (KeyboardInterrupt: Ctrl-C or a notebook's stop)",
        why=lambda case: "its traceback shows where the program was, not a fault of that line" + _at_interrupt(case),
        next=(
            "if nobody pressed Ctrl-C, a notebook or a launcher sent SIGINT: look for an earlier error of another process",
            "if it hung, take stacks of all ranks while it hangs: py-spy dump --pid PID",
        ),
        tier=Tier.LOST_CONNECTION,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "C:\\nunif\\train.py", line 22, in <module>\n'
                "    main()\n"
                '  File "C:\\nunif\\train.py", line 18, in main\n'
                "    args.handler(args)\n"
                '  File "C:\\nunif\\waifu2x\\training\\train.py", line 37, in train\n'
                "    trainer.fit()\n"
                '  File "C:\\nunif\\nunif\\training\\env.py", line 52, in optimizer_step\n'
                "    grad_scaler.step(optimizer)\n"
                '  File "F:\\1\\envs\\nunif\\lib\\site-packages\\torch\\cuda\\amp\\grad_scaler.py", line 287, in <genexpr>\n'
                '    if not sum(v.item() for v in optimizer_state["found_inf_per_device"].values()):\n'
                "KeyboardInterrupt",
                source="nagadomi/nunif#26",
                says=("py-spy",),
            ),
        ),
        knowledge="Python: KeyboardInterrupt",
    ),
    Failure(
        id="processes.no_terminal",
        kind=LogClass.CRASHED,
        what="The program asks for input on a terminal, and has none.",
        signs=(
            sign("EOF when reading a line"),
            sign("Bad file descriptor", r"\[Errno 9\] Bad file descriptor"),
        ),
        when=lambda case: any(re.search(r"\b(?:raw_)?input\(", event.excerpt) for event in case.failure.events),
        headline="The program asks for input, and there is no terminal to answer",
        why="input() reads from stdin, which is closed or empty under nohup, a scheduler or torchrun",
        next=(
            "take the answer from an argument or a file in place of input(), or ask only where sys.stdin.isatty()",
            "or run it in tmux or screen instead of nohup",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/me/core/trainer.py", line 69, in _write_prompt\n'
                '    self.logger.dump(input("\\nWrite some notes: "))\n'
                "OSError: [Errno 9] Bad file descriptor",
                says=("isatty",),
            ),
        ),
        near_misses=("OSError: [Errno 9] Bad file descriptor",),
        knowledge="Python: input(); nohup(1)",
    ),
    Failure(
        id="processes.bus_error",
        kind=LogClass.SIGNAL,
        what="A process was ended by a bus error (SIGBUS).",
        signs=(
            sign("failed (exitcode:", r"failed \(exitcode: -7\)"),
            sign("Bus error", r"Bus error(?: \(core dumped\)|\s*$| \(nonexistent physical address\))"),
            sign("exits with return code", r"exits with return code = -7\b"),
            sign("Caught signal", r"Caught signal 7 \("),
            sign("SIGBUS", r"\*\*\* SIGBUS|Signals\.SIGBUS|Signal 7 \(SIGBUS\)|signal SIGBUS"),
        ),
        headline="A bus error (SIGBUS) ended {who}, most often for a full /dev/shm",
        why=_BUS,
        next=(
            "give it more shared memory: docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm"
            " (df -h /dev/shm while it runs)",
            "else suspect a mapped file that was replaced or cut while it was read (checkpoint, data set, full disk): copy it again",
        ),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.SIGNAL,
        examples=(
            Example(
                "Loading model from retinanet_rn50fpn.pth...\n"
                "     model: RetinaNet\n"
                "  backbone: ResNet50FPN\n"
                "   classes: 80, anchors: 9\n"
                "Bus error (core dumped)",
                source="NVIDIA/retinanet-examples#59",
                says=("--shm-size",),
            ),
            Example("Bus error (core dumped)", says=("--shm-size", "bus error")),
            Example(
                "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 0 (pid: 2215) of binary:"
                " /opt/conda/bin/python",
                says=("--shm-size",),
            ),
        ),
        near_misses=(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        ),
        knowledge="pytorch/pytorch#5040; NVIDIA/nccl: shared memory",
    ),
    Failure(
        id="processes.illegal_instruction",
        kind=LogClass.SIGNAL,
        what="A program came to an illegal instruction (SIGILL), most often one that this CPU does not have.",
        signs=(
            sign("llegal instruction", r"Illegal instruction|illegal instruction \(core dumped\)"),
            sign("failed (exitcode:", r"failed \(exitcode: -4\)"),
            sign("SIGILL", r"\*\*\* SIGILL|Signals\.SIGILL|Signal 4 \(SIGILL\)|signal SIGILL"),
        ),
        headline="The process ended at an illegal instruction (SIGILL), most often one of a newer CPU",
        why="most often a library was built for a newer CPU (AVX2, AVX-512), or on another node: compiled extensions"
        " with -march=native, or a wheel; else its code is damaged or ended on purpose (a failed check)",
        next=(
            "rebuild the extension on this node, and delete its cache (~/.cache/torch_extensions; DeepSpeed's ops)",
            "or install a build for this CPU, or run on nodes like the one where it was built (lscpu | grep Flags); "
            + _FROM_FAULTHANDLER,
        ),
        rules_out="`CUDA error: an illegal instruction was encountered`, which is of the GPU",
        when=lambda case: "CUDA" not in case.lead.message,
        tier=Tier.NATIVE_CRASH,
        event=EventKind.SIGNAL,
        examples=(
            Example(
                "Using embedded DuckDB with persistence: data will be stored in: db\nIllegal instruction (core dumped)",
                source="zylon-ai/private-gpt#326",
                says=("AVX",),
            ),
        ),
        near_misses=("RuntimeError: CUDA error: an illegal instruction was encountered",),
        knowledge="signal(7)",
    ),
    Failure(
        id="processes.segfault_in_library",
        kind=LogClass.SIGNAL,
        what="A process crashed in a library that the kernel names.",
        signs=(
            sign(
                "segfault at",
                r"(?P<program>[\w.:-]{1,40})\[\d+\]: segfault at (?P<address>[0-9a-f]+) ip \S+ sp \S+ error \d+ in (?P<library>[\w.+-]{2,80})\[",
            ),
        ),
        headline=lambda case: f"{case.given['program'][:20]} crashed in {case.given['library'][:50]} (SIGSEGV)",
        why=lambda case: (
            "it used the address 0 or one near it: most often an object that was missing or freed"
            if len(case.given["address"]) < 4
            else "it used memory that is not its own"
        ),
        next=(
            "compare the version of that library with what its package was built for, and update or reinstall that package",
            _FROM_FAULTHANDLER,
            "if different libraries crash on one node only, test its memory, and exclude it",
        ),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.SIGNAL,
        examples=(
            Example(
                "[ 2231.118] python[12345]: segfault at 8 ip 00007f1c2a3b4c5d sp 00007ffd3e2f1a08 error 4 in"
                " libtorch_cpu.so[7f1c27a00000+c5e5000]",
                says=("libtorch_cpu.so", "faulthandler"),
            ),
        ),
        knowledge="Linux: arch/x86/mm/fault.c",
    ),
    Failure(
        id="processes.heap_corruption",
        kind=LogClass.SIGNAL,
        what="The C library found the heap of a process damaged.",
        signs=(
            sign(
                "free",
                r"double free or corruption|free\(\): (?:invalid (?:pointer|size|next size)|double free)|munmap_chunk\(\): invalid",
            ),
            sign("malloc", r"malloc\(\): \w+|malloc_consolidate\(\)"),
            sign("corrupted ", r"corrupted (?:size vs\. prev_size|double-linked list)"),
            sign("stack smashing detected"),
        ),
        headline="Native code damaged the memory of a process: {quote}",
        why="memory was freed twice, or written past its end; sometimes two copies of one library (OpenMP, protobuf,"
        " libstdc++, tcmalloc) are in the process, and the line where it is noticed is not the cause",
        next=(
            "if it comes at the import or start: import torch first, remove LD_PRELOAD, and install the packages from one source (all by pip or"
            " all by conda); also older OpenCV, pyarrow and open3d are known for it",
            "if it comes at the very end, after all was saved, call os._exit(0) there, or update the package",
            "else update PyTorch and the package with native code that runs there, and " + _FROM_FAULTHANDLER,
        ),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.SIGNAL,
        examples=(
            Example(
                "----------------------------------------------------------------------\n"
                "|                       Pelee Training Program                       |\n"
                "----------------------------------------------------------------------\n"
                "free(): invalid pointer\n"
                "Aborted (core dumped)",
                source="yxlijun/Pelee.Pytorch#20",
                says=("memory",),
            ),
            Example(
                "2020-09-29 09:37:43,421 paa_core INFO: Collecting env info (might take some time)\n"
                "*** Error in `/home/user/anaconda3/envs/PAA/bin/python': double free or corruption (!prev): 0x0000564911fb06d0 ***",
                source="sfzhang15/ATSS#73",
                says=("LD_PRELOAD",),
            ),
            Example(
                "    evaluating…\n"
                "    92%|████████████████▌ | 1667/1811 [4:43:54<08:57,  3.73s/it]\n"
                "    free(): double free detected in tcache 2\n"
                "    Aborted (core dumped)",
                source="pytorch/pytorch#50137",
            ),
            Example("free(): invalid pointer", says=("import torch first", "memory")),
            Example("double free or corruption (!prev)", says=("LD_PRELOAD",)),
            Example("corrupted double-linked list", says=("faulthandler",)),
        ),
        knowledge="glibc: malloc consistency checks",
    ),
    Failure(
        id="processes.gloo_abort",
        kind=LogClass.SIGNAL,
        what="A process aborted because a connection of gloo broke, most often as another rank had left.",
        signs=(sign("terminate called after throwing", r"instance of 'gloo::IoException'"),),
        headline="A rank aborted because its gloo connection broke",
        why="gloo's background thread throws, and nothing catches it; this is most often what the others do when a"
        " rank fails or leaves first",
        next=(
            Advice(
                "`Connection refused` at the start: set GLOO_SOCKET_IFNAME to the interface that all nodes share",
                when=lambda case: case.printed("onnection refused"),
            ),
            "read the logs of the other ranks: if one ended before, its error is the cause; else the network broke",
            "if all had finished their work, let them end together: dist.barrier() and dist.destroy_process_group() at the end"
            " of every rank",
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "terminate called after throwing an instance of 'gloo::IoException'\n  what():"
                " [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused",
                source="pytorch/pytorch#15592",
                says=("other ranks", "GLOO_SOCKET_IFNAME"),
            ),
        ),
        near_misses=(
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at"
            " ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 1046204 vs 1040256",
        ),
        knowledge="horovod/horovod#2907",
    ),
    Failure(
        id="processes.watchdog_abort",
        kind=LogClass.SIGNAL,
        what="PyTorch's watchdog ended a process, and the reason stands in its other lines.",
        signs=(
            sign(
                "terminate called after throwing",
                r"instance of 'c10::(?P<what>DistBackendError|Error|CUDAError|AcceleratorError)'",
            ),
        ),
        headline=lambda case: (
            "The NCCL watchdog aborted the process after a timeout or an error of a collective"
            if case.given["what"] == "DistBackendError"
            else "A thread of PyTorch aborted the process: its what() names the error"
        ),
        why="an exception in a thread of C++ ends the process by SIGABRT: the abort is a consequence",
        next=(
            "read the line `what():` and the lines of the watchdog: they name the collective, the rank and the error",
            "then the ranks that printed nothing: the one that did not join the collective is the cause of a timeout",
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "terminate called after throwing an instance of 'c10::DistBackendError'\n"
                "frame #2: c10d::ProcessGroupNCCL::workCleanupLoop() + 0x19d (0x7f8601933c3d in /opt/conda/envs/ml_v4/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so)\n"
                "Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1186 (most recent call first):\n"
                "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f8600788d87 in /opt/conda/envs/ml_v4/lib/python3.10/site-packages/torch/lib/libc10.so)",
                source="arrival-ltd/catalyst-rl-tutorial#15",
            ),
            Example(
                "terminate called after throwing an instance of 'c10::DistBackendError'", says=("watchdog", "what()")
            ),
        ),
        knowledge="PyTorch: ProcessGroupNCCL",
    ),
    Failure(
        id="processes.thread_at_exit",
        kind=LogClass.SIGNAL,
        what="C++ ended a process without an exception, most often because one of its threads was still running.",
        signs=(
            sign(
                "terminate called without an active exception",
                r"(?<!pure virtual method called )terminate called without an active exception",
            ),
        ),
        headline="C++ ended the process without an exception: most often a thread was still running at exit",
        why="a thread that is not joined aborts the process at its end; this follows from an exit, and is not its reason",
        next=(
            "look for the exception or sys.exit() that ended the program: that is then the cause",
            "if the work was done: end it in order (destroy_process_group(), close data loaders and loggers)",
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Loading YOLO model..\n"
                "Loading pose model from ./models/sppe/duc_se.pth\n"
                "0it [00:00, ?it/s]\n"
                "===========================> Finish Model Running.\n"
                "===========================> Rendering remaining images in the queue...\n"
                "===========================> If this step takes too long, you can enable the --vis_fast flag to use fast rendering (real-time).\n"
                "terminate called without an active exception\n"
                "Aborted (core dumped)",
                source="Amanbhandula/AlphaPose#12",
                says=("end it in order",),
            ),
        ),
        knowledge="C++: std::thread::~thread",
    ),
    Failure(
        id="processes.ide_exit",
        kind=LogClass.SIGNAL,
        what="An IDE reports how a process ended.",
        signs=(
            sign(
                "Process finished with exit code",
                r"Process finished with exit code (?P<code>-?\d+)(?<! 0)(?: \((?P<what>[^)\n]{1,60})\))?",
            ),
        ),
        headline=lambda case: {
            "137": "The process was killed (exit code 137, SIGKILL), most often for host memory",
            "139": "The process crashed in native code (exit code 139, SIGSEGV)",
            "134": "The process aborted (exit code 134, SIGABRT): its reason is in its own output",
            "-1073741819": "The process crashed in native code (0xC0000005, access violation)",
            "-1073740791": "The process crashed in native code (0xC0000409, a failed check or a damaged stack)",
            "-1073740940": "The process crashed in native code (0xC0000374, damaged heap)",
            "-1073741571": "The process crashed: its stack overflowed (0xC00000FD)",
        }.get(
            case.given["code"], f"The process ended with exit code {case.given['code']}, which alone does not say why"
        ),
        why=lambda case: (
            "the kernel's OOM killer sends SIGKILL when the memory of the host, or of the container or WSL, is full;"
            " the stop button of an IDE can send it, too"
            if case.given["code"] == "137"
            else "a library crashed outside of Python, so there is no exception"
            if case.given["code"] in ("139", "-1073741819", "-1073740791", "-1073740940", "-1073741571")
            else "the IDE only repeats the exit code"
        ),
        next=(
            lambda case: (
                "watch the memory (free -h, Task Manager) while it runs; fewer DataLoader workers, a smaller data set in memory, more memory"
                " for Docker or WSL (.wslconfig: memory=)"
                if case.given["code"] == "137"
                else _FROM_FAULTHANDLER + "; then update or reinstall the library that it is in, and the GPU driver"
                if case.given["code"] in ("139", "-1073741819", "-1073740791", "-1073740940", "-1073741571")
                else "read the program's own output: an exception or message there says why"
            ),
        ),
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
                source="noelshin/selfmask#11",
                says=("137", "memory"),
            ),
            Example(
                "Process finished with exit code -1073741819 (0xC0000005)", says=("access violation", "faulthandler")
            ),
        ),
        near_misses=("Process finished with exit code 0",),
        knowledge="signal(7); NTSTATUS values",
    ),
    Failure(
        id="processes.ray_actor_import",
        kind=LogClass.CRASHED,
        what="Ray could not import the module of an actor on a worker, and reports that in place of the import's own error.",
        signs=(
            sign(
                "failed to import on the worker",
                r"The actor with name (?P<name>\w{1,60}) failed to import on the worker",
            ),
        ),
        headline="The module of Ray's actor {name} could not be imported on a worker",
        why="Ray passes the failure on; the exception of the import is part of its message",
        next=(
            "read the last exception in the traceback of the message: it is the one of the import",
            "start in the worker's environment: python -c 'import MODULE'",
        ),
        tier=Tier.VAGUE,
        examples=(
            Example(
                "RuntimeError: The actor with name WorkerDict failed to import on the worker. This may be because needed library"
                " dependencies are not installed in the worker environment:",
                says=("WorkerDict",),
            ),
        ),
        knowledge="ray/_private/function_manager.py",
    ),
    Failure(
        id="processes.ray_task_error",
        kind=LogClass.CRASHED,
        what="Ray passes on an exception that was raised in a task or an actor.",
        signs=(sign("RayTaskError", r"RayTaskError\((?P<name>\w{1,60})\): ray::(?P<task>[\w.]{1,80})"),),
        headline=lambda case: f"{case.given['name']} in Ray's {case.given['task'][:45]}: its own lines are the cause",
        why="RayTaskError only carries an exception of another process; its own lines, or the worker's log, have the"
        " traceback",
        next=(
            "read the traceback that follows `ray::`, down to its last line; the files worker-*.err of Ray's logs have"
            " the whole one",
            "if several tasks failed, the one that failed first is the cause",
        ),
        tier=Tier.VAGUE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.actor_rollout_generate_sequences() (pid=4242, ip=10.0.0.3)",
                says=("ValueError", "worker-*.err"),
            ),
        ),
        knowledge="Ray: fault tolerance of tasks",
    ),
    Failure(
        id="processes.engine_core",
        kind=LogClass.EXIT_CODE,
        what="vLLM only says that the process of its engine ended at the start.",
        signs=(sign("Engine core initialization failed"),),
        headline="The process of vLLM's engine failed at its start, and this exception does not say why",
        why="it only reports that the process ended, and is the same for every cause",
        next=(
            "look for the first error of that process (lines with EngineCore, Worker or core.py), which is printed"
            " before: that is the cause",
            "if there is none: VLLM_LOGGING_LEVEL=DEBUG prints more, and with VLLM_ENABLE_V1_MULTIPROCESSING=0 LLM(...) runs"
            " the engine in the calling process and shows its exception",
        ),
        tier=Tier.EXIT_CODE,
        examples=(
            Example(
                "(APIServer pid=1179246)     with launch_core_engines(vllm_config, executor_class,\n"
                "(APIServer pid=1179246)          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '(APIServer pid=1179246)   File "/home/user/anaconda3/envs/gan_vllm2/lib/python3.12/contextlib.py", line 144, in __exit__\n'
                "(APIServer pid=1179246)     next(self.gen)\n"
                '(APIServer pid=1179246)   File "/home/user/vllm-local-build/vllm/vllm/v1/engine/utils.py", line 706, in launch_core_engines\n'
                "(APIServer pid=1179246)     wait_for_engine_startup(\n"
                '(APIServer pid=1179246)   File "/home/user/vllm-local-build/vllm/vllm/v1/engine/utils.py", line 759, in wait_for_engine_startup\n'
                '(APIServer pid=1179246)     raise RuntimeError("Engine core initialization failed. "\n'
                "(APIServer pid=1179246) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
                source="vllm-project/vllm#23176",
                says=("EngineCore",),
            ),
        ),
        knowledge="vllm/v1/engine/utils.py: wait_for_engine_startup",
    ),
    Failure(
        id="processes.wrapper_alone",
        kind=LogClass.EXIT_CODE,
        what="A launcher's own exception says that a process failed, and not why.",
        signs=(
            sign("ChildFailedError"),
            sign(
                "CalledProcessError",
                r"CalledProcessError: Command [\s\S]{0,2000}?"
                r"(?: exit status (?P<code>-?\d{1,10})| died with <Signals\.(?P<signal>\w+)|\Z)",
            ),
            sign(
                "Exception",
                r"Process(?:Exited|Raised)Exception: .{0,80}?(?:exit code (?P<exit>\d+)|signal (?P<by>\w+)|$)",
            ),
        ),
        headline=_only_launcher,
        why=_meaning_of_status,
        next=(
            "look for the first traceback or signal of the process, in the rest of the log or in the file of that rank"
            " (torchrun --log-dir logs --tee 3 writes one for each)",
            Advice(
                "run the quoted command by itself, with one process: it prints its own error",
                lambda case: "CalledProcessError" in case.lead.message,
            ),
            Advice(
                "wrap main() in torch.distributed.elastic.multiprocessing.errors.record: then torchrun prints the error"
                " itself",
                lambda case: "ChildFailedError" in case.lead.message,
            ),
        ),
        rules_out="a traceback, a signal or an exit code of the process itself is in the text",
        tier=Tier.EXIT_CODE,
        examples=(
            Example("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"),
            Example(
                "subprocess.CalledProcessError: Command '['C:\\\\venv\\\\Scripts\\\\python.exe', 'train_network.py']' returned"
                " non-zero exit status 3221225477.",
                says=("access violation", "run the quoted command"),
            ),
            Example(
                "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' died with <Signals.SIGKILL: 9>.",
                says=("SIGKILL", "run the quoted command"),
            ),
            Example("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 1"),
        ),
        knowledge="torch/distributed/elastic/multiprocessing/errors; Python: subprocess; [MS-ERREF] NTSTATUS values",
    ),
    Failure(
        id="processes.launcher_alone",
        kind=LogClass.EXIT_CODE,
        what="SageMaker says that the training script ended with an error, and not why.",
        signs=(sign("ExecuteUserScriptError"), sign("UnexpectedStatusException")),
        headline="SageMaker only says that the training script failed, and not why",
        why="the script prints its own error, and this exception is the same for every cause",
        next=(
            "read the job's log streams in CloudWatch (one for each host): the first traceback or signal there is the cause",
            "if they show nothing: run the quoted command in the same image (local mode), with one process",
        ),
        rules_out="a traceback of the training itself is in the text",
        tier=Tier.EXIT_CODE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                'AlgorithmError: ExecuteUserScriptError: Command "/opt/conda/bin/python3.6 -m launch_ddp --config'
                ' configs/dist-training-config.yaml"',
                source="facebookresearch/maskrcnn-benchmark#1329",
                says=("SageMaker", "CloudWatch"),
            ),
        ),
        knowledge="sagemaker-training's errors",
    ),
    Failure(
        id="processes.wandb_failed",
        kind=LogClass.EXIT_CODE,
        what="wandb reports that the program ended with an error, and not what it was.",
        signs=(sign("(failed", r"wandb:[^\n]{0,60}\(failed (?P<code>-?\d+)\)"),),
        headline="The program ended with exit code {code}; wandb only reports it",
        why="wandb watches the program and writes its exit code; nothing shows that wandb failed",
        next=("read the program's own traceback, or the file output.log of the run (wandb/latest-run/files)",),
        tier=Tier.VAGUE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "wandb: Waiting for W&B process to finish... (failed -1)",
                source="nv-tlabs/NKSR#47",
            ),
            Example(
                "wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.",
                says=("exit code 1",),
            ),
        ),
        knowledge="Weights & Biases: exit codes of runs",
    ),
)


ENTRIES = (
    *TEXTS,
    Failure(
        id="processes.signal",
        kind=LogClass.SIGNAL,
        what="A signal ended a process of the job.",
        when=lambda case: case.kind is LogClass.SIGNAL,
        headline=signal,
        sentence=signal,
        why="a signal ends a process without a Python exception",
        next=(_for_signal,),
    ),
    Failure(
        id="processes.exit_code",
        kind=LogClass.EXIT_CODE,
        what="Only the exit code of a rank is known.",
        when=lambda case: case.kind is LogClass.EXIT_CODE,
        headline=exit_code,
        sentence=exit_code,
        why="",
        next=(
            lambda case: (
                f"read the stderr of {who(case.ranks, 'the failed rank')}; start torchrun with `--log-dir logs"
                " --tee 3`, and wrap main() in `torch.distributed.elastic.multiprocessing.errors.record`"
            ),
        ),
        tier=Tier.EXIT_CODE,
    ),
    Failure(
        id="processes.time_limit",
        kind=LogClass.TIME_LIMIT,
        what="The scheduler ended the job at its time limit.",
        when=lambda case: case.kind is LogClass.TIME_LIMIT,
        headline=time_limit,
        sentence=time_limit,
        why="the job was still running when its time was used up",
        next=(
            (
                "ask for more time, or save checkpoints more often and resume. With Slurm's `--signal=USR1@120` the"
                " script gets SIGUSR1 about 120 s before the limit: let a handler save there, because without one the"
                " signal ends the process"
            ),
        ),
        tier=Tier.STOPPED,
    ),
    Failure(
        id="processes.terminated",
        kind=LogClass.TERMINATED,
        what="The scheduler, a user or a closing shell ended the job.",
        when=lambda case: case.kind is LogClass.TERMINATED,
        headline=terminated,
        sentence=terminated,
        why="such a signal comes from outside these processes: from a scheduler, a user, a shell that ends, or a program that"
        " started them and stops them because another part of the job failed",
        next=(_for_terminated,),
        tier=Tier.STOPPED,
    ),
    Failure(
        id="processes.unknown",
        kind=LogClass.UNKNOWN,
        what="The job ended, and its logs do not show why.",
        when=lambda case: case.kind is LogClass.UNKNOWN,
        headline=unknown,
        sentence=unknown,
        why="",
        next=(_for_unknown,),
        tier=Tier.VAGUE,
    ),
)
