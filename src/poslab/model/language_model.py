"""The base class of the language models, from token ids to logits, and the smallest model, `TinyAttentionLM`."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.model.attention import MultiHeadSelfAttention, check_context
from poslab.model.cache import LayerCache
from poslab.model.embeddings import EmbeddingComposer, TokenEmbedding
from poslab.positions import PositionScheme, default_scheme
from poslab.positions.base import Placed

Kept = TypeVar("Kept")

OnWeights = Callable[[Tensor], None]
"""Callback that receives the attention weights (B, H, T, T) of each layer in turn."""


class LanguageModel(nn.Module):
    """Token + position -> layers of attention -> linear head; a subclass defines the layers.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        max_context_length: L, the longest sequence.
        positions: the position scheme; None for a learned table (`default_scheme`).
        token_embedding: the token table; None for a new one, N(0, 0.02).

    Raises:
        ValueError: the sizes of ``token_embedding``, ``positions`` and the model differ; names the numbers.
    """

    head: nn.Linear
    n_layers: int

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_context_length: int,
        positions: PositionScheme | None,
        token_embedding: TokenEmbedding | None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.max_context_length = max_context_length
        if token_embedding is None:
            token_embedding = TokenEmbedding(vocab_size, d_model)
        elif (token_embedding.vocab_size, token_embedding.d_model) != (vocab_size, d_model):
            raise ValueError(
                f"token_embedding has vocab_size {token_embedding.vocab_size} and d_model {token_embedding.d_model}, "
                f"but the model has vocab_size {vocab_size} and d_model {d_model}; build both with the same sizes"
            )
        self.embeddings = EmbeddingComposer(token_embedding, positions or default_scheme(max_context_length, d_model))

    def make_head(self, tie_embeddings: bool) -> nn.Linear:
        """Build the head (D -> V); with ``tie_embeddings`` its weight is the token table."""
        head = nn.Linear(self.token_embedding.d_model, self.vocab_size)
        if tie_embeddings:
            head.weight = self.token_embedding.embedding.weight
        return head

    @abstractmethod
    def layer(
        self,
        index: int,
        x: Float[Tensor, "b t d"],
        on_weights: OnWeights | None = None,
        cache: LayerCache | None = None,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run one layer; return its output (B, T, D).

        Args:
            index: number of the layer, from 0.
            x: the embeddings (B, T, D), or the output of the layer before.
            on_weights: called with the attention weights (B, H, T, T) of this layer; None runs the fused kernel.
            cache: keys and values of the tokens before ``x``, to which those of ``x`` are appended; None for no cache.
            placed: positions of the tokens of each row; None for 0, 1, 2, ..
        """

    def after_layers(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Map the output of the last layer (B, T, D) to the input of the head (B, T, D)."""
        return x

    def body(
        self,
        x: Float[Tensor, "b t d"],
        on_weights: OnWeights | None = None,
        cache: Sequence[LayerCache] | None = None,
        first: int = 0,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run the layers from ``first`` on; return the input of the head (B, T, D).

        Args:
            x: the embeddings (B, T, D), or the output of the layer before ``first``.
            on_weights: as in `layer`, called once per layer.
            cache: one cache per layer, as in `layer`.
            first: number of the first layer to run.
            placed: as in `layer`.
        """
        for index in range(first, self.n_layers):
            x = self.layer(index, x, on_weights, cache[index] if cache else None, placed)
        return self.after_layers(x)

    @abstractmethod
    def body_parts(self) -> Mapping[str, nn.Module]:
        """Named modules of the body, for the parameter counts."""

    @property
    def token_embedding(self) -> TokenEmbedding:
        return self.embeddings.token_embedding

    @property
    def positions(self) -> PositionScheme:
        return self.embeddings.positional_embedding

    @property
    def note(self) -> str:
        """What a person should know about the model before it is trained; mostly empty."""
        return "; ".join(filter(None, [self.positions.note, self.token_embedding.note]))

    def parts(self) -> dict[str, nn.Module]:
        """Named modules whose parameter counts are reported; a shared parameter belongs to the first that has it."""
        return {
            "token_embedding": self.token_embedding,
            "position": self.positions,
            **self.body_parts(),
            "head": self.head,
        }

    def extended(self, max_context_length: int) -> "LanguageModel":
        """Return a model with the same parameters for sequences of up to ``max_context_length`` tokens.

        This is the model itself if its context is long enough, else an independent deep copy.

        Raises:
            ValueError: the position scheme ends before ``max_context_length``; names both numbers.
        """
        if max_context_length <= self.max_context_length:
            return self
        # Checked before the scheme is extended: its table may need much memory too.
        check_context(max_context_length)
        longer = copy.deepcopy(self)
        longer.positions.extend(max_context_length)
        for attention in longer.attention_layers():
            attention.extend(max_context_length)
        longer.max_context_length = max_context_length
        return longer

    def attention_layers(self) -> list[MultiHeadSelfAttention]:
        """The attention modules, in the order of the layers."""
        return [module for module in self.modules() if isinstance(module, MultiHeadSelfAttention)]

    def new_cache(self) -> list[LayerCache]:
        """An empty cache for `read`: one `LayerCache` per layer, for the whole context."""
        return [LayerCache(layer.max_context_length) for layer in self.attention_layers()]

    @torch.no_grad()
    def read(self, ids: Int64[Tensor, "b t"], cache: Sequence[LayerCache]) -> Float[Tensor, "b t v"]:
        """Logits (B, T, V) for the token after each of the ids (B, T), which continue the cached sequence.

        The ids are appended to the cache. The logits equal those of `forward` on the whole sequence within float
        tolerance, but only the new ids are computed. For evaluation only: there is no gradient.

        Args:
            ids: one or more new tokens per row.
            cache: from `new_cache`; every call must have the same number of rows.

        Raises:
            ValueError: the model is in training mode, or the sequence becomes longer than L; names both numbers.
            TypeError, ValueError: from the embedding and the layers, with the numbers.
        """
        if self.training:
            raise ValueError("a cache is for evaluation, but the model is in training mode; call model.eval() first")
        start = cache[0].length
        if start + ids.shape[-1] > self.max_context_length:
            raise ValueError(
                f"sequence of {start + ids.shape[-1]} tokens is longer than max_context_length "
                f"{self.max_context_length}; shorten it, or see extended()"
            )
        return self.head(self.body(self.embeddings(ids, start), None, cache))

    @overload
    def attention_maps(self, ids: Int64[Tensor, "b t"]) -> list[Float[Tensor, "b h t t"]]: ...
    @overload
    def attention_maps(self, ids: Int64[Tensor, "b t"], keep: Callable[[Tensor], Kept]) -> list[Kept]: ...
    def attention_maps(self, ids: Int64[Tensor, "b t"], keep: Callable[[Tensor], Kept] | None = None) -> list[Any]:
        """The attention weights (B, H, T, T) of every layer, in fp32; with ``keep`` one result of it per layer.

        Args:
            ids: token ids (B, T).
            keep: maps the weights of one layer to what is returned for it. The weights are freed before the next layer
                runs, because those of all layers may not fit into memory. None returns the weights themselves.
        """
        kept: list[Any] = []
        self.body(self.embeddings(ids), lambda weights: kept.append(weights if keep is None else keep(weights)))
        return kept


class TinyAttentionLM(LanguageModel):
    """Token + position -> one attention layer -> linear head; no residual, no MLP, no norm.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        n_heads: H; must divide D.
        max_context_length: L, the longest sequence.
        positions: the position scheme; None for a learned table.
        tie_embeddings: use the token table as the weight of the head; it counts as one parameter matrix.
        token_embedding: the token table; None for a new one, N(0, 0.02).
        dropout: probability of dropping an attention weight during training.

    Raises:
        ValueError: sizes that do not match; names the numbers.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_heads: int,
        max_context_length: int,
        *,
        positions: PositionScheme | None = None,
        tie_embeddings: bool = False,
        token_embedding: TokenEmbedding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(vocab_size, d_model, max_context_length, positions, token_embedding)
        self.n_layers = 1
        self.attention = MultiHeadSelfAttention(d_model, n_heads, max_context_length, dropout=dropout)
        self.head = self.make_head(tie_embeddings)

    def body_parts(self) -> Mapping[str, nn.Module]:
        return {"attention": self.attention}

    def layer(
        self,
        index: int,
        x: Float[Tensor, "b t d"],
        on_weights: OnWeights | None = None,
        cache: LayerCache | None = None,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"]:
        if on_weights is None:
            return self.attention(x, positions=self.positions.layer(index), cache=cache, placed=placed)
        x, weights = self.attention(x, return_weights=True, positions=self.positions.layer(index), placed=placed)
        on_weights(weights)
        return x

    def forward(
        self, ids: Int64[Tensor, "b t"], return_weights: bool = False, placed: Placed | None = None
    ) -> Float[Tensor, "b t v"] | tuple[Float[Tensor, "b t v"], Float[Tensor, "b h t t"]]:
        """Logits (B, T, V) for the token after each of the ids (B, T).

        Args:
            ids: token ids.
            return_weights: also return the attention weights (B, H, T, T), in fp32.
            placed: positions of the tokens of each row; None for 0, 1, 2, ..

        Raises:
            TypeError, ValueError: from the embedding and the attention, with the numbers.
        """
        maps: list[Tensor] = []
        x = self.embeddings(ids, placed=placed)
        logits = self.head(self.body(x, maps.append if return_weights else None, placed=placed))
        return (logits, maps[0]) if return_weights else logits
