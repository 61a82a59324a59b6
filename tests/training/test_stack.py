"""The stack of replicas: losses, gradients, norms and clipping of each one apart."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.evaluation.metrics import token_loss
from poslab.training.learners import build_learner
from poslab.training.stack import ModelStack, clip_gradients, gradient_norms, losses
from support.configs import compose


def small_stack(n: int = 3, *overrides: str) -> tuple[ModelStack, list[nn.Module], Tensor, Tensor]:
    job = checked(compose("model.d_model=8", "model.n_heads=2", f"seeds={n}", *overrides))
    task = build_task(job)
    alone = []
    for seed in range(n):
        torch.manual_seed(seed)
        alone.append(build_model(job, task))
    batches = [task.sample(np.random.default_rng(seed), 5) for seed in range(n)]
    tokens, targets = (torch.from_numpy(np.stack(parts)) for parts in zip(*batches, strict=True))
    stack = build_learner(job, task).module
    assert isinstance(stack, ModelStack)
    return stack, alone, tokens, targets


def test_gradients_norms_and_clipping_are_each_copy_s_own() -> None:
    stack, alone, tokens, targets = small_stack(3, "model.tie_embeddings=true")
    losses(stack(tokens, [12] * 3), targets).sum().backward()
    parameters = [*stack.parameters()]
    norms = gradient_norms(parameters)
    limit = float(norms.median())
    clip_gradients(parameters, norms, limit)
    for index, model in enumerate(alone):
        token_loss(model(tokens[index]), targets[index]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert float(norms[index]) == pytest.approx(float(norm), rel=1e-5)
        for own, one, view in zip(model.parameters(), parameters, stack.model_of(index).parameters(), strict=True):
            torch.testing.assert_close(one.grad[index], own.grad, rtol=1e-4, atol=1e-7)
            assert torch.equal(view, one[index])
            assert torch.equal(view.grad, one.grad[index])


def test_no_copy_feels_another() -> None:
    stack, _, tokens, targets = small_stack()
    losses(stack(tokens, [12] * 3), targets)[1].backward()
    for parameter in stack.parameters():
        assert not parameter.grad[[0, 2]].any()
        assert parameter.grad[1].any()


def test_torch_s_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    stack, *_ = small_stack(2, "pos.train_offset=random", "model.max_context_length=40")
    torch.set_rng_state(before)
    assert stack.training
    first, second = (stack(torch.zeros(2, 1, 12, dtype=torch.int64), [12, 9]) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
