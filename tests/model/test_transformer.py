"""The deeper model: against torch's own encoder layers, its parts, and what it refuses."""

import math
import re

import pytest
import torch
from torch import Tensor, nn

from poslab import LearnedPositionalEmbedding, TokenEmbedding, count_parameters
from poslab.model.parameters import parameters_by_part
from poslab.model.transformer import Block, TransformerLM
from poslab.positions import FIRE, ALiBi, NoPositions, RotaryPositions, T5Bias


def model_of(n_layers: int = 2, **options: object) -> TransformerLM:
    """Tokens far from zero, and norms that do something, so that every part of a block matters."""
    token = TokenEmbedding(10, 8, init_std=1.0)
    model = TransformerLM(10, 8, 2, n_layers, 12, token_embedding=token, **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.3 * torch.randn_like(module.weight))
                module.bias.add_(0.3 * torch.randn_like(module.bias))
    return model.eval()


def encoder_layer(block: Block) -> nn.TransformerEncoderLayer:
    """torch's pre-norm layer with the numbers of that block."""
    layer = nn.TransformerEncoderLayer(
        block.attention.d_model,
        block.attention.n_heads,
        dim_feedforward=4 * block.attention.d_model,
        dropout=0.0,
        activation=nn.functional.gelu,
        norm_first=True,
        batch_first=True,
    )
    layer.load_state_dict(
        {
            "self_attn.in_proj_weight": block.attention.qkv_proj.weight,
            "self_attn.in_proj_bias": block.attention.qkv_proj.bias,
            "self_attn.out_proj.weight": block.attention.out_proj.weight,
            "self_attn.out_proj.bias": block.attention.out_proj.bias,
            "linear1.weight": block.mlp[0].weight,
            "linear1.bias": block.mlp[0].bias,
            "linear2.weight": block.mlp[2].weight,
            "linear2.bias": block.mlp[2].bias,
            "norm1.weight": block.attention_norm.weight,
            "norm1.bias": block.attention_norm.bias,
            "norm2.weight": block.mlp_norm.weight,
            "norm2.bias": block.mlp_norm.bias,
        }
    )
    return layer.train()  # with dropout 0; in eval torch takes a fused path of its own


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_equals_torch_s_pre_norm_encoder(n_layers: int, return_weights: bool) -> None:
    """torch's layers in a row, then the final norm and the head."""
    model = model_of(n_layers)
    ids = torch.randint(10, (3, 9))
    x = model.token_embedding.embedding.weight[ids] + model.positions.table()[:9]
    for block in model.blocks:
        x = encoder_layer(block)(x, src_mask=torch.ones(9, 9).triu(1).bool())
    x = nn.functional.layer_norm(x, (8,), model.final_norm.weight, model.final_norm.bias)
    expected = nn.functional.linear(x, model.head.weight, model.head.bias)
    logits = model(ids, return_weights=True)[0] if return_weights else model(ids)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_every_layer_hands_the_scheme_to_its_attention() -> None:
    """With zero queries the weights are the softmax of the bias alone, in each layer."""
    scheme = T5Bias(2, init_std=1.0)
    model = model_of(3, positions=scheme)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv_proj.weight.zero_()
            block.attention.qkv_proj.bias.zero_()
    expected = scheme.bias(12, 12).masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf).softmax(-1)
    maps = model.attention_maps(torch.randint(10, (3, 12)))
    assert len(maps) == 3
    for weights in maps:
        torch.testing.assert_close(weights, expected.expand_as(weights))


@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_the_maps_of_every_layer_in_order(n_layers: int) -> None:
    model = model_of(n_layers)
    ids = torch.randint(10, (3, 7))
    _, maps = model(ids, return_weights=True)
    assert len(maps) == len(model.blocks) == n_layers
    x = model.embeddings(ids)
    for block, weights in zip(model.blocks, maps, strict=True):
        assert weights.shape == (3, 2, 7, 7)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 7))
        assert torch.equal(weights.triu(1), torch.zeros_like(weights))
        torch.testing.assert_close(weights, block.attention(block.attention_norm(x), return_weights=True)[1])
        x = block(x, model.positions)
    for one, other in zip(maps, model.attention_maps(ids), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize(
    "scheme", [lambda: None, NoPositions, lambda: RotaryPositions(4), lambda: ALiBi(2), lambda: FIRE(2)]
)
def test_later_tokens_reach_no_earlier_output_through_any_layer(scheme, return_weights: bool) -> None:
    """By gradient: exactly zero, not merely small."""
    model = model_of(3, positions=scheme())
    x = model.embeddings(torch.randint(10, (2, 9))).detach().requires_grad_()
    model.head(model.body(x, (lambda _: None) if return_weights else None))[:, :5].square().sum().backward()
    assert torch.equal(x.grad[:, 5:], torch.zeros(2, 4, 8))
    assert float(x.grad[:, :5].abs().sum(-1).min()) > 0


@pytest.mark.parametrize("n_layers", [1, 4])
@pytest.mark.parametrize("tie", [False, True])
def test_parameters_by_formula(n_layers: int, tie: bool) -> None:
    vocab, d, context = 11, 24, 7
    model = TransformerLM(vocab, d, 4, n_layers, context, tie_embeddings=tie)
    expected = {
        "token_embedding": vocab * d,
        "position": context * d,
        "attention": n_layers * (4 * d**2 + 4 * d),
        "mlp": n_layers * (8 * d**2 + 5 * d),
        "norm": (2 * n_layers + 1) * 2 * d,
        "head": vocab if tie else vocab * d + vocab,
    }
    counts = parameters_by_part(model.parts())
    assert counts == {"total": sum(expected.values()), **expected}
    assert counts["total"] == count_parameters(model)
    # 12 D^2 a layer, the usual estimate.
    assert sum(p.numel() for b in model.blocks for p in b.parameters() if p.dim() == 2) == 12 * d**2 * n_layers


def test_parts_hold_every_parameter_and_name_its_layers_apart() -> None:
    model = model_of(3, positions=FIRE(2))
    held = [id(p) for part in model.parts().values() for p in part.parameters()]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_tied_head_and_table_are_one_matrix() -> None:
    token = TokenEmbedding(10, 8, token_init="hashed")
    model = TransformerLM(10, 8, 2, 2, 12, tie_embeddings=True, token_embedding=token)
    assert model.head.weight is token.embedding.weight
    assert torch.equal(model.head.weight, TokenEmbedding(10, 8, token_init="hashed").embedding.weight)
    model(torch.tensor([[1, 3, 1]])).square().sum().backward()
    assert bool((token.embedding.weight.grad.abs().sum(-1) > 0).all())


@pytest.mark.parametrize("return_weights", [False, True])
def test_gradient_reaches_every_parameter(return_weights: bool) -> None:
    model = model_of(3)
    result = model(torch.randint(10, (4, 12)), return_weights)
    logits = result[0] if return_weights else result
    nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(10, (48,))).backward()
    for name, parameter in model.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().max()) > 1e-7, name


def test_extended_every_layer_takes_the_longer_sequence() -> None:
    model = model_of(3, positions=ALiBi(2))
    longer = model.extended(50)
    ids = torch.randint(10, (2, 50))
    assert longer(ids).shape == (2, 50, 10)
    torch.testing.assert_close(longer(ids)[:, :12], model(ids[:, :12]))
    assert [block.attention.max_context_length for block in longer.blocks] == [50] * 3
    assert [block.attention.max_context_length for block in model.blocks] == [12] * 3


def test_extended_and_tied_the_head_is_still_the_table() -> None:
    model = model_of(positions=NoPositions(), tie_embeddings=True)
    longer = model.extended(50)
    assert longer.head.weight is longer.token_embedding.embedding.weight
    assert longer.head.weight is not model.head.weight
    assert count_parameters(longer) == count_parameters(model)


@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [
        ((10, 8, 3, 2, 12), {}, (8, 3)),
        ((10, 8, 0, 2, 12), {}, (8, 0)),
        ((0, 8, 2, 2, 12), {}, (0,)),
        ((10, 8, 2, 0, 12), {}, (0,)),
        ((10, 8, 2, -1, 12), {}, (-1,)),
        ((10, 8, 2, 2, 0), {}, (0,)),
        ((10, 8, 2, 2, 12), {"dropout": 1.5}, (1.5,)),
        ((10, 8, 2, 2, 12), {"positions": LearnedPositionalEmbedding(12, 6)}, (8, 6)),
        ((10, 8, 2, 2, 12), {"token_embedding": TokenEmbedding(5, 8)}, (10, 5)),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line_with_the_numbers(
    sizes: tuple[int, ...], options: dict[str, object], named: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refusal:
        TransformerLM(*sizes, **options)
    for number in named:
        assert re.search(rf"(?<![-\d.]){number}(?![\d.])", str(refusal.value))


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("ids", "error", "named"),
    [
        (torch.zeros(1, 13, dtype=torch.int64), ValueError, r"\b13\b.*\b12\b"),
        (torch.full((1, 3), 10), ValueError, r"\b10\b.*\b10\b"),
        (torch.zeros(1, 3), TypeError, "float32"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Tensor, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        model_of()(ids)
