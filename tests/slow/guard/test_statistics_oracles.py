"""The statistics of the comparison against SciPy and statsmodels: ``pip install '.[oracles]'``."""

import math

import numpy as np
import pytest

from poslab.comparison.statistics import (
    _quantile,
    deviation_range,
    holm,
    interaction,
    mean_interval,
    paired,
    sign_test,
    welch,
)
from poslab.runs.learning import decreasing

stats = pytest.importorskip("scipy.stats")


@pytest.fixture(params=range(4))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_the_paired_test_is_scipys(rng: np.random.Generator) -> None:
    one, two = rng.normal(0, 1, 8), rng.normal(0.7, 2, 8)
    found = paired({"setting": dict(enumerate((one - two).tolist()))})
    assert found is not None
    theirs = stats.ttest_rel(one, two)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval(0.9) == pytest.approx((*theirs.confidence_interval(0.9),))
    flips = stats.permutation_test(
        (one - two,), lambda x, axis: np.abs(x.mean(axis)), permutation_type="samples", alternative="greater"
    )
    assert found.flips == pytest.approx(flips.pvalue)


def test_welchs_test_is_scipys(rng: np.random.Generator) -> None:
    one, two = rng.normal(0, 1, 5).tolist(), rng.normal(1, 4, 9).tolist()
    found = welch(one, two)
    assert found is not None
    theirs = stats.ttest_ind(one, two, equal_var=False)
    assert (found.p, found.df) == pytest.approx((theirs.pvalue, theirs.df))
    assert found.interval(0.95) == pytest.approx((*theirs.confidence_interval(0.95),))


@pytest.mark.parametrize("df", [1, 2, 3.7, 11, 150])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9999])
def test_quantiles_are_scipys(df: float, probability: float) -> None:
    assert _quantile(df, probability) == pytest.approx(stats.t.ppf(probability, df), rel=1e-6)


@pytest.mark.parametrize("df", [1, 2, 5, 40])
def test_the_range_of_a_deviation_is_scipys(df: float) -> None:
    wanted = tuple(math.sqrt(df / stats.chi2.ppf(share, df)) for share in (0.9, 0.1))
    assert deviation_range(1.0, df) == pytest.approx(wanted)


def test_intervals_signs_and_the_isotonic_fit_are_scipys(rng: np.random.Generator) -> None:
    values = rng.normal(0, 1, 6)
    interval = mean_interval(values.tolist())
    assert interval is not None
    low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert sign_test(7, 2) == pytest.approx(stats.binomtest(7, 9).pvalue)
    optimize = pytest.importorskip("scipy.optimize")
    weights = rng.integers(1, 9, 30).astype(float)
    curve = rng.normal(np.linspace(4, 0, 30), 1)
    fit = optimize.isotonic_regression(curve, weights=weights, increasing=False)
    assert decreasing(curve.tolist(), weights.tolist()) == pytest.approx(fit.x)


def test_holm_and_the_interaction_are_statsmodels(rng: np.random.Generator) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = rng.uniform(0, 0.2, 7).tolist()
    assert holm(p_values) == pytest.approx(multitest.multipletests(p_values, method="holm")[1])
    api, anova = pytest.importorskip("statsmodels.formula.api"), pytest.importorskip("statsmodels.stats.anova")
    pandas = pytest.importorskip("pandas")
    settings, seeds = 3, 5
    values = rng.normal(0, 1, (settings, seeds)) + rng.normal(0, 1, seeds) + np.arange(settings)[:, None]
    rows = [{"value": values[i, j], "setting": f"s{i}", "seed": f"n{j}"} for i in range(settings) for j in range(seeds)]
    table = anova.anova_lm(api.ols("value ~ C(setting) + C(seed)", pandas.DataFrame(rows)).fit())
    # Greenhouse and Geisser's correction, from the eigenvalues of the covariance of the settings' contrasts.
    centred = np.eye(settings) - 1 / settings
    eigenvalues = np.linalg.eigvalsh(centred @ np.cov(values) @ centred)
    epsilon = eigenvalues.sum() ** 2 / ((settings - 1) * (eigenvalues**2).sum())
    df = epsilon * (settings - 1)
    found = interaction({i: dict(enumerate(row)) for i, row in enumerate(values.tolist())})
    assert found == pytest.approx(stats.f.sf(table.loc["C(setting)", "F"], df, df * (seeds - 1)))
    # Two settings need no correction.
    two = [row for row in rows if row["setting"] != "s2"]
    table = anova.anova_lm(api.ols("value ~ C(setting) + C(seed)", pandas.DataFrame(two)).fit())
    found = interaction({i: dict(enumerate(row)) for i, row in enumerate(values[:2].tolist())})
    assert found == pytest.approx(table.loc["C(setting)", "PR(>F)"])
