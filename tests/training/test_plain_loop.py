"""Every number of a run is what a plain loop computes."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.data.stream import BatchStream
from poslab.evaluation.metrics import token_loss
from support.configs import compose
from support.one_model_runs import QUIET, SMALL, checkpoint, columns, weights
from support.runs import train


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.005, betas=(0.9, 0.999))


def adam_with_decay(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02, betas=(0.8, 0.9), weight_decay=0.1)


def adamw(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.3)


def adamw_on_matrices(parameters: list) -> torch.optim.Optimizer:
    # Token table, position table, both projections, head; the biases are the others.
    decayed = [parameters[index] for index in (0, 1, 2, 4, 6)]
    others = [parameters[index] for index in (3, 5, 7)]
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}], 0.01, (0.9, 0.95), 1e-8, 0.3
    )


def constant(step: int) -> float:
    return 1.0


def warm_then_cosine(step: int) -> float:
    return (step + 1) / 6 if step < 5 else 0.5 * (1 + math.cos(math.pi * (step - 5) / 35))


def warm_then_linear(step: int) -> float:
    return (step + 1) / 11 if step < 10 else 1 - (step - 10) / 30


LOOPS = {
    "defaults": ("", adam, constant, None),
    "adam, decay, clip": (
        "task=repeat optimizer.lr=0.02 optimizer.betas=[0.8,0.9] optimizer.weight_decay=0.1 "
        "trainer.gradient_clip_norm=0.1",
        adam_with_decay,
        constant,
        0.1,
    ),
    "adamw": (
        "optimizer=adamw optimizer.lr=0.01 optimizer.betas=[0.9,0.95] optimizer.weight_decay=0.3",
        adamw_on_matrices,
        constant,
        None,
    ),
    "adamw on all, cosine, clip": (
        "optimizer=adamw optimizer.lr=0.01 optimizer.betas=[0.9,0.95] optimizer.weight_decay=0.3 "
        "optimizer.weight_decay_on=all "
        "optimizer.warmup_steps=5 optimizer.decay=cosine trainer.gradient_clip_norm=0.05",
        adamw,
        warm_then_cosine,
        0.05,
    ),
    "adam, linear": ("optimizer.warmup_steps=10 optimizer.decay=linear", adam, warm_then_linear, None),
}


@pytest.mark.parametrize(("changed", "make", "factor", "clip"), LOOPS.values(), ids=LOOPS)
def test_a_run_is_what_a_plain_loop_computes(
    changed: str,
    make: Callable[[list], torch.optim.Optimizer],
    factor: Callable[[int], float],
    clip: float | None,
    tmp_path: Path,
):
    overrides = (*changed.split(), *SMALL, *QUIET, "seed=5", "trainer.log_every_n_steps=1")
    train(tmp_path, *overrides)

    job = checked(compose(*overrides))
    task = build_task(job)
    torch.manual_seed(5)
    model = build_model(job, task)
    optimizer = make(list(model.parameters()))
    full_rate = optimizer.param_groups[0]["lr"]
    batches = BatchStream(task, 5, "train", 16, model.vocab_size)
    losses, norms, rates = [], [], []
    for step in range(40):
        tokens, targets = batches.batch(step)
        for group in optimizer.param_groups:
            group["lr"] = full_rate * factor(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=-100)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()

    wanted = model.state_dict()
    for name, value in weights(tmp_path).items():
        if name.endswith("qkv_proj.bias"):
            # A bias of the keys moves no weight of the softmax: its gradient is rounding, which Adam blows up.
            value, wanted[name] = (part.view(3, -1)[[0, 2]] for part in (value, wanted[name]))
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)
    logged = columns(tmp_path)
    assert logged["train/loss"] == pytest.approx(dict(enumerate(losses)), rel=1e-4)
    assert logged["train/gradient_norm"] == pytest.approx(dict(enumerate(norms)), rel=1e-3)
    assert logged["learning_rate"] == pytest.approx(dict(enumerate(rates)), rel=1e-6)
    assert logged["train/loss_epoch"] == pytest.approx({20: sum(losses[:20]) / 20, 40: sum(losses[20:]) / 20}, rel=1e-4)

    tokens, targets = (torch.cat(parts) for parts in zip(*SeedData(task, job.data, 5, 65).validation, strict=True))
    with torch.no_grad():
        logits = model(tokens)
    counted = targets != -100
    right = logits.argmax(-1) == targets
    scores = {
        "val/loss": F.cross_entropy(logits[counted], targets[counted]).item(),
        "val/accuracy": right[counted].float().mean().item(),
        "val/exact_match": (right | ~counted).all(1).float().mean().item(),
    }
    assert len(tokens) == 50
    assert {name: logged[name][40] for name in scores} == pytest.approx(scores, rel=1e-4)


def test_the_numbers_at_a_step_describe_the_model_after_so_many_updates(tmp_path: Path):
    # One update more changes the weights, so a shift by one would show.
    train(tmp_path, *SMALL, *QUIET, "trainer.log_every_n_steps=1")
    job = checked(compose(*SMALL))
    torch.manual_seed(0)
    model = build_model(job, build_task(job))
    tokens, targets = BatchStream(build_task(job), 0, "train", 16, 65).batch(0)
    logged = columns(tmp_path)
    assert logged["train/loss"][0] == pytest.approx(token_loss(model(tokens), targets).item(), rel=1e-5)
    assert set(logged["train/loss"]) == set(range(40))
    assert set(logged["val/loss"]) == {0, 20, 40}
    assert checkpoint(tmp_path, "last")["global_step"] == 40
