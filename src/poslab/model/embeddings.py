"""Token embedding and its sum with the position vectors."""

import math
import pickle
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions import PositionScheme
from poslab.positions.base import Placed

KNUTH_MULTIPLIER = 2654435761


def hashed_table(n_rows: int, d_model: int) -> Float[Tensor, "v d"]:
    """Deterministic initial table (V, D) in fp32: the same values in every build, on every machine.

    With ``k = row * D + column``: ``w = (((k * 2654435761) mod 1000) / 1000 - 0.5) / sqrt(D)``, so every weight lies
    in ``[-0.5, 0.5) / sqrt(D)``.

    Source of the multiplier: Knuth, The Art of Computer Programming, vol. 3, section 6.4.
    """
    k = torch.arange(n_rows * d_model, dtype=torch.int64).view(n_rows, d_model)
    # Both factors are reduced modulo 1000 before the product, so that int64 cannot overflow.
    residue = ((k % 1000) * (KNUTH_MULTIPLIER % 1000)) % 1000
    return ((residue.to(torch.float64) / 1000 - 0.5) / d_model**0.5).to(torch.float32)


def table_from_file(path: str | Path, n_rows: int, d_model: int) -> Float[Tensor, "v d"]:
    """Load the table (V, D) from a ``.npy`` file or from a ``.pt`` file that contains one tensor; values are unchanged.

    Raises:
        ValueError: the file does not exist, has another suffix, cannot be read, does not contain floating-point
            numbers, has another shape (names both shapes), or contains NaN or infinite numbers (names the row).
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"token_file {path} does not exist; give a .npy or .pt file of shape ({n_rows}, {d_model})")
    if path.suffix not in (".npy", ".pt"):
        raise ValueError(f"token_file {path} ends in '{path.suffix}'; give a .npy or .pt file")
    try:
        if path.suffix == ".npy":
            rows = torch.from_numpy(np.load(path, allow_pickle=False))
        else:
            rows = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        # The libraries' own text is left out: it recommends loading the file without the safeguard.
        raise ValueError(f"token_file {path} cannot be read as a {path.suffix} file of plain numbers") from error
    found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
    if found != (n_rows, d_model) or not isinstance(rows, Tensor) or not rows.is_floating_point():
        raise ValueError(
            f"token_file {path} has {found}, but the model needs floating-point rows of shape ({n_rows}, {d_model})"
        )
    if not bool(rows.isfinite().all()):
        row = int((~rows.isfinite()).any(dim=1).nonzero()[0])
        raise ValueError(f"token_file {path} holds numbers that are not finite, the first in row {row}; give others")
    return rows


def repeated_rows(n_rows: int, d_model: int) -> str:
    """A note on a hashed table with equal rows, whose tokens the model cannot tell apart; empty if all rows differ."""
    period = 1000 // math.gcd(1000, d_model)
    if n_rows <= period:
        return ""
    return (
        f"model.token_init=hashed with model.d_model={d_model} has {period} different rows for {n_rows} tokens: every "
        f"{period}th token starts with the same vector; use token_init=normal"
    )


class TokenEmbedding(nn.Module):
    """One trainable vector per token of the vocabulary, in ``.embedding.weight`` (V, D).

    Args:
        vocab_size: V, the number of rows.
        d_model: D, the width of a row.
        init_std: standard deviation of the normal initialisation.
        token_init: ``normal`` for N(0, init_std), ``hashed`` for `hashed_table`, ``file`` for `table_from_file`.
        token_file: the file to read with ``token_init="file"``.

    Attributes:
        note: what a person should know about the initial table; mostly empty.

    Raises:
        ValueError: a size below 1, a negative ``init_std``, an unknown ``token_init``, or an unusable file.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        init_std: float = 0.02,
        token_init: str = "normal",
        token_file: str | Path | None = None,
    ) -> None:
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError(f"vocab_size {vocab_size} and d_model {d_model} must be at least 1")
        if init_std < 0:
            raise ValueError(f"init_std {init_std} must not be negative")
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.note = repeated_rows(vocab_size, d_model) if token_init == "hashed" else ""
        self.embedding = nn.Embedding(vocab_size, d_model)
        weight = self.embedding.weight
        with torch.no_grad():
            if token_init == "normal":
                weight.normal_(std=init_std)
            elif token_init == "hashed":
                weight.copy_(hashed_table(vocab_size, d_model))
            elif token_init == "file" and token_file is not None:
                weight.copy_(table_from_file(token_file, vocab_size, d_model))
            else:
                raise ValueError(
                    f"token_init '{token_init}' with token_file {token_file}: "
                    "use normal, hashed, or file together with a token_file"
                )

    def forward(self, ids: Int64[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Vectors (B, T, D) of the ids (B, T).

        On a CPU the embedding kernel checks the bounds itself, so valid ids need no second check. On an accelerator
        the kernel would abort the process, and a check here would have to wait for the device. There this method
        checks ids in evaluation mode only; the data module checks every training batch before it leaves the host.

        Raises:
            TypeError: the ids are not int64.
            ValueError: the ids are not 2-D, or an id is outside ``[0, V)``; names the id and V.
        """
        if ids.dtype != torch.int64:
            raise TypeError(f"ids are {ids.dtype}, but the look-up needs torch.int64; convert with ids.long()")
        if ids.dim() != 2:
            raise ValueError(f"ids have shape {tuple(ids.shape)}, but the look-up needs two axes (B, T)")
        if ids.device.type != "cpu" and not self.training:
            check_ids(ids, self.vocab_size)
        try:
            return self.embedding(ids)
        except IndexError:
            check_ids(ids, self.vocab_size)
            raise

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, d_model={self.d_model}"


def check_ids(ids: Int64[Tensor, "b t"], vocab_size: int) -> None:
    """Raise if an id has no row in the table.

    Raises:
        ValueError: an id is outside ``[0, vocab_size)``; names the first such id and the size.
    """
    outside = (ids < 0) | (ids >= vocab_size)
    if bool(outside.any()):
        raise ValueError(
            f"token id {int(ids[outside][0])} is outside the vocabulary [0, {vocab_size}); "
            f"check the data, or build the model with a larger vocab_size"
        )


class EmbeddingComposer(nn.Module):
    """Sum of token vectors and position vectors; the position vectors are broadcast over the batch.

    Args:
        token_embedding: maps ids (B, T) to vectors (B, T, D).
        positional_embedding: a scheme whose ``forward(seq_len)`` returns vectors (T, D), or None to add nothing.

    Raises:
        ValueError: the two have different ``d_model``; names both.
    """

    def __init__(self, token_embedding: TokenEmbedding, positional_embedding: PositionScheme) -> None:
        super().__init__()
        width = positional_embedding.d_model
        if width is not None and width != token_embedding.d_model:
            raise ValueError(
                f"token vectors have d_model {token_embedding.d_model}, but position vectors have d_model {width}; "
                "build both with one size"
            )
        self.token_embedding = token_embedding
        self.positional_embedding = positional_embedding

    def forward(
        self, ids: Int64[Tensor, "b t"], start: int = 0, placed: Placed | None = None
    ) -> Float[Tensor, "b t d"]:
        """Token plus position vectors (B, T, D) of the ids (B, T) at positions ``start .. start + T - 1``.

        With ``placed`` the tokens are at its positions instead.

        Raises:
            TypeError, ValueError: from `TokenEmbedding` and the scheme.
        """
        tokens = self.token_embedding(ids)
        scheme, seq_len = self.positional_embedding, ids.shape[1]
        positions: Tensor | None
        if placed is not None:
            positions = scheme.embed_at(placed)
        else:
            positions = scheme.embed(seq_len, start) if start else scheme(seq_len)
        return tokens if positions is None else tokens + positions
