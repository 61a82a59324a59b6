"""The comparison's page: no network, nothing of a job becomes markup, bounded pictures."""

import json
import re
from pathlib import Path

from poslab.comparison import write_comparison
from poslab.comparison.gallery import MOST_BYTES, MOST_JOBS
from support.job_folders import png, write_job
from support.pages import Page
from support.small_sweep import rows


def test_the_page_asks_nothing_of_a_network(compared: Path) -> None:
    text = (compared / "comparison.html").read_text()
    page = Page(text)
    assert "default-src 'none'" in text
    assert all(source.startswith("data:image/png;base64,") for source in page.attributes("src"))
    assert all(link.startswith(("#", "data:")) for link in page.attributes("href"))
    assert not re.search(r"https?://|@import|url\(", text)
    # Under a strict policy no handler can hide in an attribute, and styles are in one place.
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_what_a_job_says_cannot_become_part_of_the_page(compared: Path) -> None:
    page = Page((compared / "comparison.html").read_text())
    assert "b" in {tag for tag, _ in page.tags}
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "DivergedError: loss nan </script><b>at</b> step 40 | lower the rate" in page.text
    data = json.loads(page.data)
    assert len(data["jobs"]) == 12
    assert data["axes"][1] == {"key": "model.n_heads", "name": "n_heads", "levels": ["4", "5", "16"]}


def test_nor_can_what_a_setting_says(tmp_path: Path) -> None:
    for name in ("normal", "</script><b>"):
        write_job(tmp_path / f"job{len(name)}", model__token_file=name)
    write_comparison([tmp_path], tmp_path)
    page = Page((tmp_path / "comparison.html").read_text())
    assert json.loads(page.data)["axes"][0]["levels"] == ["</script><b>", "normal"]
    assert sum(tag == "script" for tag, _ in page.tags) == 2


def test_the_page_shows_a_picture_of_each_setting(compared: Path) -> None:
    page = Page((compared / "comparison.html").read_text())
    plot, *pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert plot["alt"] == "exact match by length"
    # Four settings, heads and similarity of each.
    assert len(pictures) == 8
    assert pictures[0]["alt"] == "attention weights of every head, learned, n_heads 4"
    assert (pictures[0]["width"], pictures[0]["height"]) == ("60", "40")


def test_pictures_are_bounded_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    for heads in range(1, 31):
        folder = write_job(tmp_path / f"job{heads}", model__n_heads=heads, pictures=400_000, last=40)
        if heads == 1:
            (folder / "figures" / "heads_layer_0.png").write_bytes(png()[:-8])
    write_comparison([tmp_path], tmp_path / "out")
    path = tmp_path / "out" / "comparison.html"
    assert path.stat().st_size < 8_000_000
    text = path.read_text()
    assert 400_000 * text.count("<img ") < MOST_BYTES
    assert text.count("<figure>") <= MOST_JOBS
    assert "12 of 30 settings, evenly chosen" in text
    assert f"{24 - text.count('<img ')} pictures left out: broken, or too large for this file." in text


def test_the_page_of_a_sweep_in_which_nothing_completed(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_job(tmp_path / f"job{seed}", seed=seed, status="failed", error="RuntimeError: no")
    comparison = write_comparison([tmp_path], tmp_path)
    assert comparison.statements[-1].text == "No job completed, so there is nothing to compare"
    assert "RuntimeError: no" in (tmp_path / "comparison.html").read_text()
    assert [row["status"] for row in rows(tmp_path)] == ["failed", "failed"]
