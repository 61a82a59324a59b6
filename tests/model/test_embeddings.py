"""The token table: look-up, gradient, starts; and its sum with the position vectors."""

import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from poslab import (
    EmbeddingComposer,
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
    TokenEmbedding,
    count_parameters,
)
from poslab.model.embeddings import hashed_table
from poslab.positions import NoPositions


def tens(rows: int = 4) -> TokenEmbedding:
    """Row v is (10v, 10v + 1)."""
    token = TokenEmbedding(rows, 2)
    with torch.no_grad():
        token.embedding.weight.copy_(torch.tensor([[10.0 * v, 10.0 * v + 1] for v in range(rows)]))
    return token


# Look-up and gradient.


def test_look_up() -> None:
    vectors = tens()(torch.tensor([[2, 0]]))
    assert vectors.tolist() == [[[20, 21], [0, 1]]]


def test_look_up_keeps_batch_and_time_apart() -> None:
    vectors = tens()(torch.tensor([[2, 0, 1], [3, 3, 0]]))
    assert vectors.shape == (2, 3, 2)
    assert vectors[..., 0].tolist() == [[20, 0, 10], [30, 30, 0]]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((1, 1), {1: [4, 6]}),
        ((1, 3), {1: [1, 2], 3: [3, 4]}),
        ((0, 2), {0: [1, 2], 2: [3, 4]}),
    ],
)
def test_gradient_sums_per_row_and_leaves_the_others_zero(
    ids: tuple[int, int], expected: dict[int, list[float]]
) -> None:
    token = tens(5)
    token(torch.tensor([ids])).backward(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    assert token.embedding.weight.grad.tolist() == [expected.get(row, [0, 0]) for row in range(5)]


def test_one_parameter_per_cell() -> None:
    token = TokenEmbedding(65, 32)
    assert token.embedding.weight.shape == (65, 32)
    assert count_parameters(token) == 65 * 32
    assert set(token.state_dict()) == {"embedding.weight"}


# What is refused.


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32, torch.bool])
def test_ids_that_are_not_int64_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"{dtype}\b.*int64"):
        tens()(torch.zeros(1, 2, dtype=dtype))


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_ids_that_are_not_2d_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(").replace(")", r"\)")):
        tens()(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([[0, 4]], 4),
        ([[0, 1], [1, 17]], 17),
        ([[-1, 0]], -1),
        ([[2, -100]], -100),
        ([[2**40, 0]], 2**40),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_by_name(training: bool, ids: list[list[int]], named: int) -> None:
    token = tens(4).train(training)
    with pytest.raises(ValueError, match=rf"(?<![-\d]){named}\b.*\b4\b"):
        token(torch.tensor(ids))


@pytest.mark.parametrize(("vocab_size", "d_model"), [(0, 8), (5, 0), (-1, 8)])
def test_an_empty_table_is_refused(vocab_size: int, d_model: int) -> None:
    with pytest.raises(ValueError, match=rf"(?<!\d){vocab_size}\b.*(?<!\d){d_model}\b"):
        TokenEmbedding(vocab_size, d_model)


def test_a_negative_spread_is_refused() -> None:
    with pytest.raises(ValueError, match=r"-0\.5"):
        TokenEmbedding(5, 8, init_std=-0.5)


@pytest.mark.parametrize("options", [{"token_init": "zipf"}, {"token_init": "file"}])
def test_an_unknown_start_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=options["token_init"]):
        TokenEmbedding(5, 8, **options)


# Starts.


@pytest.mark.parametrize("std", [None, 0.02, 1.0])
def test_normal_start(std: float | None) -> None:
    options = {} if std is None else {"init_std": std}
    weight = TokenEmbedding(1000, 100, **options).embedding.weight.detach()
    std = 0.02 if std is None else std
    assert float(weight.std()) == pytest.approx(std, rel=0.01)
    assert abs(float(weight.mean())) < 4 * std / 100_000**0.5
    # A normal, not a uniform with the same spread: 68.3 % of it lies within one standard deviation.
    assert float((weight.abs() < std).float().mean()) == pytest.approx(0.6827, abs=0.006)


@pytest.mark.parametrize(("rows", "width"), [(65, 32), (5, 1), (3, 7), (200, 64)])
def test_hashed_start_follows_the_formula(rows: int, width: int) -> None:
    """Held to plain Python integers, which do not overflow."""
    weight = TokenEmbedding(rows, width, token_init="hashed").embedding.weight
    expected = [
        [((((row * width + column) * 2654435761) % 1000) / 1000 - 0.5) / math.sqrt(width) for column in range(width)]
        for row in range(rows)
    ]
    torch.testing.assert_close(weight.detach(), torch.tensor(expected), rtol=0, atol=1e-7)


def test_hashed_start_lies_in_its_range() -> None:
    scaled = hashed_table(300, 64) * 8
    assert float(scaled.min()) == -0.5
    assert float(scaled.max()) == pytest.approx(0.499)
    assert float(scaled.max()) < 0.5


def test_hashed_start_is_the_same_in_every_build() -> None:
    torch.manual_seed(1)
    first = TokenEmbedding(65, 32, token_init="hashed").embedding.weight
    torch.manual_seed(2)
    second = TokenEmbedding(65, 32, init_std=3.0, token_init="hashed").embedding.weight
    assert torch.equal(first, second)


def test_rows_of_an_npy_file_come_out_unchanged(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    token = TokenEmbedding(5, 3, token_init="file", token_file=tmp_path / "rows.npy")
    assert np.array_equal(token.embedding.weight.detach().numpy(), rows)


@pytest.mark.parametrize("as_parameter", [False, True])
def test_rows_of_a_pt_file_come_out_unchanged_and_trainable(tmp_path: Path, as_parameter: bool) -> None:
    rows = torch.randn(5, 3)
    torch.save(torch.nn.Parameter(rows) if as_parameter else rows, tmp_path / "rows.pt")
    token = TokenEmbedding(5, 3, token_init="file", token_file=str(tmp_path / "rows.pt"))
    assert torch.equal(token.embedding.weight, rows)
    assert token.embedding.weight.requires_grad
    assert token.embedding.weight.is_leaf


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
@pytest.mark.parametrize("shape", [(4, 3), (5, 2), (3, 5), (15,), (1, 5, 3)])
def test_a_file_of_another_shape_is_refused_with_both(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npy":
        np.save(path, np.zeros(shape, dtype=np.float32))
    else:
        torch.save(torch.zeros(shape), path)
    with pytest.raises(ValueError, match=r"rows\.") as refusal:
        TokenEmbedding(5, 3, token_init="file", token_file=path)
    assert str(shape) in str(refusal.value)
    assert "(5, 3)" in str(refusal.value)


def test_a_file_of_whole_numbers_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((5, 3), dtype=np.int64))
    with pytest.raises(ValueError, match="floating"):
        TokenEmbedding(5, 3, token_init="file", token_file=tmp_path / "ids.npy")


def test_a_file_with_more_than_one_tensor_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(5, 3)}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match="dict"):
        TokenEmbedding(5, 3, token_init="file", token_file=tmp_path / "state.pt")


@pytest.mark.parametrize("name", ["missing.npy", "missing.pt"])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TokenEmbedding(5, 3, token_init="file", token_file=tmp_path / name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("0 1 2")
    with pytest.raises(ValueError, match=r"\.txt"):
        TokenEmbedding(5, 3, token_init="file", token_file=tmp_path / "rows.txt")


class MakesAFolder:
    """Unpickling this makes the folder: what a hostile file would do with any call it likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["pt", "plain pickle as pt", "npy"])
def test_a_file_that_would_run_code_is_refused(tmp_path: Path, kind: str) -> None:
    """Before anything of it ran."""
    made = tmp_path / "made"
    path = tmp_path / ("rows.npy" if kind == "npy" else "rows.pt")
    if kind == "pt":
        torch.save(MakesAFolder(made), path)
    elif kind == "npy":
        np.save(path, np.array([MakesAFolder(made)], dtype=object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(MakesAFolder(made), protocol=2))
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        TokenEmbedding(5, 3, token_init="file", token_file=path)
    assert not made.exists()


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
@pytest.mark.parametrize("content", [b"", b"not a table", bytes(range(256))])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"rows\{suffix}"):
        TokenEmbedding(5, 3, token_init="file", token_file=path)


# The sum.


@pytest.mark.parametrize("table", [LearnedPositionalEmbedding, SinusoidalPositionalEmbedding])
def test_composer_adds_the_position_vectors_to_every_row_of_the_batch(table: type[PositionScheme]) -> None:
    token, position = TokenEmbedding(7, 4), table(12, 4)
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 6, 0, 1, 1], [0, 0, 0, 0, 0]])
    composed = EmbeddingComposer(token, position)(ids)
    assert composed.shape == (3, 5, 4)
    for row in range(3):
        for t in range(5):
            expected = token.embedding.weight[ids[row, t]] + position.table()[t]
            assert torch.equal(composed[row, t], expected)


def test_composer_gradient_of_a_position_sums_over_the_batch() -> None:
    position = LearnedPositionalEmbedding(12, 4)
    EmbeddingComposer(TokenEmbedding(7, 4), position)(torch.zeros(3, 5, dtype=torch.int64)).sum().backward()
    assert position.embedding.weight.grad[:, 0].tolist() == [3.0] * 5 + [0.0] * 7


def test_composer_refuses_two_widths_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
        EmbeddingComposer(TokenEmbedding(7, 6), LearnedPositionalEmbedding(12, 4))


def test_composer_takes_a_scheme_without_a_table() -> None:
    token = TokenEmbedding(7, 4)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(EmbeddingComposer(token, NoPositions())(ids), token(ids))


def test_composer_refuses_a_sequence_longer_than_the_table() -> None:
    with pytest.raises(ValueError, match=r"\b5\b.*\b4\b"):
        EmbeddingComposer(TokenEmbedding(7, 2), LearnedPositionalEmbedding(4, 2))(torch.zeros(1, 5, dtype=torch.int64))
