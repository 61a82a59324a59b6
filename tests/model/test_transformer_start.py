"""How the deeper model starts, and its dropout."""

import math

import pytest
import torch
from torch import nn

from poslab import TokenEmbedding
from poslab.model.transformer import TransformerLM
from poslab.positions import NoPositions


@pytest.mark.parametrize("n_layers", [1, 2, 8])
def test_projections_onto_the_residual_stream_start_smaller_with_depth(n_layers: int) -> None:
    """torch's linear layers start uniform in +-1/sqrt(inputs), spread 1/sqrt(3 inputs); those two 1/sqrt(2 L) of it."""
    d = 128
    smaller = math.sqrt(2 * n_layers)
    for block in TransformerLM(10, d, 4, n_layers, 12).blocks:
        for linear, scale in (
            (block.attention.qkv_proj, 1.0),
            (block.attention.out_proj, smaller),
            (block.mlp[0], 1.0),
            (block.mlp[2], smaller),
        ):
            weight = linear.weight.detach()
            bound = 1 / math.sqrt(linear.in_features) / scale
            assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
            assert float(weight.abs().max()) == pytest.approx(bound, rel=0.01)
            assert abs(float(weight.mean())) < 5 * bound / math.sqrt(weight.numel())


def test_the_smaller_start_can_be_left_out() -> None:
    torch.manual_seed(0)
    scaled = TransformerLM(10, 16, 4, 3, 12)
    torch.manual_seed(0)
    plain = TransformerLM(10, 16, 4, 3, 12, scale_residuals=False)
    for one, other in zip(scaled.blocks, plain.blocks, strict=True):
        torch.testing.assert_close(one.attention.out_proj.weight * math.sqrt(6), other.attention.out_proj.weight)
        torch.testing.assert_close(one.mlp[2].weight * math.sqrt(6), other.mlp[2].weight)
        assert torch.equal(one.mlp[0].weight, other.mlp[0].weight)
    assert torch.equal(scaled.head.weight, plain.head.weight)


def test_depth_does_not_widen_the_residual_stream() -> None:
    torch.manual_seed(0)
    spread = []
    for n_layers in (1, 16):
        model = TransformerLM(10, 64, 4, n_layers, 12, token_embedding=TokenEmbedding(10, 64, init_std=1.0))
        x = model.embeddings(torch.randint(10, (8, 12)))
        for block in model.blocks:
            x = block(x, model.positions)
        spread.append(float(x.detach().std()))
    assert spread[1] == pytest.approx(spread[0], rel=0.15)


def test_layers_start_apart_and_norms_as_the_identity() -> None:
    model = TransformerLM(10, 8, 2, 3, 12)
    first = [block.attention.qkv_proj.weight for block in model.blocks]
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first[1], first[2])
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.tolist() == [1.0] * 8
            assert module.bias.tolist() == [0.0] * 8


def test_dropout_reaches_attention_and_both_residuals_in_training_only() -> None:
    model = TransformerLM(10, 8, 2, 2, 12, dropout=0.25)
    for block in model.blocks:
        assert block.attention.dropout == block.dropout.p == 0.25
    block, positions = model.blocks[0], NoPositions()
    x = torch.randn(500, 6, 8)

    def dropped(quiet: nn.Linear) -> float:
        """Share of the numbers that one sublayer leaves as they were, with the other one silent."""
        saved = quiet.weight.detach().clone(), quiet.bias.detach().clone()
        with torch.no_grad():
            quiet.weight.zero_()
            quiet.bias.zero_()
            share = float((block(x, positions) == x).float().mean())
            quiet.weight.copy_(saved[0])
            quiet.bias.copy_(saved[1])
        return share

    model.train()
    assert dropped(block.mlp[2]) == pytest.approx(0.25, abs=0.02)
    assert dropped(block.attention.out_proj) == pytest.approx(0.25, abs=0.02)
    model.eval()
    assert dropped(block.mlp[2]) == dropped(block.attention.out_proj) == 0
    assert torch.equal(block(x, positions), block(x, positions))
