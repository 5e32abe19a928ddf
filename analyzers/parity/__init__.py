"""The same training on several meshes: do the curves agree, and if not, which tensor differs first?

    report = parity.analyze([parity.NamedRun("dp_shard=4", "run_1"), parity.NamedRun("tp=2", "run_2")])

`reading` adds up what each rank recorded of its part of a tensor, `answers` compares, `findings` says what differs, and
`views` has the tables of charts. A folder that `workbench parity` wrote names its runs (`folder`).
"""

from analyzers.parity.model import NamedRun, ParityData
from analyzers.parity.report import TOLERANCE, analyze

__all__ = ["TOLERANCE", "NamedRun", "ParityData", "analyze"]
