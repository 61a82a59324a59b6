"""What a run orders from its gallery."""

from typing import Any

import pytest

from poslab.diagnostics import Gallery


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, Any]]:
    """Every picture that a run orders: tag, step, and the partial that would draw it; nothing is drawn."""
    orders: list[tuple[str, int, Any]] = []
    monkeypatch.setattr(Gallery, "order", lambda self, tag, step, make: orders.append((tag, step, make)))
    return orders
