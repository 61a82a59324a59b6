"""What is refused before a folder is made, beyond the rules of the configuration."""

import os
from pathlib import Path

import numpy as np
import pytest

from poslab.preflight.checks import preflight
from support.configs import compose, refusal
from support.devices import no_device


def test_gpu_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_device(monkeypatch)
    line = refusal(tmp_path / "run", "trainer=gpu")
    assert "no GPU" in line
    assert "trainer=cpu" in line


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        line = refusal(folder)
        assert f"cannot write to {folder}" in line
        assert "hydra.run.dir" in line


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path):
    tmp_path.chmod(0o500)
    try:
        assert "cannot write to" in refusal(tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


def test_rows_from_a_file_have_to_fit(tmp_path: Path):
    rows, text = tmp_path / "rows.npy", tmp_path / "rows.txt"
    np.save(rows, np.zeros((3, 32), dtype=np.float32))
    text.write_text("1 2 3")
    line = refusal(tmp_path / "run", "model.token_init=file", f"model.token_file={rows}")
    assert "(3, 32)" in line
    assert "(65, 32)" in line
    assert ".npy" in refusal(tmp_path / "run", "model.token_init=file", f"model.token_file={text}")


@pytest.mark.parametrize(
    "overrides",
    [
        "model.max_context_length=12",
        "model.max_context_length=100 model.vocab_size=66",
        "pos=none model.d_model=33 model.n_heads=3",
        "model.d_model=1 model.n_heads=1",
        "model.dropout=0.99",
        "seed=0",
        "seed=4294967295",
        "trainer=ddp trainer.devices=4",
        "trainer=fsdp",
        "trainer=ddp trainer.devices=1",
        "deterministic=true",
        "trainer.gradient_clip_norm=null trainer.max_steps=-1",
        "trainer.threads=7 trainer.progress_bar=True",
        "optimizer.betas=[0.0,0.5] optimizer.weight_decay=0",
        "task.length=1 task.n_symbols=2 data.batch_size=1 data.val_examples=1",
        "diagnostics.heads.every=0",
        "~diagnostics.heads",
        "diagnostics=[heads,parameters]",
    ],
)
def test_what_lies_just_inside_the_rules_passes(overrides: str, tmp_path: Path):
    preflight(compose(*overrides.split(" ")), tmp_path / "run")
