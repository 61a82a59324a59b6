"""How fast a run learned: the fit, the crossing and the area, against other ways to compute them."""

import itertools
import math

import numpy as np
import pytest

from poslab.runs.learning import Crossing, crossing, decreasing, learning_of, unlike_validation

FRESH = {"task": {"min_length": None}, "model": {"dropout": 0.0}}


def best_decreasing(values: list[float], weights: list[float]) -> np.ndarray:
    """By the minimax formula of Robertson, Wright and Dykstra 1988, in cubic time."""

    def mean(i: int, j: int) -> float:
        return float(np.average(values[i : j + 1], weights=weights[i : j + 1]))

    n = len(values)
    return np.array([min(max(mean(i, j) for j in range(k, n)) for i in range(k + 1)) for k in range(n)])


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_the_nearest_decreasing_sequence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(np.linspace(2, 0, 12), 0.5).tolist(), rng.integers(1, 10, 12).astype(float).tolist()
    assert decreasing(values, weights) == pytest.approx(best_decreasing(values, weights))
    assert all(one >= two for one, two in itertools.pairwise(decreasing(values, weights)))


def test_a_decreasing_curve_is_its_own_fit() -> None:
    assert decreasing([3.0, 2.0, 1.0], [1, 1, 1]) == [3.0, 2.0, 1.0]
    assert decreasing([1.0, 2.0, 3.0], [1, 1, 2]) == [2.25, 2.25, 2.25]


def test_a_level_is_crossed_log_linearly_between_two_steps() -> None:
    # From 4 at step 10 to 1 at step 20 the logarithm halves in the middle.
    assert crossing([0, 10, 20], [4.0, 4.0, 1.0], 2.0) == Crossing(pytest.approx(15.0), 10, 20)
    assert crossing([0, 10], [4.0, 3.0], 2.0) is None
    assert crossing([0, 10], [1.0, 0.5], 2.0) == Crossing(0, 0, 0)
    assert crossing([0, 10], [4.0, 2.0], 2.0) is None, "below, not at"


def curve(middle: float, noise: float = 0.0, every: int = 10, steps: int = 360, windows: bool = False, seed: int = 0):
    """Rows of a run whose loss is 4 / (1 + (step / middle)^4), so a quarter of its start at 3^(1/4) middle."""
    rng = np.random.default_rng(seed)
    clean = 4 / (1 + (np.arange(steps) / middle) ** 4)
    losses = clean * np.exp(rng.normal(0, noise, steps)) if noise else clean
    logged = [*range(0, steps, every), steps - 1]
    rows = [{"step": 0, "val/loss": 4.0, "train/loss": losses[0], "train/loss_mean": losses[0]}]
    for last, step in itertools.pairwise(dict.fromkeys(logged)):
        rows.append({"step": step, "train/loss": losses[step], "train/loss_mean": losses[last + 1 : step + 1].mean()})
    if not windows:
        for row in rows:
            del row["train/loss_mean"]
    return rows, losses


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("middle", [40.0, 77.0, 120.0])
def test_the_steps_to_a_quarter_of_the_start_are_those_of_the_curve(middle: float, windows: bool) -> None:
    rows, losses = curve(middle, windows=windows)
    found = learning_of(rows, FRESH)
    assert found.source == "train"
    assert found.quarter is not None
    # The logarithm of the curve is bent between two logged steps.
    assert found.quarter.step == pytest.approx(3**0.25 * middle, abs=0.6)
    assert found.nats is not None
    assert found.nats.step == pytest.approx(39**0.25 * middle, rel=0.01)
    assert found.area == pytest.approx(losses.sum() / 4, rel=1e-12 if windows else 0.01)


@pytest.mark.parametrize("windows", [False, True])
def test_noise_moves_the_steps_by_less_than_a_logged_interval_and_not_to_one_side(windows: bool) -> None:
    errors = []
    for seed in range(200):
        rows, _ = curve(77.0, noise=0.06, windows=windows, seed=seed)
        found = learning_of(rows, FRESH).quarter
        assert found is not None
        errors.append(found.step - 3**0.25 * 77)
    assert abs(np.mean(errors)) < 0.6
    assert np.std(errors) < 2.0


def test_where_the_batches_are_unlike_the_validation_set_that_is_read() -> None:
    rows, _ = curve(77.0)
    rows += [{"step": 120, "val/loss": 0.6}, {"step": 240, "val/loss": 0.1}]
    found = learning_of(rows, {"model": {"dropout": 0.1}})
    assert (found.source, found.reason) == ("validation", "dropout")
    assert found.quarter is not None
    assert (found.quarter.before, found.quarter.after) == (0, 120)
    assert unlike_validation(FRESH) == ""
    several = {"task": {"min_length": 2}, "pos": {"train_offset": "random"}, "data": {"holdout": 0.2}}
    assert (
        unlike_validation(several)
        == "batches of several lengths, random offsets, rows that are only in the validation set"
    )


def test_what_cannot_be_known_says_why() -> None:
    assert learning_of([], FRESH).stored() == {
        "steps_to_quarter": None,
        "steps_to_0.1": None,
        "area": None,
        "source": None,
        "reason": "the validation loss at step 0 is missing",
    }
    without = learning_of([{"step": "0", "val/loss": "4.0", "train/loss": ""}, {"step": "9", "val/loss": "x"}], FRESH)
    assert (without.source, without.reason) == ("validation", "the training loss is missing")
    assert without.quarter is None
    assert math.isfinite(without.area or 0.0)


def test_a_run_that_an_older_version_began_is_read_from_its_samples() -> None:
    rows, _ = curve(77.0, windows=True)
    for row in rows[:5]:
        del row["train/loss_mean"]
    plain, _ = curve(77.0)
    assert learning_of(rows, FRESH) == learning_of(plain, FRESH)
