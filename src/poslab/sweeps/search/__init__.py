"""A search for good settings: Optuna asks for trials, a sweep runs them as jobs, what they found is told back.

``python train.py -m hydra/sweeper=optuna 'optimizer.lr=interval(0.001,0.05)' pos=learned,sinusoidal``

Only what is imported from the submodules needs Optuna, which is an extra: ``pip install 'poslab[optuna]'``.
"""
