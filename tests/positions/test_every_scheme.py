"""What every position scheme in conf/pos has to keep, in both kinds of model; a new yaml file is covered by itself."""

import copy
import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from poslab import MultiHeadSelfAttention, count_parameters
from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.errors import ConfigError
from poslab.model import LanguageModel
from poslab.model.parameters import parameters_by_part
from support.configs import compose
from support.paths import CONF

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
D, H, L = 16, 4, 12
every_scheme = pytest.mark.parametrize("name", SCHEMES)
every_model = pytest.mark.parametrize("architecture", MODELS)
both_ways = pytest.mark.parametrize("return_weights", [False, True])


@cache
def composed(name: str, architecture: str) -> DictConfig:
    sizes = (f"model.d_model={D}", f"model.n_heads={H}", "model.token_init_std=1.0")
    return compose(f"pos={name}", f"model={architecture}", *sizes)


def model_of(name: str, architecture: str = "attention", **sizes: float) -> LanguageModel:
    """A model with that scheme, every parameter of the scheme moved far from its start so that it matters."""
    config = checked(OmegaConf.merge(composed(name, architecture), {"model": sizes}))
    torch.manual_seed(1)
    model = build_model(config, build_task(config)).eval()
    with torch.no_grad():
        for parameter in model.positions.parameters():
            parameter.add_(0.5 * torch.rand_like(parameter))
    return model


def ids_of(model: LanguageModel, length: int = L, batch: int = 3) -> Tensor:
    return torch.randint(model.vocab_size, (batch, length), generator=torch.Generator().manual_seed(2))


def logits_of(model: LanguageModel, ids: Tensor, return_weights: bool = False) -> Tensor:
    return model(ids, return_weights=True)[0] if return_weights else model(ids)


# A whole model.


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
INVARIANT = {"fire": {"network.2.bias"}}


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
    ],
)
def test_parameters_of_the_scheme(name: str, parameters: int) -> None:
    assert parameters_by_part(model_of(name).parts())["position"] == parameters


@every_scheme
def test_the_scheme_is_shared_by_all_layers(name: str) -> None:
    counts = {
        parameters_by_part(model_of(name, "transformer", n_layers=layers).parts())["position"] for layers in (1, 3)
    }
    assert counts == {count_parameters(model_of(name).positions)}


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


@every_scheme
@pytest.mark.parametrize(("d_model", "n_heads"), [(2, 1), (6, 3), (4, 4), (12, 4), (16, 16)])
def test_any_heads_that_divide_the_width_work_or_are_refused_in_one_line(name: str, d_model: int, n_heads: int) -> None:
    if name == "rope" and d_model // n_heads % 2:
        with pytest.raises(ConfigError, match=rf"^pos: d_head {d_model // n_heads} is odd[^\n]*$"):
            model_of(name, d_model=d_model, n_heads=n_heads)
        return
    model = model_of(name, d_model=d_model, n_heads=n_heads)
    logits, weights = model(ids_of(model), return_weights=True)
    assert weights.shape == (3, n_heads, L, L)
    torch.testing.assert_close(model(ids_of(model)), logits, rtol=0, atol=2e-5)


# The scheme alone: what a key/value cache needs.


@every_scheme
@pytest.mark.parametrize("n_keys", [1, 2, 9, 100])
def test_the_bias_of_the_last_queries_is_the_end_of_the_whole(name: str, n_keys: int) -> None:
    scheme = model_of(name).positions
    whole = scheme.bias(n_keys, n_keys)
    for n_queries in {1, (n_keys + 1) // 2, n_keys}:
        bias = scheme.bias(n_queries, n_keys)
        if whole is None:
            assert bias is None
        else:
            assert bias.shape == (H, n_queries, n_keys)
            torch.testing.assert_close(bias.tril(n_keys - n_queries), whole[:, -n_queries:].tril(n_keys - n_queries))


@every_scheme
def test_the_bias_of_a_sequence_is_the_beginning_of_a_longer_one_s(name: str) -> None:
    scheme = model_of(name).positions
    if scheme.bias(1, 1) is not None:
        torch.testing.assert_close(scheme.bias(70, 70).tril(), scheme.bias(100, 100)[:, :70, :70].tril())


@every_scheme
@pytest.mark.parametrize(("start", "length"), [(0, 12), (0, 1), (3, 4), (11, 1)])
def test_positions_that_start_later_are_slices_of_the_whole(name: str, start: int, length: int) -> None:
    scheme = model_of(name).positions
    x = torch.randn(2, H, 12, D // H)
    part = slice(start, start + length)
    torch.testing.assert_close(scheme.rotate(x[:, :, part], start), scheme.rotate(x)[:, :, part])
    rows, whole = scheme.embed(length, start), scheme.embed(12)
    assert (rows is None) == (whole is None)
    if rows is not None:
        assert torch.equal(rows, whole[part])


@every_scheme
def test_a_cast_scheme_places_as_before(name: str) -> None:
    """bf16 has three digits: numbers that are computed with may lose no more than that."""
    scheme = model_of(name).positions
    x = torch.randn(1, H, 300, D // H).bfloat16()
    bias, rows, turned = scheme.bias(300, 300), scheme.embed(12), scheme.rotate(x.float())
    scheme.to(torch.bfloat16)
    torch.testing.assert_close(scheme.rotate(x).float(), turned, rtol=0.01, atol=0.02)
    if bias is not None:
        torch.testing.assert_close(scheme.bias(300, 300).float().tril(), bias.tril(), rtol=0.02, atol=0.02)
    if rows is not None:
        torch.testing.assert_close(scheme.embed(12).float(), rows, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "hard_alibi", "t5"])
def test_scores_of_a_relative_scheme_depend_on_the_offset_only(name: str) -> None:
    """The same vector at every position: a score against the query's own is then a matter of distance alone."""
    scheme, attention = model_of(name).positions, MultiHeadSelfAttention(D, H, 40)
    _, weights = attention(2 * torch.randn(1, 1, D).expand(1, 40, D), True, scheme)
    scores = weights[0].log() - weights[0].log().diagonal(dim1=-2, dim2=-1)[..., None]
    for offset in range(40):
        found = scores.diagonal(-offset, dim1=-2, dim2=-1)
        torch.testing.assert_close(found, found[:, :1].expand_as(found), rtol=1e-4, atol=1e-4)


# Longer than anything trained.

# Schemes whose number of positions is fixed when they are built. Every other one goes on.
ENDS = {"learned"}


def refusal(grow: Callable[[int], object], length: int) -> str | None:
    """What is said against that length; None if nothing."""
    try:
        grow(length)
    except ValueError as error:
        return str(error)
    return None


@every_scheme
@every_model
def test_extended_it_goes_on_or_says_where_it_ends(name: str, architecture: str) -> None:
    model = model_of(name, architecture)
    ids, before = ids_of(model), copy.deepcopy(model.state_dict())
    expected = model(ids)
    ends = refusal(model.extended, 40)
    assert (ends is not None) == (name in ENDS)
    if ends is not None:
        assert re.fullmatch(r"[^\n]*\b12\b[^\n]*\b40\b[^\n]*", ends)
    else:
        longer = model.extended(40)
        assert longer.max_context_length == 40
        torch.testing.assert_close(longer(ids), expected)
        torch.testing.assert_close(logits_of(longer, ids, True), expected, rtol=0, atol=2e-5)
        far = ids_of(model, 40)
        torch.testing.assert_close(longer(far), logits_of(longer, far, True), rtol=0, atol=2e-5)
        torch.testing.assert_close(longer(far)[:, :L], model(far[:, :L]), rtol=0, atol=1e-5)
        longer.load_state_dict(before)
        with pytest.raises(ValueError, match=r"\b41\b.*\b40\b"):
            longer(ids_of(model, 41))
        built = model_of(name, architecture, max_context_length=40)
        built.load_state_dict(before)
        assert torch.equal(built(far), longer(far))
    # The model itself is as it was.
    assert model.extended(L) is model
    assert torch.equal(model(ids), expected)
    with pytest.raises(ValueError, match=r"\b13\b.*\b12\b"):
        model(ids_of(model, 13))


@every_scheme
def test_a_scheme_says_where_it_ends_or_places_any_length(name: str) -> None:
    scheme = model_of(name).positions
    ends = refusal(scheme.extend, 500)
    assert (ends is not None) == (name in ENDS)
    if ends is not None:
        assert re.fullmatch(r"[^\n]*\b12\b[^\n]*\b500\b[^\n]*", ends)
        assert scheme.max_context_length == L
        return
    assert scheme.max_context_length in (None, 500)
    assert bool(scheme.rotate(torch.randn(1, H, 500, D // H)).isfinite().all())
    bias, rows = scheme.bias(500, 500), scheme.embed(500)
    assert bias is None or not bool(bias.isnan().any())
    assert rows is None or rows.shape == (500, D)


def test_extending_the_sinusoidal_table_keeps_its_first_rows() -> None:
    scheme = model_of("sinusoidal").positions
    first = scheme.table().clone()
    scheme.extend(5)
    assert torch.equal(scheme.table(), first)
    scheme.to(torch.float64).extend(100)
    assert scheme.table().shape == (100, D)
    assert scheme.table().dtype == torch.float64
    assert torch.equal(scheme.table()[:L].float(), first)
