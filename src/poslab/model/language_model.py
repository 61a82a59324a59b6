"""The smallest whole language model: token and position, one attention layer, a linear head."""

from typing import Literal, overload

from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.model.attention import MultiHeadSelfAttention
from poslab.model.embeddings import EmbeddingComposer, TokenEmbedding
from poslab.positions import PositionScheme, lesson_scheme


class TinyAttentionLM(nn.Module):
    """Token + position -> one attention layer -> linear head; no residual, no MLP, no norm, as in the lesson.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        n_heads: H; must divide D.
        max_context_length: L, the longest sequence.
        positions: the position scheme; the lesson's learned table when none is given.
        tie_embeddings: the head and the token table are one matrix, counted once.
        token_embedding: a token table to use instead of a fresh N(0, 0.02) one.
        attention_dropout: probability with which an attention weight is dropped while training.

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
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.max_context_length = max_context_length
        self.embeddings = EmbeddingComposer(
            token_embedding or TokenEmbedding(vocab_size, d_model),
            positions or lesson_scheme(max_context_length, d_model),
        )
        self.attention = MultiHeadSelfAttention(d_model, n_heads, max_context_length, dropout=attention_dropout)
        self.head = nn.Linear(d_model, vocab_size)
        if tie_embeddings:
            self.head.weight = self.token_embedding.embedding.weight

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
            "attention": self.attention,
            "head": self.head,
        }

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
        x = self.embeddings(ids)
        if return_weights:
            x, weights = self.attention(x, return_weights=True, positions=self.positions)
            return self.head(x), weights
        return self.head(self.attention(x, positions=self.positions))

    def attention_maps(self, ids: Int64[Tensor, "b t"]) -> list[Float[Tensor, "b h t t"]]:
        """The attention weights (B, H, T, T) of every layer."""
        return [self(ids, return_weights=True)[1]]
