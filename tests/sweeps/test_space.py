"""Hydra's sweeps as distributions of Optuna."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from poslab.errors import ConfigError

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from poslab.sweeps.search.space import parameter_of


def distribution(typed: str) -> Any:
    return parameter_of(OverridesParser.create().parse_overrides([typed])[0])


@pytest.mark.parametrize(
    ("typed", "expected", "values"),
    [
        ("a=interval(0.0005,0.05)", FloatDistribution(0.0005, 0.05), None),
        ("a=tag(log,interval(1e-4,1))", FloatDistribution(1e-4, 1.0, log=True), None),
        ("a=int(interval(1,8))", IntDistribution(1, 8), [1, 2, 3, 4, 5, 6, 7, 8]),
        ("a=tag(log,int(interval(1,100)))", IntDistribution(1, 100, log=True), list(range(1, 101))),
        ("a=range(16,65,16)", IntDistribution(16, 64, step=16), [16, 32, 48, 64]),
        ("a=range(10,1,-3)", IntDistribution(4, 10, step=3), [4, 7, 10]),
        ("a=range(0,1,0.25)", FloatDistribution(0.0, 0.75, step=0.25), [0.0, 0.25, 0.5, 0.75]),
        ("a=1,2", CategoricalDistribution(["1", "2"]), ["1", "2"]),
        ("a='x,y',null,[0.9,0.99]", CategoricalDistribution(["'x,y'", "null", "[0.9,0.99]"]), None),
    ],
)
def test_hydras_sweeps_are_optunas_distributions(typed: str, expected: Any, values: list[Any] | None) -> None:
    parameter = distribution(typed)
    assert parameter.distribution == expected
    if values is not None:
        assert parameter.every_value() == values


def test_a_drawn_step_is_the_number_that_was_typed() -> None:
    parameter = distribution("a=range(0,1,0.1)")
    drawn = [0.1 * k for k in range(10)]
    assert repr(drawn[3]) == "0.30000000000000004"
    assert [parameter.override(value) for value in drawn[:4]] == ["a=0.0", "a=0.1", "a=0.2", "a=0.3"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("a=interval(2,1)", "above its end"),
        ("a=tag(log,interval(0,1))", "must begin above 0"),
        ("a=range(5,1)", "no value in this range"),
        ("a=tag(log,range(1,100,3))", "step 1"),
    ],
)
def test_a_range_that_is_none_is_refused(typed: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        distribution(typed)
    assert str(refused.value).startswith(typed)
