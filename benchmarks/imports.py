"""Measure imports alone: ``imports.py hydra`` imports Lightning and Hydra, ``imports.py model`` builds a model too."""

import sys

import lightning

if sys.argv[1:] == ["hydra"]:
    import hydra  # noqa: F401
else:
    from poslab import TinyAttentionLM

    TinyAttentionLM(vocab_size=65, d_model=32, n_heads=4, max_context_length=12)

print("lightning", lightning.__version__)
