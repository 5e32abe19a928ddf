"""Write profiler traces of several kinds, so that the reader is not tuned on one of them.

`cuda` is the job of `benchmarks.traced_job`. `foreign` has 3000 other names, another order of keys in each event, and
no event twice. `gloo` is a job on CPUs. `stacks`, the kind that is kept aside, is mostly functions of Python.
"""

import gzip
import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import traced_job

Event = dict[str, Any]
HEAD = {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}


def foreign(events: int) -> Iterator[str]:
    """Yield events of which each has a name, an order of arguments and lengths of numbers of its own."""
    dice, now = random.Random(4), 5_112_345_678
    letters = string.ascii_letters + "_:<>, "
    words = ["".join(dice.choices(letters, k=dice.randrange(3, 30))) for _ in range(400)]
    kernels = [f"{dice.choice(words)}{dice.choice(words)}<{dice.choice(words)}>" for _ in range(2000)]
    operators = [f"{dice.choice(words)}::{dice.choice(words)}" for _ in range(1000)]
    for number in range(events // 3):
        now += dice.randrange(4_000, 40_000)
        duration, correlation = dice.randrange(900, 900_000), number * 3 + 17
        args = {
            "stream": dice.choice((7, 13, 20)), "device": 0, "correlation": correlation, "context": 1,
            "grid": [dice.randrange(1, 4096), 1, 1], "block": [dice.choice((64, 128, 512)), 1, 1],
            "registers per thread": dice.randrange(16, 255), "shared memory": dice.randrange(200_000),
            "warps per SM": round(dice.random() * 64, 6), "External id": number,
        }  # fmt: skip
        shapes = [[dice.randrange(1, 9000), dice.randrange(1, 9000)], [dice.randrange(1, 9000)]]
        host = {"External id": number, "Input Dims": shapes, "Input type": ["float", "float"], "Ev Idx": number}
        yield event(dice, "kernel", dice.choice(kernels), (0, args["stream"]), now + 3_000, duration, args)
        yield event(dice, "cpu_op", dice.choice(operators), (91, 91), now, 3_900, host)
        call = {"correlation": correlation, "External id": number, "cbid": 211}
        yield event(dice, "cuda_runtime", "cudaLaunchKernelExC", (91, 91), now + 1_100, 2_000, call)


def event(
    dice: random.Random, cat: str, name: str, lane: tuple[int, int], start: int, duration: int, args: Event
) -> str:
    """Return a complete event as JSON, whose keys and arguments are in a random order; times in ns."""
    arguments = list(args.items())
    dice.shuffle(arguments)
    fields = {"ph": "X", "cat": cat, "name": name, "pid": lane[0], "tid": lane[1]}
    fields |= {"ts": start / 1000, "dur": duration / 1000, "args": dict(arguments)}
    pairs = list(fields.items())
    dice.shuffle(pairs)
    return json.dumps(dict(pairs))


def gloo(events: int) -> Iterator[str]:
    """Yield the events of a job on CPUs: operators inside operators, and collectives of gloo."""
    dice, now, index = random.Random(5), 812_345_678_901, 0
    while index < events:
        width, step = dice.randrange(16, 2048), now
        for layer in range(24):
            for name in ("aten::linear", "aten::addmm", "aten::gelu", "aten::layer_norm", "aten::add_"):
                outer = dice.randrange(40_000, 900_000)
                args = {"Sequence number": layer, "Fwd thread id": 0, "Record function id": 0}
                args |= {"Concrete Inputs": ["", ""], "Input type": ["float", "float"]}
                args |= {"Input Dims": [[8, width], [width, 256]], "Ev Idx": index}
                yield complete("cpu_op", name, 77, now, outer, args)
                yield complete("cpu_op", "aten::empty", 77, now + 900, 2_100, {"Ev Idx": index + 1})
                now, index = now + outer + 1_000, index + 2
            shape = {"Collective name": "allreduce", "In msg nelems": width * 256, "Out msg nelems": width * 256}
            shape |= {"Group size": 8, "dtype": "Float", "Process Group Name": "0", "Seq": index, "Ev Idx": index}
            yield complete("user_annotation", "gloo:all_reduce", 78, now, dice.randrange(10_000, 90_000), shape)
            index += 1
        yield complete("user_annotation", f"ProfilerStep#{index}", 77, step, now - step, {"Ev Idx": index})


def complete(cat: str, name: str, lane: int, start: int, duration: int, args: Event) -> str:
    """Return a complete event as PyTorch writes it, one key a line; times in ns."""
    arguments = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items())
    times = f'"ts": {start // 1000}.{start % 1000:03d},\n    "dur": {duration // 1000}.{duration % 1000:03d}'
    names = f'"ph": "X",\n    "cat": "{cat}",\n    "name": "{name}",\n    "pid": 77,\n    "tid": {lane}'
    return f'\n  {{\n    {names},\n    {times}\n    ,\n    "args": {{\n      {arguments}\n    }}\n  }}'


def stacks(events: int) -> Iterator[str]:
    """Yield the events of a job whose functions of Python were recorded: most events have an id, few a device."""
    dice, now, number = random.Random(6), 99_123_456_789, 0
    files = [f"site-packages/torch/nn/modules/m{i}.py({17 * i}): forward" for i in range(300)]
    while number < events:
        open_calls = [(dice.choice(files), now + i * 700, number + i) for i in range(dice.randrange(12, 40))]
        now += len(open_calls) * 700
        for name, start, own in reversed(open_calls):
            now += dice.randrange(200, 3_000)
            args: Event = {"Python parent id": own - 1 or None, "Python id": own, "Ev Idx": own}
            yield complete("python_function", name, 5, start, now - start, args)
        number += len(open_calls)
        for _ in range(4):
            number += 3
            call = {"External id": number, "cbid": 211, "correlation": number}
            yield complete("cpu_op", "aten::mul", 5, now, 9_000, {"External id": number, "Ev Idx": number})
            yield complete("cuda_runtime", "cudaLaunchKernel", 5, now + 2_000, 4_000, call)
            kernel = {"device": 0, "context": 1, "stream": 7, "correlation": number, "grid": [number % 997, 1, 1]}
            yield complete("kernel", "void elementwise_kernel<4>(int)", 7, now + 9_000, 6_000, kernel)
            now += 17_000


def write_lines(path: Path, lines: Iterator[str]) -> None:
    with gzip.open(path, "wt", 1) as file:
        file.write(json.dumps(HEAD)[:-1] + ', "traceEvents": [')
        file.write(next(lines))
        for line in lines:
            file.write(f",\n{line}" if line.startswith("{") else f",{line}")
        file.write('], "traceName": "trace.json"}')


KINDS: dict[str, Callable[[Path, int], object]] = {
    "cuda": traced_job.large,
    "foreign": lambda path, events: write_lines(path, foreign(events)),
    "gloo": lambda path, events: write_lines(path, gloo(events)),
    "stacks": lambda path, events: write_lines(path, stacks(events)),
}
ASIDE = "stacks"

if __name__ == "__main__":
    KINDS[sys.argv[2]](Path(sys.argv[1]), int(sys.argv[3]))
