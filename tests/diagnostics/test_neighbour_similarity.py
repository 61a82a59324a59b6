"""The similarity of neighbouring positions: what it shows, and what it remembers."""

from pathlib import Path

import pytest
import torch

from poslab.diagnostics import Picture, Scalars
from poslab.diagnostics.neighbour_similarity import NeighbourSimilarity
from poslab.evaluation.metrics import neighbour_cosine_curve
from poslab.positions import LearnedPositionalEmbedding, NoPositions, SinusoidalPositionalEmbedding
from poslab.trained import load
from support.probes import a_model, findings, pictures
from support.runs import SMALL, read_json, train


def test_similarity_is_the_curve_of_the_models_own_table() -> None:
    model = a_model()
    found = findings(NeighbourSimilarity(max_offset=3), model)
    (scalars,) = [one.values for one in found if isinstance(one, Scalars)]
    wanted = neighbour_cosine_curve(model.positions.table(), 3)
    assert scalars == {f"neighbour_similarity/offset_{k}": wanted[k - 1] for k in (1, 2, 3)}


def test_similarity_keeps_the_untrained_curve_for_comparison() -> None:
    model = a_model()
    diagnostic = NeighbourSimilarity()
    first = pictures(diagnostic, model)["neighbour_similarity/curve"].draw.args  # type: ignore[attr-defined]
    assert first[1] is None
    for _ in range(2):
        with torch.no_grad():
            model.positions.embedding.weight.normal_()
        later = pictures(diagnostic, model)["neighbour_similarity/curve"].draw.args  # type: ignore[attr-defined]
        assert later[1] == first[0]
        assert later[0] != first[0]


def test_what_was_seen_is_remembered_by_a_run_that_goes_on() -> None:
    model = a_model()
    before, after = NeighbourSimilarity(), NeighbourSimilarity()
    start = pictures(before, model)["neighbour_similarity/curve"].draw.args[0]  # type: ignore[attr-defined]
    after.load_state_dict(before.state_dict())
    assert pictures(after, a_model())["neighbour_similarity/curve"].draw.args[1] == start  # type: ignore[attr-defined]


@pytest.mark.parametrize(("rows", "offsets"), [(12, 8), (5, 4), (2, 1)])
def test_a_short_table_has_as_many_offsets_as_it_has(rows: int, offsets: int) -> None:
    model = a_model(LearnedPositionalEmbedding(12, 32))
    model.positions.table = lambda: torch.randn(rows, 32)  # type: ignore[method-assign]
    (scalars,) = [one.values for one in findings(NeighbourSimilarity(), model) if isinstance(one, Scalars)]
    assert list(scalars) == [f"neighbour_similarity/offset_{k}" for k in range(1, offsets + 1)]


@pytest.mark.parametrize("rows", [None, 1])
def test_without_neighbours_there_are_pictures_but_no_numbers(rows: int | None) -> None:
    model = a_model(NoPositions())
    if rows:
        model.positions.table = lambda: torch.ones(rows, 32)  # type: ignore[method-assign]
    found = findings(NeighbourSimilarity(), model)
    assert [type(one) for one in found] == [Picture, Picture]
    written = [one.draw().labels[0].text for one in found if isinstance(one, Picture)]
    assert all(("single row" if rows else "no table") in text for text in written)


def test_rows_that_training_does_not_use_are_left_out_and_the_titles_say_so() -> None:
    """The probe is of the copy task with twelve tokens; the table has 64 rows."""
    model = a_model(context=64)
    with torch.no_grad():
        model.positions.embedding.weight[:12] = torch.arange(12)[:, None] + torch.ones(12, 32)
    found = findings(NeighbourSimilarity(), model)
    (scalars,) = [one.values for one in found if isinstance(one, Scalars)]
    assert scalars["neighbour_similarity/offset_1"] == pytest.approx(1)
    assert neighbour_cosine_curve(model.positions.table(), 1)[0] < 0.4
    curve, matrix = (one.draw() for one in found if isinstance(one, Picture))
    assert curve.labels[0].text == "Neighbour similarity of position vectors 0 to 11 of 64"
    assert matrix.labels[0].text == "Cosine similarity of position vectors 0 to 11 of 64"
    (whole,) = [one.draw() for tag, one in pictures(NeighbourSimilarity(), a_model()).items() if tag.endswith("curve")]
    assert whole.labels[0].text == "Neighbour similarity of position vectors"


@pytest.mark.parametrize(
    ("options", "n_rows"),
    [({}, 12), ({"train_offset": "random"}, 64), ({"train_positions": "random"}, 64)],
)
def test_with_random_positions_training_uses_all_rows(options: dict[str, str], n_rows: int) -> None:
    for scheme in (LearnedPositionalEmbedding(64, 8, **options), SinusoidalPositionalEmbedding(64, 8, **options)):
        assert scheme.trained_table(12).equal(scheme.table()[:n_rows])
    assert NoPositions().trained_table(12) is None


def test_the_result_has_the_similarity_of_the_trained_rows(tmp_path: Path) -> None:
    options = (*SMALL, "model.max_context_length=64", "diagnostics=none", "logger=none")
    folder = train(tmp_path, *options)
    _, task, model = load(folder)
    wanted = neighbour_cosine_curve(model.positions.table()[: task.seq_len], 1)[0]
    metrics = read_json(folder / "result.json")["metrics"]
    assert metrics["neighbour_similarity/offset_1"] == pytest.approx(wanted)
    assert metrics["neighbour_similarity/rows"] == 12


def test_at_least_one_offset_is_needed() -> None:
    with pytest.raises(ValueError, match="max_offset=0 must be at least 1"):
        NeighbourSimilarity(max_offset=0)
