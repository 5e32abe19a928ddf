"""Measure the machine: versions, the device, its memory and its speed; the other rows are judged by these."""

import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from benchmarks.gpu.case import Case, Measured, Place

PACKAGES = ("torch", "numpy", "pandas", "msgspec", "tensorboard", "torchao")
SIDE, PRODUCTS = 8192, 20


def cases() -> Iterator[Case]:
    """Yield the cases about the machine."""
    yield Case("machine", "versions", describe)
    yield Case("machine", "matrix_product", multiply, needs_cuda=True)


def describe(place: Place) -> Measured:
    """Return the versions of packages and the properties of the device."""
    import torch

    measured: Measured = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            measured[name] = version(name)
        except PackageNotFoundError:
            measured[name] = None
    if place.on_cuda:
        free, total = torch.cuda.mem_get_info()
        measured |= {
            "device": torch.cuda.get_device_name(),
            "capability": ".".join(map(str, torch.cuda.get_device_capability())),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "total_bytes": total,
            "used_by_context_bytes": total - free,
        }
    return measured


def multiply(_: Place) -> Measured:
    """Return the speed of bfloat16 matrix products, to which model-FLOPs utilisation is compared."""
    import torch

    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(PRODUCTS):
        left @ right
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / PRODUCTS
    return {"seconds": seconds, "tflop_per_s": round(2 * SIDE**3 / seconds / 1e12, 1)}
