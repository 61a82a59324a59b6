"""Many runs side by side: what differs between them, and what the data say about it.

Reads run folders, whichever sweep or machine they came from, and writes a table, a text and a page. No torch: a sweep's
own process and a laptop without it can compare.
"""

from poslab.comparison.collect import Job
from poslab.comparison.settings import Setting
from poslab.comparison.statements import Statement
from poslab.comparison.writing import Comparison, write_comparison
from poslab.errors import ComparisonError

__all__ = ["Comparison", "ComparisonError", "Job", "Setting", "Statement", "write_comparison"]
