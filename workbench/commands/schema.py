"""Implement `workbench schema`: print the JSON Schema of a document that commands print with `--json`."""

import msgspec

from analyzers import compare, hangs, incident, logs, memory, parity, steps, tokens, traces
from analyzers.report import Report, json_schema
from workbench.commands.capabilities import CapabilitiesData
from workbench.commands.doctor import DoctorData
from workbench.errors import UsageProblem
from workbench.proof_data import ProofData, RerunData
from workbench.trainer_answers import EstimateData, PlanData

DOCUMENTS: dict[str, type[Report[object]]] = {
    "memory": Report[memory.MemoryData],
    "hang": Report[hangs.HangData],
    "trace": Report[traces.TraceData],
    "steps": Report[steps.StepsData],
    "logs": Report[logs.LogsData],
    "incident": Report[incident.IncidentData],
    "compare": Report[compare.CompareData],
    "parity": Report[parity.ParityData],
    "bisect": Report[parity.BisectData],
    "estimate": Report[EstimateData],
    "plan": Report[PlanData],
    "proof": Report[ProofData],
    "rerun": Report[RerunData],
    "tokens": Report[tokens.TokensData],
    "doctor": Report[DoctorData],
    "capabilities": Report[CapabilitiesData],
}


def describe(name: str | None) -> str:
    """Return the JSON Schema of the document `name`; without a name, the list of all names."""
    if name is None:
        return "\n".join(DOCUMENTS)
    if name not in DOCUMENTS:
        raise UsageProblem(f"no document {name}", f"choose {', '.join(DOCUMENTS)}")
    return msgspec.json.format(msgspec.json.encode(json_schema(DOCUMENTS[name])), indent=2).decode()
