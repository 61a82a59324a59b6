"""From figure to file: the same bytes every time, nothing global touched, few and even ticks."""

import ast
import gc
import io
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from poslab.diagnostics.position_table import draw_table
from poslab.pictures.figures import (
    LabelledFigure,
    message_figure,
    new_figure,
    to_array,
    to_png,
)
from poslab.pictures.plots import sparse_ticks
from support.figures import (
    PICTURES,
    ink,
    pixels,
)
from support.paths import ROOT


def test_png_is_what_the_canvas_shows_and_the_same_every_time() -> None:
    pngs = [to_png(message_figure("x")) for _ in range(2)]
    assert pngs[0] == pngs[1]
    image = Image.open(io.BytesIO(pngs[0]))
    assert image.format == "PNG"
    assert image.size == (500, 200)
    figure = message_figure("x")
    assert isinstance(figure, LabelledFigure)
    written = (np.asarray(image) != pixels(figure)).any(axis=-1)
    rows, columns = np.nonzero(written)
    box = ink(figure, figure.labels[0])
    # The letter, with its pale edges, where the canvas has nothing; everything else is the canvas's.
    assert box.x0 - 3 <= columns.min() <= columns.max() <= box.x1 + 3
    assert box.y0 - 3 <= 200 - rows.max() <= 200 - rows.min() <= box.y1 + 3


def test_a_figure_is_freed_once_it_is_a_png() -> None:
    figure = draw_table(np.ones((2, 2), dtype=np.float32))
    to_png(figure)
    left = weakref.ref(figure)
    del figure
    gc.collect()
    assert left() is None


def test_no_source_file_imports_pyplot_or_chooses_a_backend() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names = [f"matplotlib.{node.attr}"] if getattr(node.value, "id", "") == "matplotlib" else []
            bad = ("matplotlib.pyplot", "pylab", "matplotlib.use", "matplotlib.switch_backend")
            found += [f"{path}: {name}" for name in names if name.startswith(bad) or name.endswith(".pylab")]
    assert found == []


def test_no_figure_is_ever_known_to_pyplot() -> None:
    from matplotlib import pyplot

    for make in PICTURES.values():
        make()
    assert pyplot.get_fignums() == []
    assert type(new_figure(1, 1).canvas).__name__ == "FigureCanvasAgg"


def test_bf16_weights_can_be_plotted() -> None:
    tensor = torch.tensor([[0.5, -0.25]], dtype=torch.bfloat16, requires_grad=True)
    array = to_array(tensor)
    assert array.dtype == np.float32
    assert array.tolist() == [[0.5, -0.25]]
    assert len(to_png(draw_table(array))) > 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_an_array_is_a_copy(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    array = to_array(tensor)
    tensor += 1
    assert array.tolist() == [0, 0, 0]
    assert array.dtype == np.float32


@pytest.mark.parametrize("most", [1, 5, 12, 16])
def test_ticks_are_few_even_and_start_at_zero(most: int) -> None:
    for n in range(1, 300):
        ticks = sparse_ticks(n, most)
        assert ticks[0] == 0
        assert ticks[-1] < n
        assert 1 <= len(ticks) <= most
        assert len(set(np.diff(ticks))) <= 1
        if n <= most:
            assert len(ticks) == n
