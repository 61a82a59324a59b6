"""The README's own examples: a newcomer copies them, so they have to work."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poslab.model import TransformerLM
from poslab.positions import PositionScheme
from poslab.training.stack import ModelStack
from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def extended_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with every example file of the README written where its first line says."""
    root = tmp_path_factory.mktemp("checkout")
    for part in ("src", "conf"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", root)
    written = 0
    for block in code_blocks("python") + code_blocks("yaml"):
        place = re.match(r"# ((?:src|conf)/\S+)\n", block)
        if place:
            target = root / place.group(1)
            assert not target.exists()
            target.write_text(block, encoding="utf-8")
            written += 1
    assert written == 8, "two schemes, a task and a diagnostic, each one class and one yaml"
    return root


@pytest.mark.process
def test_a_scheme_a_task_and_a_diagnostic_of_ones_own(extended_checkout: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "train.py",
            "pos=recency",
            "pos.slope=0.1",
            "task=rotate",
            "task.length=8",
            "diagnostics=[all,head_entropy]",
            "trainer.max_steps=10",
            "hydra.run.dir=run",
        ],
        cwd=extended_checkout,
        env={**os.environ, "PYTHONPATH": str(extended_checkout / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "head_entropy/layer_0" in (extended_checkout / "run/metrics.csv").read_text()
    assert "warning" not in (extended_checkout / "run/train.log").read_text().lower()


def test_a_scheme_of_ones_own_that_depends_on_the_content() -> None:
    """In a whole model: uncached as cached, and a replica of a stack as alone."""
    (block,) = (block for block in code_blocks("python") if "class OwnSlope" in block)
    assert len(block.splitlines()) <= 25
    names: dict[str, type[PositionScheme]] = {}
    exec(compile(block, "README.md", "exec"), names)
    models = [TransformerLM(13, 8, 2, 2, 10, positions=names["OwnSlope"](d_head=4)).eval() for _ in range(2)]
    for model in models:
        torch.nn.init.normal_(model.positions.weight)
    ids = torch.randint(13, (3, 10))
    stack = ModelStack(models, [torch.get_rng_state()] * 2).eval()
    with torch.no_grad():
        together = stack(torch.stack([ids, ids]), [10, 10])
        for index, model in enumerate(models):
            expected = model(ids)
            assert not torch.allclose(expected, models[1 - index](ids), atol=1e-2)
            torch.testing.assert_close(together[index], expected)
            cache = model.new_cache()
            parts = torch.cat([model.read(part, cache) for part in ids.split(3, dim=1)], dim=1)
            torch.testing.assert_close(parts, expected, rtol=1e-4, atol=1e-5)


def test_the_modules_without_the_framework(capsys: pytest.CaptureFixture[str]) -> None:
    block = next(block for block in code_blocks("python") if block.startswith("import torch"))
    exec(compile(block, "README.md", "exec"), {})
    count, curve = capsys.readouterr().out.split(" ", 1)
    assert int(count) == 65 * 64 + (4 * 64 * 64 + 4 * 64) + (64 * 65 + 65)
    assert json.loads(curve) == pytest.approx([0.9662, 0.8845, 0.7996, 0.7479], abs=5e-5)


def test_every_picture_is_there() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert len(pictures) >= 6
    assert all((ROOT / picture).is_file() for picture in pictures)
