"""The speeds of devices for the cost model: computing, reading memory, and communication between ranks."""

import os
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeviceSpeed:
    """The speed of one rank's device.

    `flops` and `flops_float32` are the floating-point operations per second that large matrix products reach in
    bfloat16 and in float32; the peak in the data sheet is higher. The bandwidths `memory`, `near` (between ranks of one
    node), `far` (between nodes) and `host` (between device and host) are in bytes per second. `latency` is the shortest
    time of a collective, in seconds. A matrix product for `half_tokens` tokens reaches half of `flops`.
    """

    flops: float
    flops_float32: float
    memory: float
    near: float
    far: float
    host: float
    latency: float
    ranks_of_node: int = 8
    half_tokens: int = 512


# Achievable products are 60 to 80 % of the dense peak; links as collectives of large messages measure them.
SPEEDS = {
    "a100": DeviceSpeed(230e12, 110e12, 1.6e12, 230e9, 20e9, 20e9, 2e-5),
    "h100": DeviceSpeed(650e12, 350e12, 2.8e12, 370e9, 40e9, 40e9, 2e-5),
    "h200": DeviceSpeed(650e12, 350e12, 4.0e12, 370e9, 40e9, 40e9, 2e-5),
    "b200": DeviceSpeed(1500e12, 700e12, 6.5e12, 700e9, 45e9, 50e9, 2e-5),
    "mi300x": DeviceSpeed(600e12, 300e12, 4.0e12, 310e9, 40e9, 40e9, 2e-5),
    # One core; bfloat16 is computed in float32 and converted.
    "cpu": DeviceSpeed(1.5e10, 3e10, 4e9, 1e9, 1e9, 4e9, 1e-3, ranks_of_node=1 << 20, half_tokens=64),
}


def speed_of(name: str, world_size: int) -> DeviceSpeed:
    """Return the speed of a device named in `SPEEDS`; on a CPU, the ranks share the cores."""
    speed = SPEEDS[name]
    if name != "cpu":
        return speed
    part = min((os.cpu_count() or 1) / world_size, 1.0)
    return replace(
        speed, flops=speed.flops * part, flops_float32=speed.flops_float32 * part, memory=speed.memory * part
    )
