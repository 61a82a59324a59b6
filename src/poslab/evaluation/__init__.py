"""Evaluate a model: scores, scores by length, roles of heads, and generated tokens."""
