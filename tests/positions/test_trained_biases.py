"""Trained and fixed biases of the distance, each against its formula in plain loops."""

import math
import re

import pytest
import torch
from torch import Tensor

from poslab import PositionScheme
from poslab.positions import ALiBi, KerpleLog, KerplePower, LearnedALiBi, MLPBias, Sandwich, sinusoidal


def by_hand(n_heads: int, length: int, value: object) -> Tensor:
    """The bias whose entry for head h and distance n is ``value(h, n)``."""
    bias = torch.zeros(n_heads, length, length)
    for head in range(n_heads):
        for i in range(length):
            for j in range(i + 1):
                bias[head, i, j] = value(head, i - j)  # type: ignore[operator]
    return bias


@pytest.mark.parametrize("n_heads", [1, 3, 8])
def test_learned_alibi_starts_as_alibi_and_trains_its_slopes(n_heads: int) -> None:
    scheme = LearnedALiBi(n_heads)
    torch.testing.assert_close(scheme.bias(9, 9), ALiBi(n_heads).bias(9, 9))
    with torch.no_grad():
        scheme.log_slopes.fill_(math.log(0.25))
    torch.testing.assert_close(scheme.bias(9, 9).tril(), by_hand(n_heads, 9, lambda h, n: -0.25 * n))


def test_kerple_log_follows_the_formula() -> None:
    scheme = KerpleLog(3)
    with torch.no_grad():
        scheme.log_r1.copy_(torch.tensor([0.5, 1.0, 2.0]).log())
        scheme.log_r2.copy_(torch.tensor([0.1, 1.0, 3.0]).log())
    expected = by_hand(3, 30, lambda h, n: -[0.5, 1.0, 2.0][h] * math.log(1 + [0.1, 1.0, 3.0][h] * n))
    torch.testing.assert_close(scheme.bias(30, 30).tril(), expected)


def test_kerple_power_follows_the_formula_and_is_alibi_at_exponent_1() -> None:
    scheme = KerplePower(3)
    with torch.no_grad():
        scheme.log_r1.copy_(torch.tensor([0.5, 1.0, 2.0]).log())
        scheme.logit_r2.copy_((torch.tensor([0.5, 1.0, 1.8]) / 2).logit())
    expected = by_hand(3, 30, lambda h, n: -[0.5, 1.0, 2.0][h] * n ** [0.5, 1.0, 1.8][h])
    torch.testing.assert_close(scheme.bias(30, 30).tril(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scheme.bias(30, 30)[1].tril(), by_hand(1, 30, lambda h, n: -n)[0])


@pytest.mark.parametrize("kind", [KerpleLog, KerplePower])
def test_kerple_starts_in_the_range_of_the_authors(kind: type[KerpleLog | KerplePower]) -> None:
    torch.manual_seed(0)
    scheme = kind(4000)
    r1 = scheme.log_r1.exp()
    r2 = scheme.log_r2.exp() if isinstance(scheme, KerpleLog) else 2 * scheme.logit_r2.sigmoid()
    tops = (2, 1) if isinstance(scheme, KerpleLog) else (1, 2)
    for values, top in zip((r1, r2), tops, strict=True):
        values = values.detach()
        assert 0.0099 <= float(values.min()) < 0.02 * top
        assert 0.98 * top < float(values.max()) < 1.001 * top
        assert float(values.mean()) == pytest.approx(top / 2, rel=0.05)


@pytest.mark.parametrize("kind", [KerpleLog, KerplePower, LearnedALiBi])
def test_gradients_are_finite_at_distance_0(kind: type[PositionScheme]) -> None:
    scheme = kind(2)
    scheme.bias(5, 5).tril().sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in scheme.parameters())


@pytest.mark.parametrize("d_bar", [16, 128])
@pytest.mark.parametrize("n_heads", [1, 4, 8])
def test_sandwich_is_the_product_of_two_sinusoidal_vectors(n_heads: int, d_bar: int) -> None:
    """Its first pair has k = 1, where the table's has k = 0: the table of one pair more has it."""
    base = 10000.0
    wider = base ** ((d_bar + 2) / d_bar)
    rows = sinusoidal.sinusoidal_table(40, d_bar + 2, wider).double()[:, 2:]
    products = rows @ rows.T - d_bar / 2
    expected = torch.stack([products / (8 * (h + 1) / n_heads) for h in range(n_heads)]).tril().float()
    found = Sandwich(n_heads, d_bar, base).bias(40, 40).tril()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (Sandwich, {"d_bar": 7}, "d_bar 7"),
        (Sandwich, {"d_bar": 0}, "d_bar 0"),
        (Sandwich, {"base": 1.0}, "base 1.0"),
        (MLPBias, {"hidden": 0}, "hidden 0"),
        (MLPBias, {"depth": 0}, "depth 0"),
        (MLPBias, {"hidden": 2**17}, "hidden 131072"),
    ],
)
def test_options_without_a_meaning_are_refused(
    kind: type[PositionScheme], options: dict[str, float], named: str
) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(named)}[^\n]*$"):
        kind(4, **options)
