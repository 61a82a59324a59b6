"""Batches for training, validation and test, each identified by (seed, split, step)."""
