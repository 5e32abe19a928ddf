"""The occupancy of the device by kernels, compared with sums over the JSON."""

import gzip
import json
from collections import defaultdict
from types import SimpleNamespace

import pytest

from workbench.present.tables.trace_rank import occupancy

NOTED = {
    "occupancy": "est. achieved occupancy %",
    "warps_per_sm": "warps per SM",
    "blocks_per_sm": "blocks per SM",
}


def noted(occupancy, warps, blocks):
    return dict(zip(NOTED.values(), (occupancy, warps, blocks), strict=True))


def test_means_are_weighted_by_duration(maker):
    made = maker.Tracing()
    made.kernel("gemm", 0, 3000, **noted(10, 1.5, 0.25))
    made.kernel("gemm", 4000, 1000, **noted(40, 3.5, 1))
    made.kernel("gemm", 6000, 5000)
    made.kernel("odd", 12000, 1000, **noted("25", "2.0", None))
    made.kernel("hostile", 14000, 1000, **noted([1], -5, 1e300))
    made.kernel("plain", 16000, 1000)
    [account] = maker.accounts(made.text())
    found = {one.name: (one.occupancy, one.warps_per_sm, one.blocks_per_sm) for one in account.kernels}
    assert found == {
        "gemm": (17.5, 2.0, 0.4375),
        "odd": (25.0, 2.0, None),
        "hostile": (None, None, None),
        "plain": (None, None, None),
    }
    assert [row[2:] for row in occupancy(account).rows] == [("18 %", "2.00", "0.438", ""), ("25 %", "2.00", "", "")]


def test_no_occupancy_beside_busy_warps_is_unknown(maker):
    made = maker.Tracing()
    made.kernel("busy", 0, 3000, **noted(0, 14.5, 1.8))
    made.kernel("one block", 4000, 1000, **noted(0, 0.03, 0.0076))
    [account] = maker.accounts(made.text())
    assert {one.name: one.occupancy for one in account.kernels} == {"busy": None, "one block": 0}


def test_what_limits_a_kernel_is_that_of_its_longest_execution(maker):
    made = maker.Tracing()
    few = {"activeBlocksPerMultiprocessor": 3, "limitingFactors": "WARPS|REGS", "blockLimitRegs": 3}
    made.kernel("gemm", 0, 3000, **noted(100, 75.3, 4.7), occupancy=few)
    made.kernel("gemm", 4000, 1000, **noted(50, 10, 1), occupancy=few | {"limitingFactors": "SHARED_MEM"})
    made.kernel("alone", 6000, 1000, occupancy={"limitingFactors": "BLOCKS"})
    made.kernel("odd", 8000, 1000, **noted(50, 10, 1), occupancy={"limitingFactors": 7})
    made.kernel("hostile", 10000, 1000, occupancy=[few])
    made.kernel("plain", 12000, 1000)
    [account] = maker.accounts(made.text())
    assert {one.name: (one.occupancy, one.limited_by) for one in account.kernels} == {
        "gemm": (87.5, "warps, registers"),
        "alone": (None, "blocks"),
        "odd": (50.0, ""),
        "hostile": (None, ""),
        "plain": (None, ""),
    }
    assert occupancy(account).rows[0][2:] == ("88 %", "59.0", "3.77", "warps, registers")


def test_kernels_that_last_no_time_count_alike(maker):
    made = maker.Tracing()
    made.kernel("set", 0, 0, **noted(10, 1, 1))
    made.kernel("set", 50, 0, **noted(20, 2, 1))
    [account] = maker.accounts(made.text())
    assert account.kernels[0].occupancy == 15.0


def test_a_host_has_no_table_of_them(maker):
    made = maker.Tracing()
    made.event("aten::mm", "cpu_op", 0, 1000)
    [account] = maker.accounts(made.text())
    assert account.kernels[0].occupancy is None
    assert not occupancy(account).rows


@pytest.mark.real
def test_real_files_agree_with_plain_loops(real_traces, maker):
    seen = 0
    for artefact in real_traces:
        data = artefact.path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if not 1000 < len(text) < 16 << 20 or b"est. achieved occupancy" not in text:
            continue
        expected = weighed(json.loads(text, strict=False)["traceEvents"])
        for account in maker.accounts(text):
            for kernel in account.kernels:
                for name in NOTED:
                    mine, wanted = getattr(kernel, name), expected[account.device, kernel.name][name]
                    assert mine == (wanted and pytest.approx(wanted, rel=1e-5, abs=1e-6))
                    seen += mine is not None
    assert seen > 100


def weighed(events):
    """Return {(device, kernel): {measure: weighted mean}}, by a plain loop."""
    sums = defaultdict(lambda: defaultdict(lambda: SimpleNamespace(of=0.0, weight=0)))
    for event in events:
        args = event.get("args") or {}
        if event.get("cat") == "kernel":
            for name, key in NOTED.items():
                impossible = name == "occupancy" and args.get(key) == 0 and args["warps per SM"] >= 1
                if NOTED["occupancy"] in args and not impossible:
                    one = sums[args["device"], event["name"]][name]
                    one.of += args[key] * event["dur"]
                    one.weight += event["dur"]
    return defaultdict(
        lambda: dict.fromkeys(NOTED),
        {
            key: dict.fromkeys(NOTED) | {name: one.of / one.weight for name, one in measures.items()}
            for key, measures in sums.items()
        },
    )
