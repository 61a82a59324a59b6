"""``trainer.stop_when``: a condition on the numbers of a validation that ends a run, such as ``val/exact_match>=1``."""

import math
import operator
import re
from typing import NamedTuple

from poslab.errors import ConfigError
from poslab.runs.metrics import VALIDATED

SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


class StopWhen(NamedTuple):
    """A metric of a validation, a sign such as ``>=``, and a bound."""

    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"

    def holds(self, value: float) -> bool:
        """Whether a value of the metric passes; NaN never does."""
        return bool(SIGNS[self.sign](value, self.bound))


def stop_condition(text: str | None) -> StopWhen | None:
    """Read ``trainer.stop_when``.

    Raises:
        ConfigError: another form, or a metric that a validation does not have; lists those that it has.
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*([^\s<>=]+)\s*([<>]=?)\s*(\S+)\s*", text)
    try:
        bound = math.nan if found is None else float(found[3])
    except ValueError:
        bound = math.nan
    if found is None or not math.isfinite(bound):
        raise ConfigError(
            f"trainer.stop_when={text} is not a metric, one of {', '.join(SIGNS)}, and a number; write for example "
            f"val/exact_match>=1; the metrics are {', '.join(VALIDATED)}"
        )
    if found[1] not in VALIDATED:
        raise ConfigError(
            f"trainer.stop_when={text}: a validation has no metric '{found[1]}'; there are: {', '.join(VALIDATED)}"
        )
    return StopWhen(found[1], found[2], bound)
