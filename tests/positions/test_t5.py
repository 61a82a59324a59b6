"""T5's bias against the buckets of its paper."""

import pytest
import torch

from poslab import (
    count_parameters,
)
from poslab.positions import T5Bias


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
