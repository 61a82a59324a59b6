"""The default job as a single script with evaluation and logging, in the style of nanoGPT and without a framework."""

import math
import time

import torch
import torch.nn.functional as F
from bare_loop import BATCH, LENGTH, STEPS, SYMBOLS, BareModel
from torch import Tensor

LEARNING_RATE = 5e-3
EVAL_EVERY, EVAL_BATCHES = 120, 32
LOG_EVERY = 10
GRADIENT_CLIP = 1.0
# nanoGPT cuts its batches from a file of token ids; here they are cut from a random tensor.
STREAM = torch.randint(SYMBOLS, (500_000,), generator=torch.Generator().manual_seed(0))


def get_batch(split: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T): ``train`` from the first nine tenths of the stream, ``val`` from the rest."""
    border = len(STREAM) * 9 // 10
    data = STREAM[:border] if split == "train" else STREAM[border:]
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    symbols = torch.stack([data[start : start + LENGTH] for start in starts])
    rows = torch.cat((symbols, torch.full((BATCH, 1), SYMBOLS), symbols), dim=1)
    targets = rows[:, 1:].clone()
    targets[:, :LENGTH] = -100
    return rows[:, :-1], targets


def rate_at(step: int, warmup: int = 0) -> float:
    """Learning rate: linear warm-up, then cosine decay to a tenth of the full rate."""
    if step < warmup:
        return LEARNING_RATE * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, STEPS - warmup)
    return LEARNING_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def loss_of(model: BareModel, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, targets = batch
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)


@torch.no_grad()
def estimate_loss(model: BareModel) -> dict[str, float]:
    model.eval()
    found = {
        split: torch.stack([loss_of(model, get_batch(split)) for _ in range(EVAL_BATCHES)]).mean().item()
        for split in ("train", "val")
    }
    model.train()
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BareModel()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    before = time.perf_counter()
    for step in range(STEPS + 1):
        if step % EVAL_EVERY == 0:
            print(step, estimate_loss(model))
        if step == STEPS:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        loss = loss_of(model, get_batch("train"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            now = time.perf_counter()
            print(f"iter {step}: loss {loss.item():.4f}, time {(now - before) * 1000:.2f}ms")
            before = now


if __name__ == "__main__":
    main()
