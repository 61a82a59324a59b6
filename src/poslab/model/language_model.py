"""Language models from token ids to logits: what they share, and the smallest whole one."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.model.attention import MultiHeadSelfAttention, check_context
from poslab.model.cache import LayerCache
from poslab.model.embeddings import EmbeddingComposer, TokenEmbedding
from poslab.positions import PositionScheme, lesson_scheme

Kept = TypeVar("Kept")

TakesMap = Callable[[Tensor], None]
"""Is handed the attention weights (B, H, T, T) of one layer after the other."""


class LanguageModel(nn.Module):
    """Token + position -> layers of attention -> linear head; a subclass is its layers.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        max_context_length: L, the longest sequence.
        positions: the position scheme; the lesson's learned table when none is given.
        token_embedding: a token table to use instead of a fresh N(0, 0.02) one.

    Raises:
        ValueError: sizes that do not fit each other; names the numbers.
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
        self.embeddings = EmbeddingComposer(token_embedding, positions or lesson_scheme(max_context_length, d_model))

    def make_head(self, tie_embeddings: bool) -> nn.Linear:
        """The head (D -> V), with the token table as its matrix if the two are tied."""
        head = nn.Linear(self.token_embedding.d_model, self.vocab_size)
        if tie_embeddings:
            head.weight = self.token_embedding.embedding.weight
        return head

    @abstractmethod
    def layer(
        self,
        index: int,
        x: Float[Tensor, "b t d"],
        take_map: TakesMap | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What one layer makes of its input (B, T, D).

        Args:
            index: of the layer, from 0.
            x: composed embeddings, or what the layer before gave.
            take_map: takes its attention weights (B, H, T, T); None asks for the fused kernel.
            cache: what it has read before ``x``, and takes ``x`` in; None: nothing.
        """

    def after_layers(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """The head's input (B, T, D) from what the last layer gave."""
        return x

    def body(
        self,
        x: Float[Tensor, "b t d"],
        take_map: TakesMap | None = None,
        cache: Sequence[LayerCache] | None = None,
        first: int = 0,
    ) -> Float[Tensor, "b t d"]:
        """From the input of a layer (B, T, D) to the head's input.

        Args:
            x: composed embeddings, or what the layer before ``first`` gave.
            take_map, cache: of every layer, as in `layer`.
            first: the first layer to run.
        """
        for index in range(first, self.n_layers):
            x = self.layer(index, x, take_map, cache[index] if cache else None)
        return self.after_layers(x)

    @abstractmethod
    def body_parts(self) -> Mapping[str, nn.Module]:
        """The named parts of the body, for the parameter counts."""

    @property
    def token_embedding(self) -> TokenEmbedding:
        return self.embeddings.token_embedding

    @property
    def positions(self) -> PositionScheme:
        return self.embeddings.positional_embedding

    def parts(self) -> dict[str, nn.Module]:
        """The named parts whose parameters are reported; a shared parameter belongs to the first that has it."""
        return {
            "token_embedding": self.token_embedding,
            "position": self.positions,
            **self.body_parts(),
            "head": self.head,
        }

    def extended(self, max_context_length: int) -> "LanguageModel":
        """This model for longer sequences: itself where it reaches already, else a copy with the same parameters.

        Raises:
            ValueError: the position scheme ends before ``max_context_length``; names both numbers.
        """
        if max_context_length <= self.max_context_length:
            return self
        # First, because a scheme's own table may be large too.
        check_context(max_context_length)
        longer = copy.deepcopy(self)
        longer.positions.extend(max_context_length)
        for attention in longer.attention_layers():
            attention.extend(max_context_length)
        longer.max_context_length = max_context_length
        return longer

    def attention_layers(self) -> list[MultiHeadSelfAttention]:
        """The attention of every layer, the first one first."""
        return [module for module in self.modules() if isinstance(module, MultiHeadSelfAttention)]

    def new_cache(self) -> list[LayerCache]:
        """An empty cache for `read`: one part a layer, with room for the whole context."""
        return [LayerCache(layer.max_context_length) for layer in self.attention_layers()]

    @torch.no_grad()
    def read(self, ids: Int64[Tensor, "b t"], cache: Sequence[LayerCache]) -> Float[Tensor, "b t v"]:
        """Logits (B, T, V) for the token after each of the ids (B, T), which follow those that the cache holds.

        The same numbers as `forward` on the whole sequence, within float tolerance, at the cost of the new ids alone;
        then the cache holds them too. For evaluation: there is no gradient.

        Args:
            ids: one or more new tokens of each row.
            cache: from `new_cache`, begun with the same number of rows.

        Raises:
            ValueError: the model is in training mode, or the sequence becomes longer than L; names both numbers.
            TypeError, ValueError: as the parts do, with the numbers.
        """
        if self.training:
            raise ValueError("a cache is for evaluation, and the model is in training mode; call model.eval() first")
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
        """The attention weights (B, H, T, T) of every layer, in fp32.

        Args:
            ids: token ids.
            keep: what to keep of one layer's weights, which are freed before the next layer's are made: with a long
                context all of them together do not fit. None keeps them as they are.
        """
        kept: list[Any] = []
        self.body(self.embeddings(ids), lambda weights: kept.append(weights if keep is None else keep(weights)))
        return kept


class TinyAttentionLM(LanguageModel):
    """Token + position -> one attention layer -> linear head; no residual, no MLP, no norm, as in the lesson.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        n_heads: H; must divide D.
        max_context_length: L, the longest sequence.
        positions: the position scheme; the lesson's learned table when none is given.
        tie_embeddings: the head and the token table are one matrix, counted once.
        token_embedding: a token table to use instead of a fresh N(0, 0.02) one.
        dropout: probability with which an attention weight is dropped while training.

    Raises:
        ValueError: sizes that do not fit each other; names the numbers.
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
        take_map: TakesMap | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t d"]:
        if take_map is None:
            return self.attention(x, positions=self.positions, cache=cache)
        x, weights = self.attention(x, return_weights=True, positions=self.positions)
        take_map(weights)
        return x

    @overload
    def forward(self, ids: Int64[Tensor, "b t"], return_weights: Literal[False] = False) -> Float[Tensor, "b t v"]: ...
    @overload
    def forward(
        self, ids: Int64[Tensor, "b t"], return_weights: Literal[True]
    ) -> tuple[Float[Tensor, "b t v"], Float[Tensor, "b h t t"]]: ...
    def forward(
        self, ids: Int64[Tensor, "b t"], return_weights: bool = False
    ) -> Float[Tensor, "b t v"] | tuple[Float[Tensor, "b t v"], Float[Tensor, "b h t t"]]:
        """Logits (B, T, V) for the token after each of the ids (B, T).

        Args:
            ids: token ids.
            return_weights: also return the attention weights (B, H, T, T).

        Raises:
            TypeError, ValueError: as the parts do, with the numbers.
        """
        maps: list[Tensor] = []
        logits = self.head(self.body(self.embeddings(ids), maps.append if return_weights else None))
        return (logits, maps[0]) if return_weights else logits
