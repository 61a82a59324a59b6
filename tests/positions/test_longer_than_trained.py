"""Every position scheme in conf/pos beyond the lengths of training: it goes on, or says where it ends."""

import copy
import re
from collections.abc import Callable

import pytest
import torch

from support.every_scheme import D, H, L, every_model, every_scheme, ids_of, logits_of, model_of

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
