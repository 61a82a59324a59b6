"""Compare runs: which settings differ, which results differ, and whether a difference is more than chance.

It reads run folders from any sweeps and machines, and writes a table, a text and an HTML page. It does not import
torch, so that it also runs in a sweep's parent process and on a machine without torch.
"""

from poslab.comparison.collect import Job
from poslab.comparison.settings import Setting
from poslab.comparison.statements import Statement
from poslab.comparison.writing import Comparison, write_comparison
from poslab.errors import ComparisonError

__all__ = ["Comparison", "ComparisonError", "Job", "Setting", "Statement", "write_comparison"]
