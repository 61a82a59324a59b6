"""Which validation rows occurred in training too."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from poslab.data.rows import row_hashes
from poslab.data.stream import FixedBatches, ReplicaBatch

TOKENS_AT_ONCE = 2**18
"""Training rows are hashed together when they have this many tokens: batch by batch it would take ten times as long."""


class ValidationRows(NamedTuple):
    """How much a validation set says about new data.

    Attributes:
        rows: number of rows.
        distinct_rows: number of different rows.
        seen_in_training: share of the rows that also occurred in training.
    """

    rows: int
    distinct_rows: int
    seen_in_training: float


class MetRows:
    """Marks the validation rows of one seed that occur among training rows.

    Args:
        validation: the validation set.
    """

    def __init__(self, validation: FixedBatches) -> None:
        self._rows = np.concatenate([row_hashes(batch.tokens.numpy()) for batch in validation.batches])
        self._distinct = np.unique(self._rows)
        self.met = np.zeros(len(self._distinct), dtype=bool)

    def add(self, tokens: Int64[np.ndarray, "b t"]) -> None:
        """Mark the validation rows that are among these training rows."""
        self.met |= np.isin(self._distinct, row_hashes(tokens))

    def counts(self) -> ValidationRows:
        seen = np.isin(self._rows, self._distinct[self.met])
        return ValidationRows(len(self._rows), len(self._distinct), float(seen.mean()))


class MetByReplica:
    """Marks the validation rows that each replica has been trained on, while the batches go by.

    Args:
        validation: the validation set of each replica.

    Attributes:
        n_batches: number of training batches so far.
    """

    def __init__(self, validation: Sequence[FixedBatches]) -> None:
        self.n_batches = 0
        self._replicas = [MetRows(one) for one in validation]
        self._waiting: list[tuple[Tensor, tuple[int, ...]]] = []
        self._tokens = 0

    def add(self, batch: ReplicaBatch) -> None:
        """Take a training batch (N, B, T), which is on the CPU."""
        self.n_batches += 1
        # Cloned: a tensor from a data worker keeps a file open.
        self._waiting.append((batch.tokens.clone(), batch.seq_lens))
        self._tokens += batch.tokens.numel()
        if self._tokens >= TOKENS_AT_ONCE:
            self._hash_waiting()

    def counts(self, replica: int) -> ValidationRows:
        self._hash_waiting()
        return self._replicas[replica].counts()

    def state_dict(self) -> dict[str, Any]:
        self._hash_waiting()
        return {"n_batches": self.n_batches, "met": [torch.from_numpy(one.met.copy()) for one in self._replicas]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting.clear()
        self.n_batches, self._tokens = state["n_batches"], 0
        for one, met in zip(self._replicas, state["met"], strict=True):
            one.met = met.numpy().copy()

    def _hash_waiting(self) -> None:
        for index, replica in enumerate(self._replicas):
            by_length = defaultdict(list)
            for tokens, seq_lens in self._waiting:
                # Without the padding.
                by_length[seq_lens[index]].append(tokens[index, :, : seq_lens[index]])
            for rows in by_length.values():
                replica.add(torch.cat(rows).numpy())
        self._waiting.clear()
        self._tokens = 0
