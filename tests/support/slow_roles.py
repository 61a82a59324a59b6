"""The roles of heads, worked out in plain loops."""

import math

import numpy as np

from poslab.evaluation.heads import ROLES


def slow(weights: np.ndarray, cells: np.ndarray) -> list[dict[str, float]]:
    """The roles of every head, as one would write them down."""
    batch, n_heads, n, _ = weights.shape
    result = []
    for head in range(n_heads):
        lists: dict[str, list[float]] = {role: [] for role in ROLES}
        for b in range(batch):
            for t in range(n):
                row = [float(w) for w in weights[b, head, t]]
                lists["first_token"].append(row[0])
                lists["self"].append(row[t])
                if t > 0:
                    lists["previous_token"].append(row[t - 1])
                    lists["uniform"].append(-sum(w * math.log(w) for w in row if w > 0) / math.log(t + 1))
                if cells[b, t].any():
                    lists["copy"].append(sum(row[key] for key in range(n) if cells[b, t, key]))
        result.append({role: sum(found) / len(found) if found else 0.0 for role, found in lists.items()})
    return result
