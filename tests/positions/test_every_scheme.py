"""What every position scheme in conf/pos has to keep in a whole model; a new yaml file is covered by itself."""

import pytest
import torch
from torch import nn

from poslab import count_parameters
from poslab.errors import ConfigError
from poslab.model.parameters import parameters_by_part
from poslab.positions import RotaryPositions
from poslab.positions.base import PerLayer
from support.every_scheme import D, H, L, every_model, every_scheme, ids_of, logits_of, model_of

both_ways = pytest.mark.parametrize("return_weights", [False, True])


@every_scheme
@every_model
@both_ways
@pytest.mark.parametrize("t", [0, 7])
def test_later_tokens_never_change_earlier_outputs(name: str, architecture: str, return_weights: bool, t: int) -> None:
    model = model_of(name, architecture)
    ids = ids_of(model)
    changed = ids.clone()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + 1 + torch.arange(L - t - 1)) % model.vocab_size
    before, after = logits_of(model, ids, return_weights), logits_of(model, changed, return_weights)
    torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, t + 1 :], before[:, t + 1 :], atol=1e-3)


@every_scheme
@every_model
def test_weights_asked_for_or_not_the_outputs_are_the_same(name: str, architecture: str) -> None:
    model = model_of(name, architecture)
    ids = ids_of(model)
    torch.testing.assert_close(model(ids), logits_of(model, ids, True), rtol=0, atol=2e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(ids), logits_of(model, ids, True), rtol=0, atol=0.1)
    model.to(torch.bfloat16)
    torch.testing.assert_close(model(ids), logits_of(model, ids, True), rtol=0, atol=0.1)


@every_scheme
@every_model
def test_attention_maps_are_rows_of_weights(name: str, architecture: str) -> None:
    model = model_of(name, architecture)
    for weights in model.attention_maps(ids_of(model)):
        assert weights.shape == (3, H, L, L)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, H, L))
        assert torch.equal(weights.triu(1), torch.zeros_like(weights))


# What adds the same number to every score of a row changes no weight, and so learns nothing.
INVARIANT = {"fire": {"network.2.bias"}, "mlp_bias": {"network.2.bias"}}


@every_scheme
@every_model
@both_ways
def test_gradient_is_finite_and_reaches_every_parameter_of_the_scheme(
    name: str, architecture: str, return_weights: bool
) -> None:
    model = model_of(name, architecture)
    ids = ids_of(model)
    loss = nn.functional.cross_entropy(logits_of(model, ids, return_weights).flatten(0, 1), ids.flatten())
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert bool(parameter.grad.isfinite().all()), parameter_name
    for parameter_name, parameter in model.positions.named_parameters():
        size = float(parameter.grad.abs().max())
        if parameter_name in INVARIANT.get(name, ()):
            assert size < 1e-6
        else:
            assert size > 1e-6, parameter_name


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("none", 0),
        ("learned", L * D),
        ("sinusoidal", 0),
        ("rope", 0),
        ("alibi", 0),
        ("hard_alibi", 0),
        ("t5", 32 * H),
        ("fire", 2 * 32 + (32 + 1) * H + 2),
        ("learned_alibi", H),
        ("kerple_log", 2 * H),
        ("kerple_power", 2 * H),
        ("mlp_bias", 2 * 32 + (32 + 1) * 32 + (32 + 1) * H),
        ("sandwich", 0),
        ("xpos", 0),
        ("shaw", 17 * (D // H)),
        ("transformer_xl", D * D + 2 * D),
        ("cope", 64 * (D // H)),
        ("forgetting", (D + 1) * H),
        ("cable", (D + 1) * H),
        ("pope", D),
        ("rope_nope", 0),
    ],
)
def test_parameters_of_the_scheme(name: str, parameters: int) -> None:
    assert parameters_by_part(model_of(name).parts())["position"] == parameters


@every_scheme
def test_the_scheme_is_shared_by_all_layers_or_has_the_same_number_of_parameters_in_each(name: str) -> None:
    one, three = (
        parameters_by_part(model_of(name, "transformer", n_layers=layers).parts())["position"] for layers in (1, 3)
    )
    assert one == count_parameters(model_of(name).positions)
    assert three == (3 * one if isinstance(model_of(name).positions, PerLayer) else one)


@every_scheme
@every_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_model_computes_the_same(name: str, architecture: str, dtype: torch.dtype) -> None:
    model = model_of(name, architecture)
    ids = ids_of(model)
    expected = model(ids)
    model.to(dtype)
    logits, _ = model(ids, return_weights=True)
    assert logits.dtype == model(ids).dtype == dtype
    tolerance = 2e-5 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(model(ids).float(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=tolerance)
    model(ids).sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.positions.parameters())


@every_scheme
@every_model
@both_ways
def test_a_single_token(name: str, architecture: str, return_weights: bool) -> None:
    model = model_of(name, architecture)
    ids = ids_of(model)[:, :1]
    logits = logits_of(model, ids, return_weights)
    torch.testing.assert_close(logits, model(ids_of(model))[:, :1], rtol=0, atol=1e-5)
    assert all(torch.equal(weights, torch.ones(3, H, 1, 1)) for weights in model.attention_maps(ids))
    logits.sum().backward()
    for parameter in model.positions.parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all())


@every_scheme
@every_model
def test_dropout_acts_in_training_only(name: str, architecture: str) -> None:
    dropping, plain = model_of(name, architecture, dropout=0.4), model_of(name, architecture)
    dropping.load_state_dict(plain.state_dict())
    ids = ids_of(plain)
    assert torch.equal(dropping(ids), plain(ids))
    assert torch.equal(dropping(ids), dropping(ids))
    dropping.train()
    assert not torch.allclose(dropping(ids), dropping(ids), atol=1e-3)
    assert torch.equal(plain.train()(ids), plain(ids))


@every_scheme
@every_model
def test_the_same_seed_builds_the_same_model(name: str, architecture: str) -> None:
    one, other = model_of(name, architecture), model_of(name, architecture)
    assert one.state_dict().keys() == other.state_dict().keys()
    assert torch.equal(one(ids_of(one)), other(ids_of(one)))


# Where fewer columns are rotated than the scheme needs.
TOO_NARROW = {("partial_rope", 2), ("rope_ntk", 2)}


@every_scheme
@pytest.mark.parametrize(("d_model", "n_heads"), [(2, 1), (6, 3), (4, 4), (12, 4), (16, 16)])
def test_any_heads_that_divide_the_width_work_or_are_refused_in_one_line(name: str, d_model: int, n_heads: int) -> None:
    d_head = d_model // n_heads
    if isinstance(model_of(name).positions.layer(0), RotaryPositions) and (d_head % 2 or (name, d_head) in TOO_NARROW):
        with pytest.raises(ConfigError, match=rf"^pos: [^\n]*\b{d_head}\b[^\n]*$"):
            model_of(name, d_model=d_model, n_heads=n_heads)
        return
    model = model_of(name, d_model=d_model, n_heads=n_heads)
    logits, weights = model(ids_of(model), return_weights=True)
    assert weights.shape == (3, n_heads, L, L)
    torch.testing.assert_close(model(ids_of(model)), logits, rtol=0, atol=2e-5)
