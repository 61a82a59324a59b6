"""What can be refused of a bundle before a folder is made."""

from dataclasses import replace

import numpy as np
import torch

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.model import LanguageModel, count_parameters
from poslab.sizes import A_PARAMETER, memory_bytes
from poslab.tasks import Task
from poslab.training.replicas import build_stack


def check_copies(job: TrainConfig, task: Task, model: LanguageModel) -> None:
    """Refuse copies that cannot be trained together: for want of memory, or of a scheme that can be batched.

    Args:
        job: with ``seeds``; one alone is never refused.
        task: of the job.
        model: any copy.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    if job.seeds == 1:
        return
    # The activations of a layer are about 20 D a token, its scores (H, T) three times over, the head's output twice.
    tokens = job.data.batch_size * task.seq_len
    a_token = model.token_embedding.d_model * 20 + 3 * job.model.n_heads * task.seq_len
    a_copy = count_parameters(model) * A_PARAMETER
    a_copy += 4 * tokens * (a_token * job.model.n_layers + 2 * model.vocab_size)
    if job.seeds * a_copy > memory_bytes():
        raise ConfigError(
            f"seeds={job.seeds} at about {a_copy / 2**20:.0f} MiB a copy does not fit the {memory_bytes() / 2**30:.1f} "
            f"GiB of this machine; use at most {int(memory_bytes() // a_copy)}, in several runs"
        )
    tokens_of_two = torch.from_numpy(np.stack([task.sample(np.random.default_rng(0), 1).tokens] * 2))
    try:
        stack = build_stack(replace(job, seeds=2), task)
        stack(tokens_of_two, [tokens_of_two.shape[-1]] * 2)
    except ConfigError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"seeds={job.seeds}: this model cannot be trained as copies at once ({reason}); "
            f"use -m seed={job.seed},{job.seed + 1},... instead"
        ) from error
