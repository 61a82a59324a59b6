"""Heat maps: of every layer, of a prompt of one's own, of a long context in blocks and in little memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.diagnostics.heads import HeadMaps, any_cell, block_size, draw_heads, largest_weights
from poslab.errors import ConfigError
from poslab.model import TransformerLM, attention
from poslab.pictures.figures import LabelledFigure
from poslab.preflight.checks import preflight
from poslab.tasks.copy import CopyTask
from poslab.tasks.repeat import RepeatTask
from support.configs import compose
from support.event_files import read, steps
from support.figures import assert_readable, at, close, corner, pixels, red_at, texts, viridis
from support.paths import ROOT
from support.probes import a_model, a_probe, pictures
from support.runs import SMALL, train

PROMPT = "diagnostics.heads.prompt=3 1 4 1 5"


def test_every_layer_has_its_own_map_in_order(tmp_path: Path) -> None:
    overrides = (*SMALL, "model=transformer", "model.n_layers=3", "diagnostics=[heads]", "trainer.max_epochs=1")
    folder = train(tmp_path / "run", *overrides)
    events = read(folder)
    assert set(events.Tags()["images"]) == {f"heads/layer_{layer}" for layer in range(3)}
    # Drawn again from the stored weights, by the way that keeps all layers at once.
    job = checked(compose(*overrides))
    task = build_task(job)
    model = build_model(job, task).eval()
    stored = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in stored.items()})
    probe = SeedData(task, job.data, job.seed, model.vocab_size).probe
    with torch.no_grad():
        _, maps = model(probe.tokens, return_weights=True)
        found = pictures_of(HeadMaps(), model, probe)
    assert list(found) == [f"heads/layer_{layer}" for layer in range(3)]
    for layer, picture in enumerate(found.values()):
        weights, _, _, number = picture.draw.args  # type: ignore[attr-defined]
        assert number == layer
        assert np.allclose(weights, maps[layer][0].numpy(), atol=1e-6)
    assert not np.allclose(maps[0], maps[1])


def pictures_of(diagnostic, model, probe):
    return {found.tag: found for found in diagnostic.look(model, probe)}


# A prompt


def test_a_prompt_is_shown_with_the_oracles_answer_outlined(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *SMALL, "diagnostics=[heads]", PROMPT)
    events = read(folder)
    assert steps(events, "heads/prompt/layer_0") == steps(events, "heads/layer_0") == [0, 3, 6, 9]
    assert (folder / "figures" / "heads_prompt_layer_0.png").stat().st_size > 1000


def test_the_picture_of_a_prompt_has_its_tokens_weights_and_cells() -> None:
    model, probe = a_model(), a_probe()
    with torch.no_grad():
        found = pictures(HeadMaps(prompt="3 1 4 1 5"), model)
        weights = model.attention_maps(torch.tensor([[3, 1, 4, 1, 5, 64, 3, 1, 4, 1]]))[0][0]
    assert list(found) == ["heads/layer_0", "heads/prompt/layer_0"]
    shown, labels, cells, _ = found["heads/prompt/layer_0"].draw.args  # type: ignore[attr-defined]
    # The last token of the answer is only ever a target.
    assert labels == ["3", "1", "4", "1", "5", "SEP", "3", "1", "4", "1"]
    assert np.allclose(shown, weights, atol=1e-6)
    assert [tuple(cell) for cell in np.argwhere(cells)] == [(5, 0), (6, 1), (7, 2), (8, 3), (9, 4)]
    assert found["heads/layer_0"].draw.args[1] == probe.labels  # type: ignore[attr-defined]
    figure = found["heads/prompt/layer_0"].draw()
    assert any("on the prompt 3 1 4 1 5" in text for text in texts(figure))
    assert_readable(figure)


@pytest.mark.parametrize(
    ("task", "prompt", "tokens"),
    [
        (CopyTask(8, 4, bos=True, eos=True), "1 2", [9, 1, 2, 8, 1, 2]),
        (CopyTask(8, 4), "1 2 3 SEP 1", [1, 2, 3, 8, 1, 2]),
        (CopyTask(8, 4), "5", [5, 8]),
        (RepeatTask(8, 4), "5 5 5", [5, 5, 5, 5, 5]),
    ],
)
def test_a_prompt_is_completed_as_a_row_of_the_task(task, prompt: str, tokens: list[int]) -> None:
    assert task.completed(task.prompt(task.encode(prompt))).tolist() == tokens


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("3 x 4", r"diagnostics\.heads: 'x' is not a token of this task; the tokens are: 0, 1, .*, SEP"),
        (
            "1 2 3 4 5 6 7",
            r"diagnostics\.heads: prompt '1 2 3 4 5 6 7' and the answer to it are 14 tokens, longer than "
            r"max_context_length 12; shorten it or set model\.max_context_length=14",
        ),
        ("", r"diagnostics\.heads: prompt is empty; give at least one token"),
    ],
)
def test_a_prompt_that_cannot_be_shown_is_refused_before_a_folder_is_made(
    prompt: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        preflight(compose(f"diagnostics.heads.prompt='{prompt}'"), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_prompt_as_long_as_training_and_a_single_number_pass(tmp_path: Path) -> None:
    for prompt in ("1 2 3 4 5 6", "7"):
        preflight(compose(f"diagnostics.heads.prompt={prompt}"), tmp_path / "run")


# A long context


def test_blocks_begin_where_cells_become_too_small() -> None:
    assert [block_size(4, n) for n in (12, 100, 264, 265, 2048)] == [1, 1, 1, 3, 16]
    assert [block_size(n_heads, 100) for n_heads in (1, 4, 16)] == [1, 1, 1]


@pytest.mark.parametrize(("n", "block"), [(6, 2), (7, 3), (5, 1), (4, 9)])
def test_a_block_is_the_largest_of_its_cells_and_marked_if_any_is(n: int, block: int) -> None:
    rng = np.random.default_rng(0)
    weights, cells = rng.random((2, n, n)).astype(np.float32), rng.random((n, n)) < 0.2
    starts = range(0, n, block)
    largest = largest_weights(torch.from_numpy(weights), block).numpy()
    marked = any_cell(cells, block)
    assert largest.shape[1:] == marked.shape == (len(starts), len(starts))
    for i, row in enumerate(starts):
        for j, column in enumerate(starts):
            part = np.s_[row : row + block, column : column + block]
            assert (largest[:, i, j] == weights[:, part[0], part[1]].max((1, 2))).all()
            assert marked[i, j] == cells[part].any()


@pytest.mark.parametrize("length", [1024, 1021])
def test_a_picture_in_blocks_says_so_and_outlines_and_labels_stand_where_their_tokens_are(length: int) -> None:
    """One head copies, one does not: the outline leaves that to be seen, also where the last block is not whole."""
    task = CopyTask(64, length)
    tokens = task.sample(np.random.default_rng(0), 1).tokens[0]
    labels, cells = [task.token_label(int(token)) for token in tokens], task.answer_cells(tokens)
    n = len(tokens)
    weights = torch.zeros(2, n, n)
    weights[0, np.arange(length, n), np.arange(n - length)] = 1.0
    block = block_size(2, n)
    assert block > 1
    figure = draw_heads(largest_weights(weights, block).numpy(), labels, any_cell(cells, block), 0, block=block)
    assert any(f"a cell is the largest of {block} x {block} weights" in text for text in texts(figure))
    assert_readable(figure)
    picture = pixels(figure)
    for head, value in ((0, 1.0), (1, 0.0)):
        x, y = corner(figure, head)
        x, y, aligned = x - 0.5, y - 0.5, 0
        # Data coordinates are tokens: the block of answer (query, key) is where the two tokens say.
        for key in range(0, n - length - block, 5 * block):
            i, j = (length + key) // block, key // block
            middle = (x + (j + 0.5) * block, y + (i + 0.5) * block)
            assert close(at(figure, picture, *middle), viridis(value), by=110), (head, key)
            # Between two marked blocks there is no line.
            neighbour = j > 0 and cells[i * block : (i + 1) * block, (j - 1) * block : j * block].any()
            assert neighbour or red_at(figure, picture, x + j * block, y + (i + 0.5) * block), (head, key)
            aligned += not neighbour
        assert aligned
        far = (x + 0.2 * n, y + 0.5 * n)
        assert close(at(figure, picture, *far), viridis(0.0))
    assert isinstance(figure, LabelledFigure)
    across = [label for label in figure.labels if label.upright and label.anchor == "ma" and label.at[0] < n]
    assert len(across) > 4
    assert all(label.text == labels[round(label.at[0])] for label in across)


def test_a_long_context_s_weights_made_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerLM(65, 16, 2, 2, 40).eval()
    ids = torch.randint(65, (2, 40))
    with torch.no_grad():
        whole, maps = model(ids, return_weights=True)
        monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 7)
        blocks, maps_of_blocks = model(ids, return_weights=True)
        assert torch.allclose(blocks, whole, atol=1e-6)
        for one, other in zip(maps_of_blocks, maps, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
            assert one.dtype == torch.float32
            assert torch.equal(one, one.tril())
    # With a gradient to come, all at once.
    logits, _ = model(ids, return_weights=True)
    logits.sum().backward()
    assert model.blocks[0].attention.qkv_proj.weight.grad.abs().sum() > 0


def test_a_layer_s_weights_are_gone_before_the_next_one_s_are_made() -> None:
    import weakref

    model = TransformerLM(65, 16, 2, 3, 12).eval()
    alive: list[weakref.ref[torch.Tensor]] = []

    def keep(weights: torch.Tensor) -> float:
        assert [one for one in alive if one() is not None] == []
        alive.append(weakref.ref(weights))
        return float(weights.sum())

    with torch.no_grad():
        assert model.attention_maps(torch.randint(65, (1, 12)), keep=keep) == pytest.approx([24, 24, 24])


MEASURE = """
import sys, torch
torch.set_num_threads(1)
from poslab.config.schema import DataConfig
from poslab.data.module import SeedData
from poslab.diagnostics.heads import HeadMaps
from poslab.model import TransformerLM
from poslab.tasks.copy import CopyTask

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

sizes = DataConfig(batch_size=1, steps_per_epoch=1, val_examples=1, val_batch_size=1, num_workers=0)
data = SeedData(CopyTask(64, 1024), sizes, 0, 65)
model = TransformerLM(65, 64, 4, 3, 2048).eval()
with torch.no_grad():
    small = data.probe_of(data.probe.tokens[:, 900:1100])
    list(HeadMaps().look(model, small))
    model(data.probe.tokens)
    before = peak()
    found = list(HeadMaps().look(model, data.probe))
print(peak() - before, sum(one.draw.args[0].nbytes for one in found) / 2**20)
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_a_long_context_s_heat_maps_take_one_map_at_a_time() -> None:
    """T 2048, H 4: a map is 64 MiB. Three layers at once, or scores beside weights, would be 128 MiB and more."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    grown, kept = map(float, done.stdout.split())
    one_map = 4 * 2048 * 2048 * 4 / 2**20
    assert grown < 1.5 * one_map
    assert kept < 1
