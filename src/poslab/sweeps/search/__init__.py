"""A search for good settings: Optuna draws trials, a sweep runs them as jobs, and Optuna is told their results.

``python train.py -m hydra/sweeper=optuna 'optimizer.lr=interval(0.001,0.05)' pos=learned,sinusoidal``

Optuna is an extra, ``pip install 'poslab[optuna]'``; this package itself imports without it.
"""
