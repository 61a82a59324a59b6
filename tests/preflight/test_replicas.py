"""What cannot be trained as several replicas is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from poslab.errors import ConfigError
from poslab.positions.base import PositionScheme
from poslab.preflight.checks import preflight
from poslab.sweeps.sweep import checked_job
from support.configs import compose


class Noisy(PositionScheme):
    """Draws where nobody can draw for it."""

    def embed(self, seq_len: int, start: int = 0) -> Tensor:
        return torch.rand(seq_len, 32)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("seeds=0",), "seeds=0 must be at least 1"),
        (("seeds=2", "model.dropout=0.1"), r"seeds=2 with model.dropout=0.1: .*use -m seed=0,1,\.\.\. instead"),
        (("seeds=2", "trainer=ddp"), "seeds=2 with trainer=ddp: replicas are trained on one device"),
        (("seeds=2", "trainer=fsdp"), "seeds=2 with trainer=fsdp: replicas are trained on one device"),
        (("seeds=3", "seed=4294967294"), r"seed=4294967294 with seeds=3 goes beyond 2\^32"),
        (("seeds=1000000000",), r"seeds=1000000000 at about \d+ MiB a replica does not fit the .* use at most \d+"),
    ],
)
def test_refusals(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    for refuse in (checked_job, lambda config: preflight(config, tmp_path / "run")):
        with pytest.raises(ConfigError, match=message) as refused:
            refuse(compose(*overrides))
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_scheme_that_draws_on_its_own_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("poslab.positions.none.NoPositions", Noisy)
    preflight(compose("pos=none"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"seeds=2: these replicas cannot be trained together \(vmap.*\); use -m"):
        preflight(compose("pos=none", "seeds=2"), tmp_path / "run")


def test_copies_whose_buffers_differ_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Lucky(PositionScheme):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("drawn_once", torch.rand(3), persistent=False)

    monkeypatch.setattr("poslab.positions.none.NoPositions", Lucky)
    with pytest.raises(
        ConfigError, match=r"buffer embeddings.positional_embedding.drawn_once differs from seed to seed"
    ):
        preflight(compose("pos=none", "seeds=2"), tmp_path / "run")
