"""The interface of position schemes: what a scheme does not override does nothing."""

import pytest
import torch

from poslab import (
    PositionScheme,
    count_parameters,
)
from poslab.positions import NoPositions


@pytest.mark.parametrize("scheme", [PositionScheme(), NoPositions()])
def test_a_scheme_does_nothing_until_it_overrides_something(scheme: PositionScheme) -> None:
    x = torch.randn(2, 3, 5, 4)
    assert scheme.embed(5) is None
    assert scheme(5) is None
    assert scheme.rotate(x) is x
    assert scheme.bias(5, 5) is None
    assert scheme.table() is None
    assert scheme.max_context_length is None
    assert scheme.d_model is None
    assert count_parameters(scheme) == 0
    assert scheme.state_dict() == {}
