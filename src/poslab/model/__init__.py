"""The model as plain `torch.nn` modules: no Lightning, no Hydra, no scheme known by name."""

from poslab.model.attention import MultiHeadSelfAttention
from poslab.model.embeddings import EmbeddingComposer, TokenEmbedding
from poslab.model.language_model import TinyAttentionLM
from poslab.model.parameters import count_parameters, parameters_by_part

__all__ = [
    "EmbeddingComposer",
    "MultiHeadSelfAttention",
    "TinyAttentionLM",
    "TokenEmbedding",
    "count_parameters",
    "parameters_by_part",
]
