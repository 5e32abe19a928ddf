"""Find what keeps the tensors that each step leaves: the list, dict, attribute, closure or graph that refers to them.

`HolderSearch` looks at a few ends of steps. What was allocated between two of them and still lives at the third is kept
by something; Python's garbage collector knows by what. Nothing of the script is called, nothing is kept but numbers and
weak references, and an examination that takes too long is given up.
"""

import ctypes
import dis
import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MemberDescriptorType, TracebackType
from typing import Any, NamedTuple, TypedDict, TypeGuard, TypeVar
from weakref import ref

import torch
from torch import nn

from workbench.recorders.files import RankInfo
from workbench.recorders.memory.live_tensors import described, grad_fn_of, graph_of, live_tensors, saved_by, size_of
from workbench.recorders.own_files import harmless, save_json

_FIRST_STEPS, _FACTOR, _EXAMINATIONS = (4, 6, 8, 10), 1.5, 16
"""The examined steps: the first ones, each next one by this factor later, and at most so many in all."""
_BUDGET_S, _BUDGET_OF_GRAPH_S, _SLOW_S = 0.2, 0.1, 1.0
"""The processor time for what an examination looks up, and that of an examination after which no other is made."""
_PASSES, _BUDGET_AT_MOST_S = 8, 0.5
"""A process with many objects may take longer, up to this time, so that so many passes over them are possible."""
_CARRIED = 0.8
_NODES, _NODES_OF_TENSOR = 20_000, 5_000
_KNOWN_AT_MOST, _SAMPLE, _ROOTS = 100_000, 512, 16
_LEVELS, _WIDTH, _MANY = 12, 64, 4
_LINES, _FUNCTIONS = 3, 200
_RECORDERS = str(Path(__file__).resolve().parents[1])
_CACHE = type(lru_cache(lambda: None))
_Kind = TypeVar("_Kind")
_ADDING = {"append", "appendleft", "extend", "add", "insert", "setdefault", "update"}


class HolderEntry(TypedDict, total=False):
    """One entry of the list `holders` in the file; see the page on the run folder for what its fields mean."""

    name: str
    scope: str
    kind: str
    where: str
    file: str
    line: int
    added_at: list[str]
    length: int
    first_length: int
    first_step: int
    step: int
    limit: int | None
    tensor: str
    tensor_bytes: int
    saved_bytes: int
    graph: str
    graph_nodes: int
    via: list[str]


class _Name(NamedTuple):
    """The name by which a script knows an object; `codes` may contain the lines that use it."""

    text: str
    scope: str
    where: str
    file: str
    variable: str
    codes: list[CodeType]


class HolderSearch:
    """Looks at a few ends of steps for tensors that are kept, and writes to a file what keeps them.

    The file is `folder`/rankR_holders.json. Call `step_ended` at the end of each step; it costs a comparison of
    numbers, except at the few steps that are examined.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = 0
        self._due = _FIRST_STEPS[0]
        self._examined: list[dict[str, float]] = []
        self._known: dict[int, ref[torch.Tensor]] = {}
        self._new: list[ref[torch.Tensor]] = []
        self._holders: dict[str, HolderEntry] = {}

    def step_ended(self, step: int) -> None:
        """Note that a step has ended, and examine the tensors that are alive if this is one of the few steps for it."""
        self._steps += 1
        if self._steps == self._due:
            self._due = next((n for n in _FIRST_STEPS if n > self._steps), int(self._steps * _FACTOR))
            self._examine(step)

    @harmless
    def _examine(self, step: int) -> None:
        began = time.thread_time()
        tensors = [tensor for tensor in live_tensors() if not _is(tensor, nn.Parameter)]
        roots = [tensor for tensor in tensors if grad_fn_of(tensor) is not None]
        nodes = sum(1 for _ in graph_of(roots, _NODES))
        kept = [tensor for known in self._new if (tensor := known()) is not None]
        pass_s = time.thread_time() - began
        self._examined.append({"step": step, "tensors": len(tensors), "graph_nodes": nodes})
        found: list[HolderEntry] = []
        search = _Search(max(_BUDGET_S, min(_PASSES * pass_s, _BUDGET_AT_MOST_S)), pass_s, own=[tensors, roots, kept])
        if kept and self._rises("tensors"):
            for group in _groups(kept)[:2]:
                found += search.holder_of(group)
        if self._rises("graph_nodes") and not any("graph" in entry for entry in found):
            found += search.holder_of_graph(roots)
        for entry in found:
            self._add(entry, step)
        # An id may be that of a tensor which has died, so that only a weak reference says which ones are new.
        known = {id(tensor): self._reference(tensor) for tensor in tensors[:_KNOWN_AT_MOST]}
        fresh = [reference for at, reference in known.items() if self._known.get(at) is not reference]
        self._known, self._new = known, fresh[:: 1 + len(fresh) // _SAMPLE]
        del tensors, roots, kept
        took = time.thread_time() - began
        self._examined[-1]["milliseconds"] = round(1000 * took, 1)
        if took > _SLOW_S or len(self._examined) >= _EXAMINATIONS:
            self._due = -1
        self._write()

    def _reference(self, tensor: torch.Tensor) -> ref[torch.Tensor]:
        """Return the weak reference to a tensor of the examination before, or a new one."""
        known = self._known.get(id(tensor))
        return known if known is not None and known() is tensor else ref(tensor)

    def _rises(self, what: str) -> bool:
        """Return whether a number rose from examination to examination, the last three times."""
        last = [examined[what] for examined in self._examined[-3:]]
        return len(last) == 3 and last[0] < last[1] < last[2]

    def _add(self, entry: HolderEntry, step: int) -> None:
        known = self._holders.get(entry["name"])
        entry["step"] = step
        entry["first_length"] = known["first_length"] if known else entry["length"]
        entry["first_step"] = known["first_step"] if known else step
        self._holders[entry["name"]] = entry

    def _write(self) -> None:
        rank = RankInfo.here().rank
        content = {
            "schema": "workbench.holders/1",
            "rank": rank,
            "examinations": self._examined,
            "holders": list(self._holders.values()),
        }
        save_json(self._folder / f"rank{rank}_holders.json", content)


def _frames_of_script() -> list[FrameType]:
    """Return the frames that run in all threads, without our own, the innermost of each thread first."""
    frames: list[FrameType] = []
    running: FrameType | None = None
    innermost = list(sys._current_frames().values())  # noqa: SLF001
    while innermost:
        running = innermost.pop()
        while running is not None:
            if not running.f_code.co_filename.startswith(_RECORDERS):
                frames.append(running)
            running = running.f_back
    # No variable refers to this function's own frame now: it would keep what its callers look at alive.
    return frames


def _groups(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors by type, dimensions and whether they have a graph, those with the most bytes first."""
    groups: dict[tuple[object, ...], list[torch.Tensor]] = {}
    weights: dict[tuple[object, ...], int] = {}
    for tensor in tensors:
        key = type(tensor), described(tensor).count(","), grad_fn_of(tensor) is None
        groups.setdefault(key, []).append(tensor)
        weights[key] = weights.get(key, 0) + size_of(tensor) + (0 if key[2] else _saved_bytes(tensor, 50))
    return [groups[key] for key in sorted(groups, key=lambda key: -weights[key])]


def _saved_bytes(tensor: torch.Tensor, nodes: int) -> int:
    """Return the bytes that the graph of a tensor keeps for a backward pass, without those of parameters."""
    sizes = {
        id(saved): size_of(saved)
        for node in graph_of([tensor], nodes)
        for saved in saved_by(node)
        if not _is(saved, nn.Parameter)
    }
    return sum(sizes.values())


class _Search:
    """The search of one examination: it may take `seconds`; a pass over all objects takes about `pass_s`."""

    def __init__(self, seconds: float, pass_s: float, own: list[Any]) -> None:
        self._until, self._pass_s = time.thread_time() + seconds, pass_s
        self._keys: dict[int, tuple[str, str]] = {}
        self._cells: set[int] = set()
        self._cache: Any = None
        self._ours = {id(each) for each in (own, *own)}
        self._modules = {id(_dict_of(module)) for module in list(sys.modules.values())}
        self._variables: dict[int, tuple[FrameType, str]] = {}
        self._codes: list[FrameType] = []
        for frame in _frames_of_script():
            self._codes.append(frame)
            for name, value in _variables_of(frame):
                self._variables.setdefault(value, (frame, name))

    def holder_of(self, kept: list[torch.Tensor]) -> list[HolderEntry]:
        """Return what keeps some of the tensors, and so probably all; empty if nothing is found in time."""
        # Of different steps: what refers to several tensors of one step need not be what keeps those of all.
        targets: list[Any] = list({id(kept[at]): kept[at] for at in (0, len(kept) // 2, -1)}.values())
        self._ours |= {id(kept), id(targets)}
        found = self._common(targets)
        if found is None:
            return []
        holder, via = found
        name = self._name(holder)
        if name is None:
            return []
        return [self._entry(self._cache or holder, name, via, targets[-1])]

    def holder_of_graph(self, roots: list[torch.Tensor]) -> list[HolderEntry]:
        """Return the variable that refers to the tensor with the largest graph; empty if there is none."""
        self._ours.add(id(roots))
        self._until += _BUDGET_OF_GRAPH_S
        sizes = {at: sum(1 for _ in graph_of([root], _NODES_OF_TENSOR)) for at, root in enumerate(roots[:_ROOTS])}
        if not sizes:
            return []
        # What is carried from step to step has the smallest of the large graphs: a loss computed from it adds to it.
        carried = min((size, at) for at, size in sizes.items() if size >= _CARRIED * max(sizes.values()))
        tensor = roots[carried[1]]
        name = self._name(tensor)
        if name is None:
            return []
        entry = self._entry(tensor, name, [], tensor)
        return [{**entry, "kind": "graph", "length": carried[0], "graph_nodes": carried[0]}]

    def _referrers(self, objects: list[Any]) -> list[Any]:
        """Return what refers to one of the objects; empty if there is no time for another pass over all objects."""
        if time.thread_time() + self._pass_s > self._until:
            return []
        began = time.thread_time()
        self._ours.add(id(objects))
        found = gc.get_referrers(*objects)
        self._pass_s = time.thread_time() - began
        self._ours.add(id(found))
        return [each for each in found if id(each) not in self._ours][:_WIDTH]

    def _common(self, targets: list[Any]) -> tuple[Any, list[str]] | None:
        """Return the nearest object from which two of the targets are reached, and the kinds of objects between them.

        Of a single target, it is the nearest container of several objects.
        """
        wanted = min(2, len(targets))
        reached: dict[int, set[int]] = {id(target): {number} for number, target in enumerate(targets)}
        via: dict[int, tuple[str, ...]] = {id(target): () for target in targets}
        level, seen = list(targets), [targets]
        for _ in range(_LEVELS):
            following, common = [], []
            for found in self._referrers(level):
                if id(found) in self._modules:
                    continue
                inside = {id(each) for each in gc.get_referents(found)}
                below = [each for each in level if id(each) in inside]
                if not below:
                    continue
                is_new = id(found) not in reached
                reached.setdefault(id(found), set()).update(*(reached[id(each)] for each in below))
                via.setdefault(id(found), (*via[id(below[0])], _kind(found)))
                if len(reached[id(found)]) >= wanted and _may_grow(found, alone=wanted == 1):
                    common.append(found)
                following += [found] if is_new else []
            if common:
                # A cache and its dict of entries refer to the same objects.
                holder = next((found for found in common if _is(found, _CACHE)), common[0])
                return holder, list(via[id(holder)][:-1])
            if not following:
                return None
            level = following
            self._ours.add(id(level))
            seen.append(level)
            self._ours.add(id(seen))
        return None

    def _name(self, holder: Any) -> _Name | None:
        """Return the nearest name that leads to an object: of a variable, an attribute, a closure or a cache."""
        if _is(holder, _CACHE):
            return self._function_name(holder.__wrapped__, "cache")
        level: list[tuple[Any, str]] = [(holder, "")]
        seen = {id(holder)}
        for _ in range(_LEVELS):
            for each, path in level:
                if id(each) in self._variables:
                    frame, name = self._variables[id(each)]
                    return self._variable_name(frame, name, path)
            objects = [each for each, _ in level]
            following: list[tuple[Any, str]] = []
            self._ours |= {id(level), id(following), id(objects), *map(id, level)}
            for found in self._referrers(objects):
                if id(found) in seen:
                    continue
                seen.add(id(found))
                inside = {id(each) for each in gc.get_referents(found)}
                for each, path in level:
                    if id(each) not in inside:
                        continue
                    edge = self._edge(found, each, path)
                    if isinstance(edge, _Name):
                        return edge
                    following.append((found, edge))
                    self._ours.add(id(following[-1]))
                    break
            level = following
            if not level:
                return None
        return None

    def _edge(self, found: Any, each: Any, path: str) -> "_Name | str":
        """Return the name of `each`, to which `found` refers, or the path from `found` on if it has no name there."""
        if id(found) in self._modules:
            return self._global_name(found, each, path)
        if _is(found, dict):
            key = next((key for key, value in list(dict.items(found)) if value is each), None)
            if _is(key, str):
                self._keys[id(found)] = key, path
            return f"[{key!r}]{path}" if _is(key, str, int) else f"[...]{path}"
        if _is(found, list, tuple, deque, set):
            return f"[...]{path}" if path else path
        if _is(found, FunctionType):
            cells = found.__closure__ or ()
            for variable, cell in zip(found.__code__.co_freevars, cells, strict=False):
                if id(cell) in self._cells:
                    codes = [found.__code__, *(frame.f_code for frame in self._codes)]
                    where = f"closure of {found.__qualname__}"
                    return _Name(variable + path, "closure", where, found.__code__.co_filename, variable, codes)
            return path
        if _is(found, CellType):
            self._cells.add(id(found))
        if _is(found, CellType, FrameType, TracebackType, BaseException):
            return path
        if _is(found, _CACHE):
            self._cache = found
            return self._function_name(found.__wrapped__, "cache") or path
        if id(each) in self._keys and (_is(found, type) or _dict_of(found) is each):
            variable, rest = self._keys[id(each)]
            return self._attribute_name(found if _is(found, type) else type(found), variable, rest)
        for attribute in _attributes_with(found, each):
            return self._attribute_name(type(found), attribute, path)
        return path

    def _variable_name(self, frame: FrameType, variable: str, path: str) -> _Name:
        code = frame.f_code
        return _Name(variable + path, "local", code.co_qualname, code.co_filename, variable, [code])

    def _global_name(self, module: dict[str, Any], each: Any, path: str) -> _Name:
        variable = next((name for name, value in list(module.items()) if value is each), "?")
        running = [frame.f_code for frame in self._codes if frame.f_globals is module]
        functions = [value.__code__ for value in list(module.values())[:_FUNCTIONS] if _is(value, FunctionType)]
        file = module.get("__file__")
        file = file if _is(file, str) else next((code.co_filename for code in running), "")
        whole = [code for code in running if code.co_name == "<module>"]
        return _Name(
            variable + path, "global", str(module.get("__name__")), file, variable, [*whole, *running, *functions]
        )

    def _attribute_name(self, owner: type, variable: str, path: str) -> _Name:
        codes = [
            value.__code__
            for kind in owner.__mro__[:3]
            for value in islice(vars(kind).values(), _FUNCTIONS)
            if _is(value, FunctionType)
        ]
        file = codes[0].co_filename if codes else ""
        codes += [frame.f_code for frame in self._codes]
        return _Name(f"{owner.__qualname__}.{variable}{path}", "attribute", owner.__qualname__, file, variable, codes)

    def _function_name(self, function: Any, scope: str) -> _Name | None:
        if not _is(function, FunctionType):
            return None
        code = function.__code__
        return _Name(function.__qualname__, scope, function.__qualname__, code.co_filename, "", [code])

    def _entry(self, holder: Any, name: _Name, via: list[str], tensor: torch.Tensor) -> HolderEntry:
        stored = next(_lines_with(name.codes, name.variable, _stores), None) if name.variable else None
        line = stored[1] if stored else name.codes[0].co_firstlineno if name.codes and name.scope != "global" else 0
        file = stored[0] if stored else name.file
        added = islice(dict.fromkeys(_lines_with(name.codes, name.variable, _adds)), _LINES) if name.variable else ()
        entry: HolderEntry = {
            "name": name.text[:200],
            "scope": name.scope,
            "kind": _kind(holder),
            "where": name.where[:200],
            "file": file[:1000],
            "line": line,
            "added_at": [f"{Path(path).name}:{at}"[:200] for path, at in added],
            "length": _length(holder),
            "limit": _limit(holder),
            "tensor": described(tensor)[:200],
            "tensor_bytes": size_of(tensor),
            "via": list(dict.fromkeys(via))[:8],
        }
        if (node := grad_fn_of(tensor)) is not None:
            entry["graph"] = type(node).__name__
            entry["saved_bytes"] = _saved_bytes(tensor, _NODES_OF_TENSOR)
        return entry


def _is(found: object, *kinds: type[_Kind]) -> TypeGuard[_Kind]:
    """Return whether an object is of one of some types; `isinstance` would ask the script's class, too."""
    return issubclass(type(found), kinds)


def _kind(holder: Any) -> str:
    if _is(holder, _CACHE):
        return "lru_cache"
    if _is(holder, FrameType):
        return "frame"
    if _is(holder, BaseException):
        return "exception"
    if _is(holder, GeneratorType):
        return "generator"
    return type(holder).__qualname__[:100]


def _may_grow(holder: Any, *, alone: bool) -> bool:
    """Return whether an object that refers to a tensor may be what grows.

    `alone` is whether nothing shows that it refers to tensors of several steps; then records of a few entries do not
    count.
    """
    if _is(holder, tuple, FrameType, TracebackType, CellType, BaseException):
        return False
    return _is(holder, _CACHE) or not alone or (_is(holder, list, dict, set, deque) and _length(holder) >= _MANY)


def _length(holder: Any) -> int:
    if _is(holder, _CACHE):
        return holder.cache_info().currsize
    kinds: tuple[Any, ...] = (list, dict, set, deque, tuple)
    # Not `len`, which a subclass of the script may define.
    return next((int(kind.__len__(holder)) for kind in kinds if _is(holder, kind)), 1)


def _limit(holder: Any) -> int | None:
    """Return the number of entries that a deque or a cache keeps at most; None if it has no limit."""
    if _is(holder, deque):
        return holder.maxlen
    return holder.cache_info().maxsize if _is(holder, _CACHE) else None


def _dict_of(holder: Any) -> Any:
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return None


def _attributes_with(holder: Any, value: Any) -> Iterator[str]:
    """Yield the attributes of an object in which a value is; no property of the script is called."""
    content = _dict_of(holder)
    if _is(content, dict):
        yield from (name for name, each in list(dict.items(content)) if each is value and _is(name, str))
    for kind in type(holder).__mro__:
        for name, descriptor in list(vars(kind).items()):
            if _is(descriptor, MemberDescriptorType):
                with suppress(AttributeError):
                    if descriptor.__get__(holder) is value:
                        yield name


def _lines_with(codes: Iterable[CodeType], variable: str, shows: Any) -> Iterator[tuple[str, int]]:
    """Yield the file and line of each instruction on a variable that `shows` accepts, also in nested functions."""
    seen: set[int] = set()
    waiting = deque(codes)
    while waiting and len(seen) < _FUNCTIONS:
        code = waiting.popleft()
        if id(code) in seen:
            continue
        seen.add(id(code))
        waiting += [each for each in code.co_consts if _is(each, CodeType)]
        if variable not in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
            continue
        instructions = list(dis.get_instructions(code))
        for at, each in enumerate(instructions):
            if each.argval == variable and shows(each.opname, instructions[at + 1 : at + 8]):
                position = each.positions
                if position and position.lineno:
                    yield code.co_filename, position.lineno


def _stores(operation: str, _following: list[dis.Instruction]) -> bool:
    return operation.startswith("STORE_")


def _adds(operation: str, following: list[dis.Instruction]) -> bool:
    """Return whether an instruction loads a container to which the following ones add something."""
    if not operation.startswith("LOAD_") or not following:
        return False
    for each in following[:5]:
        if each.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            return each.argval in _ADDING
        if each.opname == "STORE_SUBSCR":
            return True
        if not each.opname.startswith(("LOAD_", "BINARY_", "CACHE", "FORMAT_", "BUILD_")):
            return False
    return False


# Say which objects the local variables of a function refer to, without a reference to any of them.
#
# `frame.f_locals` copies the variables of a running function into a dict, which then keeps them alive, and which is the
# one that the function's own calls of `locals()` return (Python 3.11 and 3.12). So the addresses are read where Python
# keeps them; nothing is read unless the words before them show that this is the place. From Python 3.13 on, `f_locals`
# copies nothing.

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FRAME = 3 * _WORD
"""The offset in a frame object, behind its header and the outer frame, of the address of its variables' place."""


class _Layout(NamedTuple):
    """Offsets, in words, in the place of a frame's variables: of its code, its globals and its first variable."""

    code: int
    globals: int
    first: int


_LAYOUTS = {(3, 11): _Layout(4, 1, 9), (3, 12): _Layout(0, 3, 9)}


def _variables_of(frame: FrameType) -> Iterator[tuple[str, int]]:
    """Yield the name of each local variable of a frame, and the `id` of its object, or of the cell that holds it."""
    if sys.version_info >= (3, 13):
        yield from ((name, id(value)) for name, value in frame.f_locals.items())
        return
    layout = _LAYOUTS.get(sys.version_info[:2])
    if layout is None or sys.implementation.name != "cpython" or object.__basicsize__ != 2 * _WORD:
        return
    place = _word_at(id(frame) + _FRAME)
    code = frame.f_code
    if not place or _word_at(place + layout.code * _WORD) != id(code):
        return
    if _word_at(place + layout.globals * _WORD) != id(frame.f_globals):
        return
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    for number, name in enumerate(names):
        address = _word_at(place + (layout.first + number) * _WORD)
        if address:
            yield name, address


def _word_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
