"""The number of parameters of each part."""

from collections.abc import Iterable, Mapping
from typing import Any

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Scalars, Text
from poslab.model import LanguageModel, parameters_by_part
from poslab.runs.metrics import parameter_metrics
from poslab.tasks import Task


def parameter_table(counts: Mapping[str, int]) -> str:
    """Format the parts, their numbers of parameters and their shares as a Markdown table."""
    total = max(1, counts["total"])
    rows = [f"| {part} | {count:,} | {count / total:.1%} |" for part, count in counts.items()]
    return "\n".join(["| part | parameters | share |", "|---|---:|---:|", *rows])


class Parameters(Diagnostic):
    """Scalars ``parameters/<part>`` and the same numbers as a table, once, because they do not change in training."""

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        self._said = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._said = True

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        return list(parameter_metrics(parameters_by_part(model.parts())))

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        if self._said:
            return
        self._said = True
        counts = parameters_by_part(model.parts())
        yield Scalars(parameter_metrics(counts))
        yield Text("parameters", parameter_table(counts))
