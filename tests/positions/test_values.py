"""Position schemes against the values of their papers, worked out by hand or by plain loops."""

import math
import re

import pytest
import torch
from torch import Tensor

from poslab import (
    LearnedPositionalEmbedding,
    MultiHeadSelfAttention,
    PositionScheme,
    SinusoidalPositionalEmbedding,
    count_parameters,
)
from poslab.positions import FIRE, ALiBi, HardALiBi, RotaryPositions, T5Bias

# ALiBi.


@pytest.mark.parametrize(
    ("n_heads", "slopes"),
    [
        (1, [0.0039]),
        (2, [0.0625, 0.0039]),
        (3, [0.0625, 0.0039, 0.25]),
        (4, [0.25, 0.0625, 0.0156, 0.0039]),
        (6, [0.25, 0.0625, 0.0156, 0.0039, 0.5, 0.125]),
        (8, [2**-h for h in range(1, 9)]),
        (12, [*(2**-h for h in range(1, 9)), *(2 ** -(h / 2) for h in (1, 3, 5, 7))]),
        (16, [2 ** -(h / 2) for h in range(1, 17)]),
    ],
)
def test_alibi_slopes(n_heads: int, slopes: list[float]) -> None:
    bias = ALiBi(n_heads).bias(5, 5)
    assert bias.shape == (n_heads, 5, 5)
    for head, slope in enumerate(slopes):
        for i in range(5):
            for j in range(i + 1):
                assert float(bias[head, i, j]) == pytest.approx(-slope * (i - j), abs=5e-5 * max(1, i - j))


def test_alibi_with_one_head_is_nearly_flat() -> None:
    assert float(ALiBi(1).bias(12, 12)[0, -1, 0]) == pytest.approx(-11 / 256)


# Hard ALiBi.


@pytest.mark.parametrize(
    ("n_heads", "n_windows", "expected"),
    [
        (8, 4, [1, 2, 3, 4, None, None, None, None]),
        (4, None, [1, 2, None, None]),
        (3, None, [1, None, None]),
        (1, None, [None]),
        (2, 0, [None, None]),
        (3, 3, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_hard_alibi_head_h_sees_the_last_h_tokens_and_the_others_all(
    n_heads: int, n_windows: int | None, expected: list[int | None], length: int
) -> None:
    bias = HardALiBi(n_heads, n_windows).bias(length, length)
    assert bias.shape == (n_heads, length, length)
    assert set(bias.unique().tolist()) <= {0.0, -math.inf}
    for head, window in enumerate(expected):
        for i in range(length):
            seen = [j for j in range(i + 1) if float(bias[head, i, j]) == 0]
            assert seen == list(range(0 if window is None else max(0, i + 1 - window), i + 1))


@pytest.mark.parametrize("n_windows", [-1, 5])
def test_hard_alibi_refuses_more_windows_than_heads(n_windows: int) -> None:
    with pytest.raises(ValueError, match=rf"n_windows {n_windows}\b.*\b4\b"):
        HardALiBi(4, n_windows)


def test_hard_alibi_weights_are_zero_outside_the_window() -> None:
    """In both paths; with values that name their position the first head passes on its own token alone."""
    attention, x = MultiHeadSelfAttention(8, 4, 9), torch.randn(2, 9, 8)
    output, weights = attention(x, True, HardALiBi(4))
    assert torch.equal(weights[:, 0], torch.eye(9).expand(2, 9, 9))
    assert torch.equal((weights[0] > 0).sum(-1)[:, -1], torch.tensor([1, 2, 9, 9]))
    torch.testing.assert_close(attention(x, positions=HardALiBi(4)), output)


# T5.


def buckets(n_buckets: int, max_distance: int, length: int) -> list[int]:
    """The bucket of distances 0 .. length - 1, read from a bias whose numbers are the buckets."""
    scheme = T5Bias(2, n_buckets, max_distance)
    with torch.no_grad():
        scheme.weight.copy_(torch.arange(float(n_buckets))[:, None])
    return scheme.bias(1, length)[1, 0].flip(0).long().tolist()


def starts(found: list[int]) -> list[int]:
    return [found.index(bucket) for bucket in sorted(set(found))]


def test_t5_buckets_of_the_paper() -> None:
    found = buckets(32, 128, 500)
    assert found == sorted(found)
    later = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert starts(found) == [*range(16), *later]
    assert set(found[113:]) == {31}


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "later"),
    [
        # 4 * 16^(k/4): every border is a whole number.
        (8, 64, [4, 8, 16, 32]),
        # 8 * 16^(k/8): every second one.
        (16, 128, [8, 12, 16, 23, 32, 46, 64, 91]),
        # 16 * 16^(k/16): every fourth one.
        (32, 256, [16, 20, 23, 27, 32, 39, 46, 54, 64, 77, 91, 108, 128, 153, 182, 216]),
        # 2 * 5^(k/2)
        (4, 10, [2, 5]),
        (2, 50, [1]),
    ],
)
def test_t5_buckets_whose_borders_are_whole_numbers(n_buckets: int, max_distance: int, later: list[int]) -> None:
    """The border itself belongs to the bucket that begins there, whatever a logarithm rounds to."""
    assert starts(buckets(n_buckets, max_distance, 400)) == [*range(n_buckets // 2), *later]


def test_t5_has_one_number_for_each_bucket_and_head() -> None:
    scheme = T5Bias(3)
    assert count_parameters(scheme) == 32 * 3
    assert set(scheme.state_dict()) == {"weight"}
    bias = scheme.bias(40, 40)
    for head in range(3):
        assert torch.equal(bias[head].diagonal(-20), scheme.weight[17, head].expand(20))


def test_t5_starts_normal() -> None:
    weight = T5Bias(512, init_std=0.3).weight.detach()
    assert float(weight.std()) == pytest.approx(0.3, rel=0.03)
    assert float(weight.mean()) == pytest.approx(0, abs=0.01)
    assert float(T5Bias(512).weight.detach().std()) == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(31, 128), (0, 128), (32, 16), (32, 3)])
def test_t5_refuses_buckets_without_a_scale(n_buckets: int, max_distance: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{n_buckets}\b.*\b{max_distance}\b"):
        T5Bias(4, n_buckets, max_distance)


# FIRE.


def fire_by_hand(scheme: FIRE, length: int, c: float, threshold: float) -> Tensor:
    """Li et al. 2023, section 3, one cell and one hidden unit at a time."""
    one, two = scheme.network[0], scheme.network[2]
    first = list(zip(one.weight[:, 0].tolist(), one.bias.tolist(), strict=True))
    second = list(zip(two.weight.tolist(), two.bias.tolist(), strict=True))
    bias = torch.zeros(len(second), length, length)
    for i in range(length):
        for j in range(i + 1):
            x = math.log(c * (i - j) + 1) / math.log(c * max(threshold, i) + 1)
            hidden = [max(0.0, weight * x + shift) for weight, shift in first]
            for head, (weights, shift) in enumerate(second):
                bias[head, i, j] = sum(weight * h for weight, h in zip(weights, hidden, strict=True)) + shift
    return bias


@pytest.mark.parametrize(("c", "threshold"), [(0.1, 64.0), (0.1, 5.0), (2.0, 8.0)])
@pytest.mark.parametrize("length", [1, 2, 17])
def test_fire_follows_the_formula_on_both_sides_of_the_threshold(c: float, threshold: float, length: int) -> None:
    scheme = FIRE(3, hidden=4, c=c, threshold=threshold)
    torch.testing.assert_close(scheme.bias(length, length).tril(), fire_by_hand(scheme, length, c, threshold))


def test_fire_starts_where_the_paper_does() -> None:
    scheme = FIRE(2, hidden=5)
    torch.testing.assert_close(scheme.bias(80, 80).tril(), fire_by_hand(scheme, 80, 0.1, 64.0))
    assert count_parameters(FIRE(4)) == (32 + 32) + (4 * 32 + 4) + 2


def test_fire_depends_on_the_query_beyond_the_threshold_only() -> None:
    bias = FIRE(2, threshold=6.0).bias(12, 12)
    torch.testing.assert_close(bias[:, 5, 3], bias[:, 3, 1])
    torch.testing.assert_close(bias[:, 6, 4], bias[:, 3, 1])
    for i in range(7, 12):
        assert not torch.allclose(bias[:, i, i - 2], bias[:, i - 1, i - 3])
        # The furthest key is at 1, however long the sequence.
        torch.testing.assert_close(bias[:, i, 0], bias[:, 11, 0])


def test_a_threshold_far_above_the_length_weakens_fire() -> None:
    """The same network sees a smaller part of its input."""

    def spread(threshold: float) -> float:
        torch.manual_seed(0)
        return float(FIRE(4, threshold=threshold).bias(1, 20).detach().std(-1).mean())

    assert spread(2.0) > 1.5 * spread(64.0) > 1.5 * spread(4096.0)


def test_fire_learns_c_and_the_threshold() -> None:
    scheme = FIRE(2, c=0.5, threshold=8.0)
    with torch.no_grad():
        scheme.c.fill_(-0.25)
        scheme.threshold_factor.fill_(-1.5)
    # Magnitudes: the optimiser may take either below 0.
    torch.testing.assert_close(scheme.bias(20, 20).tril(), fire_by_hand(scheme, 20, 0.25, 12.0))


@pytest.mark.parametrize("name", ["c", "threshold_factor"])
def test_fire_stays_finite_where_c_or_the_threshold_is_zero(name: str) -> None:
    scheme = FIRE(2)
    with torch.no_grad():
        scheme.get_parameter(name).zero_()
    bias = scheme.bias(5, 5)
    bias.tril().square().sum().backward()
    assert bool(bias.isfinite().all())
    for parameter in scheme.parameters():
        assert bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("options", [{"hidden": 0}, {"c": 0.0}, {"c": -1.0}, {"threshold": 0.0}, {"c": math.nan}])
def test_fire_refuses_a_start_without_meaning(options: dict[str, float]) -> None:
    (value,) = options.values()
    with pytest.raises(ValueError, match=re.escape(str(value))):
        FIRE(4, **options)


# Rotary.


class Later(PositionScheme):
    """Another scheme, with every query and key further back by the same number of positions."""

    def __init__(self, scheme: PositionScheme, by: int) -> None:
        super().__init__()
        self.scheme, self.by = scheme, by

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return self.scheme.rotate(x, start + self.by)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("by", [1, 13, 500])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_scores_do_not_change_when_all_positions_move(return_weights: bool, by: int, base: float) -> None:
    attention, x, scheme = MultiHeadSelfAttention(16, 2, 9), 3 * torch.randn(2, 9, 16), RotaryPositions(8, base)
    here, there = attention(x, return_weights, scheme), attention(x, return_weights, Later(scheme, by))
    torch.testing.assert_close(there, here, rtol=0, atol=2e-4)
    plain = attention(x, return_weights)
    assert not torch.allclose(here[1] if return_weights else here, plain[1] if return_weights else plain, atol=1e-2)


def test_rope_turns_each_pair_at_its_own_speed_and_keeps_its_length() -> None:
    x = torch.tensor([1.0, 0.0]).repeat(3).expand(1, 1, 5, 6)
    turned = RotaryPositions(6, base=1000.0).rotate(x)[0, 0]
    for position in range(5):
        for pair, speed in enumerate((1.0, 0.1, 0.01)):
            expected = [math.cos(position * speed), math.sin(position * speed)]
            assert turned[position, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("lowered", ["cast", "autocast"])
def test_rope_angles_stay_exact_in_a_bf16_model(lowered: str) -> None:
    """Three digits of a frequency would be half a turn at position 1000."""
    x = torch.randint(-4, 5, (1, 1, 1000, 32)).float()
    scheme = RotaryPositions(32)
    expected = scheme.rotate(x)
    if lowered == "cast":
        scheme.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lowered == "autocast"):
        turned = scheme.rotate(x.bfloat16())
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("d_head", [1, 3, 7])
def test_rope_refuses_an_odd_head(d_head: int) -> None:
    with pytest.raises(ValueError, match=rf"d_head {d_head} is odd"):
        RotaryPositions(d_head)


# Random positions while training.


def first_rows(**options: str) -> tuple[PositionScheme, list[list[int]]]:
    """Which rows 400 training batches of 5 tokens got, out of 8."""
    scheme = SinusoidalPositionalEmbedding(8, 4, **options).train()
    table = scheme.table()
    drawn = [[int((table - row).abs().sum(-1).argmin()) for row in scheme(5)] for _ in range(400)]
    return scheme, drawn


def test_a_random_offset_reaches_every_start_about_equally_often() -> None:
    scheme, drawn = first_rows(train_offset="random")
    assert {tuple(rows) for rows in drawn} == {tuple(range(start, start + 5)) for start in range(4)}
    for start in range(4):
        assert 70 < sum(rows[0] == start for rows in drawn) < 130
    assert torch.equal(scheme.eval()(5), scheme.table()[:5])


def test_random_positions_increase_and_reach_every_subset() -> None:
    scheme, drawn = first_rows(train_positions="random")
    assert all(rows == sorted(set(rows)) for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == math.comb(8, 5)
    assert torch.equal(scheme.eval()(5), scheme.table()[:5])


@pytest.mark.parametrize("option", ["train_offset", "train_positions"])
def test_training_at_full_length_leaves_nothing_to_draw(option: str) -> None:
    scheme = LearnedPositionalEmbedding(8, 4, **{option: "random"}).train()
    assert torch.equal(scheme(8), scheme.embedding.weight)


def test_random_rows_receive_the_gradient() -> None:
    scheme = LearnedPositionalEmbedding(9, 2, train_positions="random").train()
    rows = scheme(4)
    rows.sum().backward()
    touched = scheme.embedding.weight.grad.abs().sum(-1) > 0
    assert torch.equal(scheme.embedding.weight[touched], rows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_offset": "rnd"}, "train_offset=rnd"),
        ({"train_positions": "all"}, "train_positions=all"),
        ({"train_offset": "random", "train_positions": "random"}, "exclude"),
    ],
)
@pytest.mark.parametrize("table", [LearnedPositionalEmbedding, SinusoidalPositionalEmbedding])
def test_unknown_or_double_choices_are_refused(table: type, options: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        table(8, 4, **options)
