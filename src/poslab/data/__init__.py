"""Batches for training and validation, addressed by (seed, split, step)."""
