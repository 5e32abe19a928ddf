"""Hung collectives: who waits for whom, and why, from Flight Recorder dumps and what lies beside them."""

from analyzers.hangs.model import Culprit, Frame, Group, HangData, Wait
from analyzers.hangs.report import analyze
from analyzers.hangs.side import is_symptom
from analyzers.hangs.words import titles

__all__ = ["Culprit", "Frame", "Group", "HangData", "Wait", "analyze", "is_symptom", "titles"]
