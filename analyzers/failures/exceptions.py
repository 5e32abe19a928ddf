"""Exceptions and CUDA errors that no other entry knows."""

import re

from analyzers.case.facts import CUT_OFF, EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, place, quoted, shortened, who
from analyzers.failures.entry import Advice, Failure
from analyzers.failures.versions import caller, innermost
from analyzers.report import LONGEST_HEADLINE, shortened_headline
from analyzers.words import rank_names, source_line


def crashed(case: Case) -> str:
    """Return the title for an exception, or for an error of a CUDA kernel."""
    lead = case.lead
    if lead.kind is EventKind.CUDA_ERROR:
        return cuda_error(case)
    return (
        f"{who(case.ranks)} failed with {quoted(lead)}{_asserted(case)}{_continued(case)}{place(lead)}{at_step(lead)}"
    )


_OTHERS = ("During handling", "The above exception", "Traceback", "File ", "Exception ")
"""The beginnings of lines that do not continue a message."""


def _asserted(case: Case) -> str:
    """Return the condition of an assertion without a message, from the line of code above it; empty for others."""
    rest = case.lead.details.strip()
    if not _BARE_ASSERTION.match(case.lead.headline) or (rest and not rest.startswith(_OTHERS)):
        return ""
    lines = case.lead.excerpt.splitlines()
    conditions = (match[1] for line in lines if (match := _ASSERTED.search(line)))
    return next((f": {shortened(condition)}" for condition in list(conditions)[-1:]), "")


def _continued(case: Case) -> str:
    """Return the next line of a message whose first line ends in a colon; empty for others."""
    rest = next((line.strip() for line in case.lead.details.splitlines() if line.strip()), "")
    is_announced = case.lead.headline.endswith(":") and not rest.startswith(_OTHERS)
    return f" {shortened(rest)}" if rest and is_announced else ""


def cuda_error(case: Case) -> str:
    """Return the title for a CUDA error; if a device-side assertion failed, it names the condition."""
    lead = case.lead
    condition = next(
        (e.facts.name for e in case.failure.events if e.facts.reason is Reason.DEVICE_ASSERT and ".cu:" in e.message),
        "",
    )
    what = f"a CUDA kernel's assertion failed: {condition}" if condition else f"CUDA error: {lead.facts.name}"
    if _is_caught(case):
        whose = f" on {rank_names(case.ranks)}" if case.ranks else ""
        return f"{what}{whose}{at_step(lead)}; the program caught it, but the CUDA context is unusable afterwards"
    where = f", reported{place(lead)}" if lead.source else ""
    return f"{who(case.ranks)} failed: {what}{where}{at_step(lead)}"


def _is_caught(case: Case) -> bool:
    """Return whether the program itself printed the CUDA errors of a cause, which means that it had caught them."""
    errors = [event for event in case.failure.events if event.kind is EventKind.CUDA_ERROR]
    return bool(errors) and all(event.facts.caught and not event.source for event in errors)


# DistributedDataParallel raises this where two backward passes reach a parameter, not where none does.
_READ_TRACEBACK = "look in the log for the traceback of this exception, and for the lines above it"
_READ_FRAMES = "read the frames above the exception in the log: the last one of your own code is where to start"
_FRAMES = re.compile(r"^\s*-{2,4}>\s*\d|\.py(?:\x22, line |:)\d", re.MULTILINE)
_ASSERTED = re.compile(r"^[^\w]*(?:\[?rank\d+\]?:)?[\s\d>-]*(assert\s.{2,300}?)\s*$")
_BARE_ASSERTION = re.compile(r"^AssertionError:?\s*$")
_READY_TWICE = "mark a variable ready only once"


_RECOMPUTED = (
    "pass `use_reentrant=False` to torch.utils.checkpoint, because reentrant recomputation of a layer that is used"
    " twice reaches its parameters twice. If nothing is recomputed, use the parameters only within the wrapped"
    " forward(), or pass `static_graph=True` to DistributedDataParallel if all steps have the same graph"
)


_NOT_IMPORTED = (
    "install the module in the environment that this rank uses, or, if it is a file of your project, add its folder to"
    " PYTHONPATH there. If other ranks import it, compare `python -c 'import sys; print(sys.executable, sys.path)'` on"
    " their nodes and on that of this rank"
)


_BLOCKING = "run once with CUDA_LAUNCH_BLOCKING=1, so that the traceback points to the failing kernel"
_STABILITY = (
    "look for Xid in `dmesg -T | grep -i xid`, and test the GPU without overclocking, with a power limit (nvidia-smi -pl), or another"
    " GPU and driver: an error that comes at random after many good steps is most often hardware or driver"
)
_CUDA_ERRORS = {
    "illegal instruction": f"{_STABILITY}. If it comes at once and always: {_BLOCKING}; a kernel was built for another GPU, or is faulty",
    "unspecified launch failure": f"{_STABILITY}. If it comes always at the same place: {_BLOCKING}; suspect custom kernels first",
    "launch timed out": "the system ended a kernel that ran too long on a GPU with a display: on Windows raise TdrDelay (registry,"
    " GraphicsDrivers) and reboot, on Linux use a GPU without a display; or make the kernel's work smaller (batch, sequence)",
    "misaligned address": f"{_BLOCKING}, or under compute-sanitizer; a custom or fused kernel (attention, optimizer, Triton) reads at"
    " an address that is not a multiple of its vector: try without it, or with sizes that are multiples of 8",
    "invalid resource handle": "most often a stream, event or handle of another device or process is used: call"
    " torch.cuda.set_device(local_rank) before anything else on the GPU, and do not share them with forked"
    " processes",
    "driver shutting down": "something used the GPU while the process was ending (a thread, a destructor, a communicator): join"
    " threads and loaders, and call torch.distributed.destroy_process_group() before the end of main(). If the"
    " training had not ended, look for what ended the process",
    "too many resources requested": "a kernel needs more registers or shared memory than this GPU gives to one block: update PyTorch or the"
    " extension, build it for this GPU (TORCH_CUDA_ARCH_LIST), and in own kernels use fewer threads per block or __launch_bounds__",
    "invalid configuration argument": f"{_BLOCKING}: a kernel was started with no block, or with too many: most often a tensor there is empty, or "
    "a dimension (batch times heads, rows) is above 65535; print the shapes, and make the batch smaller",
    "operation not supported": "this GPU, driver or system lacks the feature: tensors of the GPU cannot be sent to another process on"
    " Windows (move them to the CPU first, or num_workers=0), and on a vGPU, in WSL or on Jetson leave out expandable_segments in"
    " PYTORCH_CUDA_ALLOC_CONF, and try NCCL_P2P_DISABLE=1",
    "not supported on this OS": "tensors of the GPU cannot be sent to another process here (Windows, WSL): move them to the CPU first, or use"
    " one process; in a container start it with --ipc=host",
    "mapping of buffer object failed": "memory of another GPU or process could not be mapped: move tensors to the CPU before they are sent"
    " to another process, and try NCCL_P2P_DISABLE=1; `nvidia-smi topo -p2p r` shows which GPUs can reach each other",
    "peer access has not been enabled": "two GPUs cannot reach each other's memory directly: try NCCL_P2P_DISABLE=1, and call"
    " torch.cuda.set_device(local_rank) before anything else on the GPU; `nvidia-smi topo -p2p r` shows the pairs",
    "named symbol not found": "most often the driver and the libraries that the program or container got do not fit: update the driver"
    " and restart; in Docker Desktop on Windows update Docker Desktop as well, and `wsl --update`; a kernel"
    " that is not in its module says this too",
    "invalid device function": "a kernel was not compiled for this GPU: rebuild the extension with TORCH_CUDA_ARCH_LIST of"
    " torch.cuda.get_device_capability(), or install a PyTorch that lists it in torch.cuda.get_arch_list()",
}
"""{words of a CUDA error: what to do first}."""


_ATTENTION = re.compile(r"\b(xformers|flash_attn|sageattention)\b")


def _by_cuda_error(name: str) -> str:
    """Return what to do about a CUDA error whose name says more than that a kernel failed; empty for others."""
    return next((advice for words, advice in _CUDA_ERRORS.items() if words in name), "")


def _for_crash(case: Case) -> str:
    """Return what to do about an exception.

    After a CUDA error the text says how to find the line that caused it, because another line reports the error. If an
    error of this project has a hint, the hint is repeated.
    """
    if case.lead.kind is EventKind.CUDA_ERROR:
        if "invalid argument" in (case.lead.facts.name or ""):
            if kernel := _ATTENTION.search(case.lead.excerpt):
                return (
                    f"a kernel of {kernel[1]} refused what it was given (head size, length or GPU): update {kernel[1]}, or turn it off"
                    " (attn_implementation='sdpa' or 'eager', no --xformers), and see whether it runs then"
                )
            return (
                "look at the call of CUDA in the frames of the traceback, and what it is given: a size, pinned or"
                " registered host memory (a limit of the system, `ulimit -l`), or a stream or tensor of another device"
            )
        if case.reason is not Reason.DEVICE_ASSERT and (advice := _by_cuda_error(case.lead.facts.name or "")):
            return advice
        suspects = (
            "check indices and labels against the sizes that they index"
            if case.reason is Reason.DEVICE_ASSERT
            else "suspect custom kernels first, then indices out of range"
        )
        return f"{_BLOCKING}, or under compute-sanitizer; {suspects}"
    if case.lead.facts.hint:
        return case.lead.facts.hint
    if "No module named" in case.lead.message:
        return _NOT_IMPORTED
    if _READY_TWICE in case.lead.message:
        return _RECOMPUTED
    if remedy := _remedy_in(case):
        return f"the message itself says what to do: {remedy}"
    if name := _empty_list(case):
        return (
            f"the failing line takes the first item: {name} is empty. Find what fills it: paths or a pattern that match no file on this"
            " machine or node, a filter that leaves nothing"
        )
    look = _look_for(case)
    shown = _READ_FRAMES if _FRAMES.search(case.lead.excerpt) else _READ_TRACEBACK
    where = _OPEN_LINE.format(look=look) if place(case.lead) else shown + look.replace(", and ", "; there, ")
    return f"{where}{_about_package(case)}"


_OPEN_LINE = "open the line that the title names{look}"
_FIRST_OF = re.compile(r"\b([A-Za-z_][\w.]*)\[0\]")


def _empty_list(case: Case) -> str:
    """Return which lists of the failing line may be empty, if the first item of one is out of range; else an empty text."""
    if "list index out of range" not in case.lead.headline:
        return ""
    code = _code(case)
    names = list(dict.fromkeys(_FIRST_OF.findall(code)))
    return " or ".join(names) if set(re.findall(r"\[([^\[\]]*)\]", code)) == {"0"} else ""


_LOOKS = (
    (
        re.compile(r"positional argument|multiple values for argument|unexpected keyword argument"),
        ", and compare the call with the `def` of the function (self counts as one argument); in a cloned project its files may"
        " be of two versions (git status, git pull)",
    ),
    (
        re.compile(r"^(?:\w+\.)*AttributeError: '(?!NoneType|module)\w+' object has no attribute"),
        ", and see where the class of that object sets the attribute: in __init__, in a base class whose __init__ is not called, or"
        " not at all",
    ),
    (re.compile(r"^(?:\w+\.)*AxisError\b"), ", and print the shapes just before it"),
    (re.compile(r"(?i)\b(?:size|shape|dimension|elements?|length)s?\b"), ", and print the shapes just before it"),
    (re.compile(r"^(?:\w+\.)*KeyError\b"), ", and print the keys that are there"),
    (
        re.compile(r"^(?:\w+\.)*IndexError\b|out of (?:range|bounds)"),
        ", and print the index and the length just before it",
    ),
    (
        re.compile(r"^(?:\w+\.)*NotImplementedError:?\s*$"),
        ", and see which cases that function handles: what it was given (a name, a type, a class) is none of them",
    ),
    (re.compile(r"^(?:\w+\.)*AssertionError\b"), ", and print what its condition compares"),
    (re.compile(r"'?NoneType'?"), ", and find out why the value is None: what returned it, or did not set it"),
    (re.compile(r"(?i)\b(?:dtype|scalar type|Float|Half|BFloat16|Long)\b"), ", and print the dtypes just before it"),
)
"""What to look at in the line that raised an exception of some kind."""
_OF_VERSIONS = re.compile(r"^(?:\w+\.)*(?:TypeError|AttributeError|ImportError|NotImplementedError|NameError)\b")


def _look_for(case: Case) -> str:
    """Return what to look at in the line of an exception, by its class and words."""
    head = case.lead.headline
    return next((look for pattern, look in _LOOKS if pattern.search(head)), "")


def _about_package(case: Case) -> str:
    """Return advice on the package that raised an exception; empty if none did."""
    package = caller(case)
    if not package:
        return ""
    if _OF_VERSIONS.match(case.lead.headline) and "NoneType" not in case.lead.headline:
        return (
            f". Such an error inside {package} is most often one of versions: compare `pip show {package}` with what the"
            " project asks for (its requirements or README)"
        )
    return f". It was raised inside {package}: look for the message among its issues, with the version of `pip show {package}`"


_BARE = re.compile(
    r"^(?:\w+\.)*(?:KeyError: \S+|IndexError: [\w ]+|StopIteration|ZeroDivisionError: [\w ]+|\w+(?:Error|Exception):?)\s*$"
)


_PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|\([\w.:]{1,80} pid=\d+[^)\n]{0,60}\))")


def _code(case: Case) -> str:
    """Return the line of code that raised an exception whose message says little, as the traceback shows it; else empty."""
    if not _BARE.match(case.lead.headline):
        return ""
    lines = [_PREFIX.sub("", line).strip() for line in case.lead.excerpt.splitlines()]
    head = case.lead.headline.strip()
    at = next((n for n, line in enumerate(lines) if line.endswith(head)), 0)
    code = [line for line in lines[max(0, at - 2) : at] if line.strip("^~ |.")]
    return code[-1] if code and not code[-1].startswith(("File ", "assert ", "raise ")) else ""


_NO_MESSAGE = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt):?\s*$")
_COMPLAINT = re.compile(r"\bERROR\b|\b[Ee]rror:|(?i:not found|no such|does not exist|no \w+ found)")


def _said_before(case: Case) -> str:
    """Return the line with a complaint that stands just above the traceback of an exception without a message."""
    if not _NO_MESSAGE.match(case.lead.headline) or case.lead.details.strip():
        return ""
    above = case.lead.excerpt.partition("Traceback (most recent call last)")[0].splitlines()
    return next((" ".join(line.split()) for line in reversed(above[-4:]) if _COMPLAINT.search(line)), "")


def _why_other(case: Case) -> str:
    """Return what else is known of an exception: what was printed or raised before it, and where in which package."""
    if case.lead.kind is not EventKind.EXCEPTION:
        return ""
    package, code = caller(case), _code(case)
    first = next((text.strip().splitlines()[0] for text in case.lead.chain if text.strip()), "")
    before = f"the first exception of its traceback is {shortened(first)}" if first else ""
    if said := _said_before(case):
        before = f"the line above the traceback: {shortened(said)}"
    inside = f"the line of code that raised it: {shortened(code)}" if code and case.lead.calls else ""
    if package:
        inside = f"it was raised inside {package}"
        if innermost(case):
            file, line, function = innermost(case).rsplit(":", 2)
            inside += f", in {function} ({source_line(file, int(line))})" + (f": {shortened(code)}" if code else "")
    return "; ".join(filter(None, (before, inside)))


_REMEDY = re.compile(
    r"(?:^|(?<=[.!?;:\n])\s*)((?:(?:\S[^.\n]{0,80}\s)?(?:[Pp]lease|[Yy]ou (?:can|should|may want to|need to|must)"
    r"|[Mm]ake sure|[Cc]onsider|[Tt]o (?:fix|avoid|resolve|enable|disable|prevent|silence|allow)|[Ii]nstead,? use)"
    r"|[Tt]ry|[Uu]se|[Ss]et|[Cc]all|[Pp]ass|[Ii]nstall|[Ii]ncrease|[Dd]ecrease|[Rr]aise|Check|Ensure|Verify|Upgrade|Reinstall"
    r"|Specify|Provide)\s[^\n]{10,300}?)"
    r"(?=[.!](?:\s|$)|\n|$)"
)
"""Matches a sentence of a message that says what to do."""
_NO_REMEDY = re.compile(
    r"(?i)report (?:a bug|this|an issue)|file an? (?:issue|bug)|refer to|see (?:the )?documentation|pastebin|HYDRA_FULL_ERROR"
)


_FOR_AUTHORS = re.compile(
    r"FakeTensor|\baten\.|torch\._(?:dynamo|inductor|functorch)\b(?!\.config)|__torch_(?:dispatch|function)__"
)
"""Matches messages that speak to authors of libraries: what they say to do is nothing for a user."""


def _remedy_in(case: Case) -> str:
    """Return the sentence of an exception's message that says what to do; empty without one."""
    text = f"{case.lead.message}\n{case.lead.details}"
    if _FOR_AUTHORS.search(text):
        return ""
    found = (match[1].strip() for match in _REMEDY.finditer(text) if not _NO_REMEDY.search(match[1]))
    return next(found, "")


def _named(case: Case) -> str:
    """Return the class and the text of an exception, without the package of the class, after the rank that raised it."""
    name, _, rest = f"{quoted(case.lead)}{_asserted(case)}".partition(": ")
    short = name.rpartition(".")[2] if re.fullmatch(r"[\w.]+", name) else name
    rest = rest or next((line.strip() for line in case.lead.details.splitlines() if line.strip()), "")
    whose = f"{who(case.ranks)}: " if case.ranks else ""
    text = f"{whose}{short}: {rest}" if rest else f"{whose}{short}"
    return text if len(text) <= LONGEST_HEADLINE else text[: LONGEST_HEADLINE - 1].rpartition(" ")[0] + "…"


_CUT = "the last line of a traceback, which names its exception, is missing"


def _cut_off(case: Case) -> str:
    """Return the headline for a traceback whose last line is missing."""
    if case.quote:
        return shortened_headline(case.quote)
    function = case.lead.calls[-1].rpartition(":")[2] if case.lead.calls else ""
    where = f" in {function}" if function else ""
    return f"{who(case.ranks)} failed{where}; the line that names the exception is missing"


ENTRIES = (
    Failure(
        id="exceptions.cuda",
        kind=LogClass.CRASHED,
        what="A kernel of CUDA failed; the error is reported later, at another line.",
        when=lambda case: case.kind is LogClass.CRASHED and case.lead.kind is EventKind.CUDA_ERROR,
        headline=crashed,
        sentence=crashed,
        why="a kernel runs beside the program, so the line that reports its error need not be the one that started it",
        next=(_for_crash,),
        tier=Tier.NATIVE_CRASH,
    ),
    Failure(
        id="exceptions.cut_off",
        kind=LogClass.CRASHED,
        what="A traceback that ends before the line that names its exception.",
        when=lambda case: case.kind is LogClass.CRASHED and case.lead.message == CUT_OFF,
        headline=_cut_off,
        sentence=lambda case: (
            f"{_CUT}{place(case.lead)}; a line of the log that looks like an error reads: {case.quote}"
            if case.quote
            else f"{_cut_off(case)}{place(case.lead)}{at_step(case.lead)}"
        ),
        why="",
        next=(
            Advice(
                "start with the quoted line: it was printed by itself, and may be the cause",
                lambda case: bool(case.quote),
            ),
            "copy the log to its end, or look in the log of this rank: the line after the last frame names the exception",
            Advice(
                "the frames show a process of spawn that imports the main file again: put the start of that file under"
                " if __name__ == '__main__':, or set num_workers=0",
                lambda case: case.called(r"_fixup_main_from_path"),
            ),
        ),
    ),
    Failure(
        id="exceptions.other",
        kind=LogClass.CRASHED,
        what="An exception that the program did not catch, and that the catalogue does not know.",
        when=lambda case: case.kind is LogClass.CRASHED,
        headline=_named,
        sentence=crashed,
        why=_why_other,
        next=(_for_crash,),
    ),
)
