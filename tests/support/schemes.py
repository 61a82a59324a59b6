"""Position schemes made for the tests of attention: each uses one or both of the places where a scheme acts."""

import torch
from torch import Tensor, nn

from poslab import PositionScheme


class Turns(PositionScheme):
    """Made for these tests: turns each pair of columns by position, and biases each head by numbers of its own."""

    def __init__(self, n_heads: int, length: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(n_heads, length, length))

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        angle = torch.arange(start, start + x.shape[-2], device=x.device)[:, None] * 0.7
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)

    def bias(self, n_queries: int, n_keys: int) -> Tensor:
        return self.scores[:, n_keys - n_queries : n_keys, :n_keys]


class TurnsInFp32(Turns):
    """The same, with turned queries and keys left in fp32 whatever came in."""

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return super().rotate(x.float(), start)


class OnlyRotates(Turns):
    def bias(self, n_queries: int, n_keys: int) -> None:
        return None


class OnlyBiases(Turns):
    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return x
