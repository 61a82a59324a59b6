"""The model as plain `torch.nn` modules, without Lightning or Hydra. No module refers to a position scheme by name."""

from poslab.model.attention import MultiHeadSelfAttention, check_context
from poslab.model.embeddings import EmbeddingComposer, TokenEmbedding
from poslab.model.language_model import LanguageModel, TinyAttentionLM
from poslab.model.parameters import count_parameters, parameters_by_part
from poslab.model.transformer import TransformerLM

__all__ = [
    "EmbeddingComposer",
    "LanguageModel",
    "MultiHeadSelfAttention",
    "TinyAttentionLM",
    "TokenEmbedding",
    "TransformerLM",
    "check_context",
    "count_parameters",
    "parameters_by_part",
]
