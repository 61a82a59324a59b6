"""The space of a search: Hydra's ``choice()``, ``range()``, ``interval()`` and commas as Optuna's distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)

from poslab.errors import ConfigError

Number = int | float


@dataclass(frozen=True)
class Parameter:
    """One setting that is searched.

    Attributes:
        key: as typed, with its plus if it has one.
        distribution: what Optuna draws from. A choice is drawn as text, whatever its type.
        values: all values, in order; None for an interval of floating-point numbers.
    """

    key: str
    distribution: BaseDistribution
    values: Sequence[Number | str] | None

    def typed(self, drawn: Number | str) -> Number | str:
        """The value as typed for a drawn one: 0.3 where the sum of the steps is 0.30000000000000004."""
        if isinstance(self.distribution, FloatDistribution) and self.values is not None:
            return min(self.values, key=lambda known: abs(float(known) - float(drawn)))
        return drawn

    def override(self, drawn: Number | str) -> str:
        """The override for a drawn value."""
        return f"{self.key}={self.typed(drawn)}"

    def every_value(self) -> list[Number | str]:
        """The values of a grid.

        Raises:
            ConfigError: an interval has too many values to list.
        """
        if self.values is None:
            raise ConfigError(
                f"hydra.sweeper.sampler=grid cannot list the values of {self.key}=interval(...); "
                "give choice(...) or range(...), or another sampler"
            )
        return list(self.values)


def split_space(given: Sequence[Override]) -> tuple[list[Parameter], list[str]]:
    """The settings to search, and the others as typed; the last value of a key counts.

    Raises:
        ConfigError: no setting has several values, or a range is empty or invalid.
    """
    last = {override.get_key_element().lstrip("+"): override for override in given}
    space = [parameter_of(override) for override in last.values() if override.is_sweep_override()]
    # How a search starts does not belong to a job.
    fixed = [
        str(override.input_line)
        for key, override in last.items()
        if not override.is_sweep_override() and not key.startswith("sweep.")
    ]
    if not space:
        raise ConfigError(
            "hydra/sweeper=optuna has nothing to search; give a setting several values: "
            "'optimizer.lr=interval(0.001,0.05)' or pos=learned,sinusoidal"
        )
    return space, fixed


def parameter_of(override: Override) -> Parameter:
    """A setting with several values as a distribution.

    Raises:
        ConfigError: it has no values, or its values do not fit on a logarithmic scale.
    """
    key, typed = override.get_key_element(), override.value()
    log = isinstance(typed, (IntervalSweep, RangeSweep)) and "log" in typed.tags
    try:
        if isinstance(typed, IntervalSweep):
            return _interval(key, typed, log)
        if isinstance(typed, RangeSweep):
            return _range(key, typed, log)
        choices = list(dict.fromkeys(override.sweep_string_iterator()))
        return Parameter(key, CategoricalDistribution(choices), choices)
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}") from error


def _interval(key: str, typed: IntervalSweep, log: bool) -> Parameter:
    assert typed.start is not None
    assert typed.end is not None
    if typed.start > typed.end:
        raise ValueError(f"this interval begins at {typed.start}, above its end {typed.end}")
    if log and typed.start <= 0:
        raise ValueError(f"an interval on a logarithmic scale must begin above 0, not at {typed.start}")
    if isinstance(typed.start, int) and isinstance(typed.end, int):
        distribution = IntDistribution(typed.start, typed.end, log=log)
        return Parameter(key, distribution, range(typed.start, typed.end + 1))
    return Parameter(key, FloatDistribution(typed.start, typed.end, log=log), None)


def _range(key: str, typed: RangeSweep, log: bool) -> Parameter:
    if typed.step == 0:
        raise ValueError("a range cannot have the step 0")
    # A range excludes its stop and may descend; a distribution includes its end and ascends.
    numbers = typed.range()
    values: Sequence[Number] = numbers if isinstance(numbers, range) else list(numbers)
    if len(values) == 0:
        raise ValueError("there is no value in this range")
    if len(values) > 1 and values[0] > values[-1]:
        values = values[::-1]
    first, end, step = values[0], values[-1], abs(typed.step)
    if isinstance(values, range):
        if log and step != 1:
            raise ValueError("a range on a logarithmic scale must have the step 1")
        return Parameter(key, IntDistribution(int(first), int(end), log=log, step=int(step)), values)
    if log:
        raise ValueError("a range of floating-point numbers cannot be on a logarithmic scale; use interval(...)")
    return Parameter(key, FloatDistribution(first, end, step=step), values)


def literal(text: Any) -> Any:
    """The number, truth value or None that an override's text means, else the text."""
    if not isinstance(text, str):
        return text
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def stored_form(space: Sequence[Parameter]) -> dict[str, str]:
    """The space as text, for the study."""
    return {parameter.key: distribution_to_json(parameter.distribution) for parameter in space}


def check_same_space(before: Mapping[str, str], space: Sequence[Parameter]) -> None:
    """Refuse to resume a search with other settings or choices; other bounds are allowed.

    Raises:
        ConfigError: names the first difference.
    """
    now = {parameter.key: parameter.distribution for parameter in space}
    if before.keys() != now.keys():
        raise ConfigError(
            f"this search was over {', '.join(before)} and cannot be resumed over {', '.join(now)}; "
            "give the same settings, or start a new search"
        )
    for key, distribution in now.items():
        known = json_to_distribution(before[key])
        try:
            check_distribution_compatibility(known, distribution)
        except ValueError as error:
            raise ConfigError(
                f"{key} was searched in {known} and cannot be resumed in {distribution}; start a new search"
            ) from error
