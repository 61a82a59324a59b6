"""The lower bound: the default job as a bare PyTorch script, without framework, validation, logging and files."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SYMBOLS, LENGTH, D_MODEL, N_HEADS, BATCH, STEPS = 64, 6, 32, 4, 16, 360


class BareModel(nn.Module):
    """Token + learned position -> one attention layer -> linear head, with the same parameters as the default job."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS + 1, D_MODEL)
        self.positions = nn.Embedding(2 * LENGTH, D_MODEL)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.out = nn.Linear(D_MODEL, D_MODEL)
        self.head = nn.Linear(D_MODEL, SYMBOLS + 1)

    def forward(self, ids: Tensor) -> Tensor:
        n_rows, seq_len = ids.shape
        x = self.tokens(ids) + self.positions.weight[:seq_len]
        q, k, v = self.qkv(x).view(n_rows, seq_len, 3, N_HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.out(mixed.transpose(1, 2).reshape(n_rows, seq_len, D_MODEL)))


def train(model: nn.Module, steps: int, lr: float = 5e-3, length: int = LENGTH) -> float:
    """Train a model with ``SYMBOLS + 1`` tokens to copy strings of ``length`` symbols; return the last loss in nats."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    separator = torch.full((BATCH, 1), SYMBOLS)
    loss = torch.zeros(())
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (BATCH, length))
        rows = torch.cat((symbols, separator, symbols), dim=1)
        logits = model(rows[:, :-1])[:, length:]
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, length + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"final loss {train(BareModel(), STEPS):.4f}")


if __name__ == "__main__":
    main()
