"""Collect all findings about one device."""

from collections.abc import Iterator

from analyzers.memory.findings.fragmentation import fragmentation_findings
from analyzers.memory.findings.oom import near_limit_findings, oom_findings
from analyzers.memory.findings.peak import peak_findings
from analyzers.memory.findings.trust import trust_findings
from analyzers.memory.findings.untracked import untracked_findings
from analyzers.memory.findings.unused_memory import unused_memory_findings
from analyzers.memory.model import Device
from analyzers.report import Finding


def device_findings(device: Device) -> Iterator[Finding]:
    """Yield the findings about one device."""
    yield from oom_findings(device)
    yield from fragmentation_findings(device)
    yield from peak_findings(device)
    yield from unused_memory_findings(device)
    yield from untracked_findings(device)
    yield from near_limit_findings(device)
    yield from trust_findings(device)
