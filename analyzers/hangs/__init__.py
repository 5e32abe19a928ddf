"""Hung collectives: who waits for whom, and why, from Flight Recorder dumps and what lies beside them."""

from analyzers.hangs.findings.sentences import titles
from analyzers.hangs.model import Culprit, Frame, Group, HangData, Wait
from analyzers.hangs.reading.exits import is_victim
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.hangs.reading.torchrun_workers import errors
from analyzers.hangs.report import analyze

__all__ = ["Culprit", "ExitFile", "Frame", "Group", "HangData", "Wait", "analyze", "errors", "is_victim", "titles"]
