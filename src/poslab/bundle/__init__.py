"""Several copies of one job with different seeds, trained as one batched computation (``seeds=8``)."""
