"""Return the tables of any report; for each kind of data, a module in `workbench.present.tables` builds them."""

from collections.abc import Callable, Mapping

from analyzers.report import Report
from workbench.present.table import Table

Tables = list[Table]


def sections(report: Report[object]) -> Tables:
    """Return the tables of a report, most important first; empty tables are left out."""
    kind = report.schema.removeprefix("workbench.").partition("/")[0]
    tables = _TABLES[kind](report.data) if kind in _TABLES else []
    return [table for table in tables if table.rows]


# Each room is imported by its own function: pandas alone takes half a second, and a report of one room needs no other.
def memory(data: object) -> Tables:
    """Return the tables of a memory report."""
    from analyzers.memory.model import MemoryData
    from workbench.present.tables.memory import memory_tables

    return memory_tables(data) if isinstance(data, MemoryData) else []


def hang(data: object) -> Tables:
    """Return the tables of a hang report."""
    from analyzers.hangs.model import HangData
    from workbench.present.tables.hang import hang_tables

    return hang_tables(data) if isinstance(data, HangData) else []


def trace(data: object) -> Tables:
    """Return the tables of a trace report."""
    from analyzers.traces.report import TraceData
    from workbench.present.tables.trace import trace_tables

    return trace_tables(data) if isinstance(data, TraceData) else []


def steps(data: object) -> Tables:
    """Return the tables of a report on step logs."""
    from analyzers.steps.model import StepsData
    from workbench.present.tables.steps import steps_tables

    return steps_tables(data) if isinstance(data, StepsData) else []


def logs(data: object) -> Tables:
    """Return the tables of a report on text logs."""
    from analyzers.logs.model import LogsData
    from workbench.present.tables.logs import logs_tables

    return logs_tables(data) if isinstance(data, LogsData) else []


def incident(data: object) -> Tables:
    """Return the tables of a report on an incident, which joins the data of several analyzers."""
    from analyzers.incident import IncidentData
    from workbench.present.tables.incident import incident_tables

    return incident_tables(data) if isinstance(data, IncidentData) else []


def compare(data: object) -> Tables:
    """Return the tables of a comparison of two runs."""
    from analyzers.compare import CompareData
    from workbench.present.tables.comparison import comparison_tables

    return comparison_tables(data) if isinstance(data, CompareData) else []


def estimate(data: object) -> Tables:
    """Return the tables of an estimate of the memory that a job will need."""
    from workbench.present.tables.estimate import estimate_tables
    from workbench.trainer_answers import EstimateData

    return estimate_tables(data) if isinstance(data, EstimateData) else []


def plan(data: object) -> Tables:
    """Return the tables of a plan, which lists settings that fit into a device's memory."""
    from workbench.present.tables.estimate import plan_tables
    from workbench.trainer_answers import PlanData

    return plan_tables(data) if isinstance(data, PlanData) else []


def tokens(data: object) -> Tables:
    """Return the tables of a report on the tokens that a job trains on."""
    from analyzers.tokens.model import TokensData
    from workbench.present.tables.tokens import token_tables

    return token_tables(data) if isinstance(data, TokensData) else []


def parity(data: object) -> Tables:
    """Return the tables of a report that compares runs of the same training on several meshes."""
    from analyzers.parity import ParityData
    from workbench.present.tables.parity import parity_tables

    return parity_tables(data) if isinstance(data, ParityData) else []


def bisect(data: object) -> Tables:
    """Return the tables of a report on two recorded runs, and on the first operation whose result differs."""
    from analyzers.parity import BisectData
    from workbench.present.tables.bisect import bisect_tables

    return bisect_tables(data) if isinstance(data, BisectData) else []


def proof(data: object) -> Tables:
    """Return the tables of a proof: a second run, with changed settings, of a run that ran out of memory."""
    from workbench.present.tables.proof import proof_tables
    from workbench.proof_data import ProofData

    return proof_tables(data) if isinstance(data, ProofData) else []


def rerun(data: object) -> Tables:
    """Return the tables of a second run around a step with a broken loss: the tensors that jumped first."""
    from workbench.present.tables.proof import rerun_tables
    from workbench.proof_data import RerunData

    return rerun_tables(data) if isinstance(data, RerunData) else []


_TABLES: Mapping[str, Callable[[object], Tables]] = {
    "memory": memory,
    "hang": hang,
    "trace": trace,
    "steps": steps,
    "logs": logs,
    "incident": incident,
    "compare": compare,
    "estimate": estimate,
    "plan": plan,
    "tokens": tokens,
    "parity": parity,
    "bisect": bisect,
    "proof": proof,
    "rerun": rerun,
}
