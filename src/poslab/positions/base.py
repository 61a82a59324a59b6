"""The interface of all position schemes: methods that do nothing until a scheme overrides them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


def distances(n_queries: int, n_keys: int, device: torch.device) -> Int64[Tensor, "t_q t_k"]:
    """Distance ``i - j`` of each query i to each key j, (T_q, T_k), for the last ``n_queries`` of ``n_keys`` positions.

    Negative for keys after the query; the causal mask hides those.
    """
    positions = torch.arange(n_keys, device=device)
    return positions[n_keys - n_queries :, None] - positions[None, :]


class Placed(NamedTuple):
    """The positions of the tokens of each row, where they are not 0, 1, 2, ..

    Attributes:
        positions: of each token, (B, T); those of a row are distinct and grow.
        n: all of them are below n.
    """

    positions: Int64[Tensor, "b t"]
    n: int

    def distances(self) -> Int64[Tensor, "b 1 t t"]:
        """Distance ``i - j`` of each query's position i to each key's j, (B, 1, T, T)."""
        return (self.positions[:, :, None] - self.positions[:, None, :]).unsqueeze(1)


class PositionScheme(nn.Module):
    """Base class of the modules that tell a model the position of each token.

    A scheme overrides one or more methods; the defaults do nothing:

    - `embed`: vectors that are added to the token vectors (learned and sinusoidal tables);
    - `rotate`: maps queries and keys by their positions (rotary schemes); `rotate_keys` if keys are mapped differently;
    - `bias`: numbers that are added to the attention scores (ALiBi, T5);
    - `content_bias`: the same for numbers that depend on queries and keys too, and on `features` of the tokens;
    - `layer`: a scheme of its own for each layer.

    Constructor arguments named ``max_context_length``, ``d_model``, ``n_heads``, ``d_head`` and ``n_layers`` are filled
    in from the model's configuration; all others are options in the scheme's yaml file.
    """

    max_context_length: int | None = None
    """The longest sequence that the scheme supports; None if there is no limit."""

    d_model: int | None = None
    """The width of the vectors from `embed`; None if the scheme adds none."""

    sees: str = "positions"
    """What the scheme depends on: ``positions``, ``distances`` only (moving all tokens by the same number of positions
    changes nothing), or ``order`` only (any growing positions are the same)."""

    note: str = ""
    """What a person should know before a run with these sizes, in one line; empty for nothing."""

    drawn: Int64[Tensor, " t"] | None = None
    """Positions (T,) for the next training batch, drawn earlier by `draw`; None: `embed` draws them itself."""

    def draw(self, seq_len: int) -> Int64[Tensor, " t"] | None:
        """Draw the positions (T,) of one training batch from torch's global generator; None if nothing is random.

        A scheme with random positions in training must draw them like this, and use `drawn` instead if it is set.
        """
        return None

    def embed(self, seq_len: int, start: int = 0) -> Float[Tensor, "t d"] | None:
        """Vectors (T, D) to add to the token vectors at positions ``start .. start + seq_len - 1``; None adds nothing.

        Raises:
            ValueError: a position is outside the table.
        """
        return None

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_rotated"]:
        """Rotate queries or keys (B, H, T, d_head) that are at positions ``start .. start + T - 1``.

        The result may be wider than d_head, if that of `rotate_keys` is too.
        """
        return x

    def rotate_keys(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_rotated"]:
        """Rotate keys where that differs from `rotate`, which then gets the queries only."""
        return self.rotate(x, start)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"] | None:
        """Bias (H, T_q, T_k) for the scores of the last ``n_queries`` of ``n_keys`` positions; None adds nothing.

        Entries for keys after the query are ignored: the causal mask hides those keys.
        """
        return None

    def features(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t f"] | None:
        """What `content_bias` needs to know of each token besides its key, (B, H, T, F); None for nothing.

        A key/value cache keeps it, so a token's features must not depend on other tokens.

        Args:
            x: the input of the attention layer.
        """
        return None

    def content_bias(
        self,
        q: Float[Tensor, "b h t_q d_rotated"],
        k: Float[Tensor, "b h t_k d_rotated"],
        features: Float[Tensor, "b h t_k f"] | None,
        behind: Int64[Tensor, "t_q t_k"] | Int64[Tensor, "b 1 t_q t_k"],
    ) -> Float[Tensor, "b h t_q t_k"] | None:
        """Bias (B, H, T_q, T_k) that depends on the content, for the last T_q of T_k positions; None adds nothing.

        It is added to the scaled scores and to `bias`. Entries for keys after the query are ignored.

        Args:
            q: the queries, after `rotate`.
            k: the keys, after `rotate_keys`.
            features: of all T_k tokens, from `features`.
            behind: distance ``i - j`` of each query to each key; negative for keys after the query.
        """
        return None

    def embed_at(self, placed: Placed) -> Float[Tensor, "b t d"] | None:
        """As `embed`, (B, T, D), for tokens at the given positions."""
        vectors = self.embed(placed.n)
        return None if vectors is None else vectors[placed.positions]

    def rotate_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_rotated"]:
        """As `rotate`, for tokens at the given positions."""
        return _at(self.rotate, x, placed)

    def rotate_keys_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_rotated"]:
        """As `rotate_keys`, for tokens at the given positions."""
        return _at(self.rotate_keys, x, placed)

    def bias_at(self, placed: Placed) -> Float[Tensor, "b h t t"] | None:
        """As `bias`, (B, H, T, T), for tokens at the given positions."""
        whole = self.bias(placed.n, placed.n)
        if whole is None:
            return None
        return whole[:, placed.positions[:, :, None], placed.positions[:, None, :]].transpose(0, 1)

    def layer(self, index: int) -> "PositionScheme":
        """The scheme that acts in one attention layer, counted from 0: by default the same in all layers."""
        return self

    def table(self) -> Float[Tensor, "l d"] | None:
        """All vectors that `embed` can add, (L, D), for diagnostics; None for a scheme without a table."""
        return None if self.max_context_length is None else self.embed(self.max_context_length)

    def trained_table(self, seq_len: int) -> Float[Tensor, "n d"] | None:
        """The first rows of `table` up to the last one that training sequences of up to ``seq_len`` tokens can use."""
        table = self.table()
        return None if table is None else table[:seq_len]

    def extend(self, max_context_length: int) -> None:
        """Extend the scheme to sequences of ``max_context_length`` tokens; without a limit there is nothing to do.

        Raises:
            ValueError: the scheme cannot be extended that far; names both numbers.
        """
        if self.max_context_length is not None and max_context_length > self.max_context_length:
            raise ValueError(
                f"{type(self).__name__} has {self.max_context_length} positions and cannot place {max_context_length} "
                f"tokens; it has to be trained with max_context_length {max_context_length} or more"
            )

    def forward(self, seq_len: int) -> Float[Tensor, "t d"] | None:
        """The vectors (T, D) of positions ``0 .. seq_len - 1``, from `embed`; None for a scheme without vectors."""
        return self.embed(seq_len)

    def check_range(self, seq_len: int, start: int = 0) -> None:
        """Raise if a table of ``max_context_length`` rows does not have all these positions.

        The check runs on the host before the look-up: on an accelerator a wrong index aborts the process.

        Raises:
            ValueError: ``seq_len < 1``, ``start < 0`` or ``start + seq_len > max_context_length``.
        """
        end = start + seq_len
        if seq_len < 1 or start < 0 or (self.max_context_length is not None and end > self.max_context_length):
            where = f"seq_len {seq_len}" if start == 0 else f"positions {start} to {end - 1}"
            raise ValueError(
                f"{where} does not fit max_context_length {self.max_context_length}; "
                f"use 1 to {self.max_context_length} positions or build a longer table"
            )


def _at(rotate: Callable[[Tensor], Tensor], x: Tensor, placed: Placed) -> Tensor:
    """Rotate with a function that takes consecutive positions only: it gets a row with all n positions."""
    index = placed.positions[:, None, :, None]
    every = x.new_zeros((*x.shape[:2], placed.n, x.shape[-1])).scatter(2, index.expand_as(x), x)
    rotated = rotate(every)
    if rotated is every:
        return x
    return rotated.gather(2, index.expand(*x.shape[:3], rotated.shape[-1]))


class PerLayer(PositionScheme):
    """Base class of schemes with parameters of their own in each layer.

    Args:
        layers: the scheme of each layer, in order; `embed` is that of the whole scheme.
    """

    def __init__(self, layers: Iterable[PositionScheme]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def layer(self, index: int) -> PositionScheme:
        """The scheme of one layer."""
        scheme = self.layers[index]
        assert isinstance(scheme, PositionScheme)
        return scheme
