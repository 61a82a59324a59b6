"""The transformer: pre-norm blocks of attention and MLP, each with a residual."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.model.attention import MultiHeadSelfAttention
from poslab.model.cache import LayerCache
from poslab.model.embeddings import TokenEmbedding
from poslab.model.language_model import LanguageModel, OnWeights
from poslab.positions import PositionScheme
from poslab.positions.base import Placed


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``; the MLP has one hidden GELU layer of width 4 D.

    Args:
        d_model: D, the width.
        n_heads: H; must divide D.
        max_context_length: L, the longest sequence.
        dropout: probability of dropping, during training, an attention weight or a value added to the residual stream.
    """

    def __init__(self, d_model: int, n_heads: int, max_context_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = MultiHeadSelfAttention(d_model, n_heads, max_context_length, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        positions: PositionScheme,
        on_weights: OnWeights | None = None,
        cache: LayerCache | None = None,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Output of the block (B, T, D); ``on_weights`` is called with the attention weights (B, H, T, T)."""
        normed = self.attention_norm(x)
        if on_weights is None:
            mixed = self.attention(normed, positions=positions, cache=cache, placed=placed)
        else:
            mixed, weights = self.attention(normed, return_weights=True, positions=positions, placed=placed)
            on_weights(weights)
        x = x + self.dropout(mixed)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def residual_projections(self) -> list[nn.Linear]:
        """The two linear layers whose output is added to the residual stream."""
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        return [self.attention.out_proj, last]


class TransformerLM(LanguageModel):
    """Token + position -> ``n_layers`` pre-norm blocks -> final norm -> linear head.

    The weights of the projections onto the residual stream are initialised ``1 / sqrt(2 n_layers)`` times as large as
    other linear layers, so that the variance of the stream does not grow with depth. Without this scaling, two layers
    with ALiBi copy strings further beyond the training length.

    Source: Radford et al. 2019 (GPT-2), section 2.3, for pre-norm blocks and the scaled initialisation.

    Args:
        vocab_size: V, the number of tokens.
        d_model: D, the width.
        n_heads: H; must divide D.
        n_layers: number of blocks.
        max_context_length: L, the longest sequence.
        positions: the position scheme, shared by all layers; None for a learned table.
        tie_embeddings: use the token table as the weight of the head; it counts as one parameter matrix.
        token_embedding: the token table; None for a new one, N(0, 0.02).
        dropout: probability of dropping, during training, an attention weight or a value added to the residual stream.
        scale_residuals: initialise the residual projections smaller; False keeps torch's default for linear layers.

    Raises:
        ValueError: ``n_layers < 1``, or sizes that do not match; names the numbers.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_heads: int,
        n_layers: int,
        max_context_length: int,
        *,
        positions: PositionScheme | None = None,
        tie_embeddings: bool = False,
        token_embedding: TokenEmbedding | None = None,
        dropout: float = 0.0,
        scale_residuals: bool = True,
    ) -> None:
        super().__init__(vocab_size, d_model, max_context_length, positions, token_embedding)
        if n_layers < 1:
            raise ValueError(f"n_layers {n_layers} must be at least 1")
        self.n_layers = n_layers
        self.blocks = nn.ModuleList(Block(d_model, n_heads, max_context_length, dropout) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(d_model)
        self.head = self.make_head(tie_embeddings)
        if not scale_residuals:
            return
        with torch.no_grad():
            for block in self._blocks():
                for projection in block.residual_projections():
                    projection.weight.div_((2 * n_layers) ** 0.5)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def body_parts(self) -> Mapping[str, nn.Module]:
        blocks = self._blocks()
        norms = [norm for block in blocks for norm in (block.attention_norm, block.mlp_norm)]
        return {
            "attention": nn.ModuleList(block.attention for block in blocks),
            "mlp": nn.ModuleList(block.mlp for block in blocks),
            "norm": nn.ModuleList([*norms, self.final_norm]),
        }

    def layer(
        self,
        index: int,
        x: Float[Tensor, "b t d"],
        on_weights: OnWeights | None = None,
        cache: LayerCache | None = None,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"]:
        return self.blocks[index](x, self.positions.layer(index), on_weights, cache, placed)

    def after_layers(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.final_norm(x)

    def forward(
        self, ids: Int64[Tensor, "b t"], return_weights: bool = False, placed: Placed | None = None
    ) -> Float[Tensor, "b t v"] | tuple[Float[Tensor, "b t v"], list[Float[Tensor, "b h t t"]]]:
        """Logits (B, T, V) for the token after each of the ids (B, T).

        Args:
            ids: token ids.
            return_weights: also return the attention weights (B, H, T, T) of every layer, in fp32.
            placed: positions of the tokens of each row; None for 0, 1, 2, ..

        Raises:
            TypeError, ValueError: from the embedding and the layers, with the numbers.
        """
        maps: list[Tensor] = []
        x = self.embeddings(ids, placed=placed)
        logits = self.head(self.body(x, maps.append if return_weights else None, placed=placed))
        return (logits, maps) if return_weights else logits
