"""Hashes of rows: which rows are the same, and which rows are held out of training."""

from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int64, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(tokens: Int64[np.ndarray, "b t"]) -> UInt64[np.ndarray, " b"]:
    """Hash the tokens of each row to 64 bits; the same row has the same hash in every run and on every machine."""
    numbers = tokens.astype(np.uint64) + np.uint64(1)
    return _mixed((numbers * _factors(tokens.shape[1])).sum(axis=1, dtype=np.uint64))


def held_out(tokens: Int64[np.ndarray, "b t"], share: float) -> Bool[np.ndarray, " b"]:
    """Choose the rows that are held out of training: of all different rows, about ``share`` of them."""
    return (row_hashes(tokens) >> np.uint64(11)) * 2.0**-53 < share


@lru_cache(maxsize=512)
def _factors(n_tokens: int) -> UInt64[np.ndarray, " t"]:
    """A fixed odd factor for each position, so that the order of the tokens counts."""
    return _mixed(np.arange(n_tokens, dtype=np.uint64)) | np.uint64(1)


def _mixed(numbers: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Spread numbers evenly over 64 bits.

    Source: Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    numbers = numbers + GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
