"""Hung collectives: who waits for whom, and why, from Flight Recorder dumps and what lies beside them."""

from analyzers.hangs.ends import is_victim
from analyzers.hangs.files import ExitFile
from analyzers.hangs.model import Culprit, Frame, Group, HangData, Wait
from analyzers.hangs.report import analyze
from analyzers.hangs.words import titles
from analyzers.hangs.workers import errors

__all__ = ["Culprit", "ExitFile", "Frame", "Group", "HangData", "Wait", "analyze", "errors", "is_victim", "titles"]
