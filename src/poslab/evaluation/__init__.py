"""From a model and batches to numbers and tokens."""
