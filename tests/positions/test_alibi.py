"""ALiBi against the slopes of its paper."""

import pytest

from poslab.positions import ALiBi


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


def test_with_one_head_a_person_is_told_that_it_is_nearly_none() -> None:
    assert "pos=alibi with model.n_heads=1 is nearly pos=none" in ALiBi(1).note
    assert all(ALiBi(heads).note == "" for heads in (2, 3, 8))
