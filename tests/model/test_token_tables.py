"""Initial token tables that cannot be trained from, or not well."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from poslab import TokenEmbedding
from poslab.model.embeddings import hashed_table


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_rows_that_are_not_finite_are_refused(wrong: float, suffix: str, tmp_path: Path) -> None:
    rows = torch.ones(5, 3)
    rows[3, 1] = wrong
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npy":
        np.save(path, rows.numpy())
    else:
        torch.save(rows, path)
    with pytest.raises(ValueError, match="numbers that are not finite, the first in row 3"):
        TokenEmbedding(5, 3, token_init="file", token_file=path)


@pytest.mark.parametrize(("d_model", "period"), [(32, 125), (64, 125), (10, 100), (48, 125), (7, 1000), (1000, 1)])
def test_a_hashed_table_with_equal_rows_says_so(d_model: int, period: int) -> None:
    table = hashed_table(period + 1, d_model)
    assert len(torch.unique(table, dim=0)) == period
    assert torch.equal(table[0], table[period])
    assert TokenEmbedding(period, d_model, token_init="hashed").note == ""
    note = TokenEmbedding(period + 1, d_model, token_init="hashed").note
    assert note.startswith(f"model.token_init=hashed with model.d_model={d_model} has {period} different rows for ")
    assert TokenEmbedding(period + 1, d_model).note == ""
