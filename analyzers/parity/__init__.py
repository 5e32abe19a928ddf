"""Compare the same training on several device meshes: do the losses agree, and if not, which tensor differs first?

    report = parity.analyze([parity.NamedRun("dp_shard=4", "run_1"), parity.NamedRun("tp=2", "run_2")])

The runs are compared by their *curves* (losses and gradient norms by step), and by tensors if they recorded some.
`reading` adds up the parts of each tensor that the ranks recorded. `report` compares the runs, of which a folder
written by `workbench parity` has a list, and finds where a spike of the loss began. `bisect_report` compares two runs
that also recorded the inputs of their modules.
"""

from analyzers.parity.bisect_report import BisectReport, bisect
from analyzers.parity.model import BisectData, NamedRun, ParityData
from analyzers.parity.report import TOLERANCE, analyze

__all__ = ["TOLERANCE", "BisectData", "BisectReport", "NamedRun", "ParityData", "analyze", "bisect"]
