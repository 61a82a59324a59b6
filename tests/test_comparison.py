"""The written comparison: a table, a text, a page and plots, the same bytes whenever the jobs are the same."""

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_comparison_sweeps import png, write_job

from poslab.comparison import ComparisonError, write_comparison
from poslab.comparison.__main__ import main
from poslab.comparison.gallery import MOST_BYTES, MOST_JOBS
from poslab.comparison.numbers import factor, number, p_value, percent, share_interval
from poslab.comparison.statistics import mean_interval

FILES = {
    "comparison.csv",
    "comparison.md",
    "comparison.html",
    "comparison/loss_curves.png",
    "comparison/accuracy_by_setting.png",
    "comparison/parameters_against_result.png",
    "comparison/exact_match_by_length.png",
}


def small_sweep(folder: Path, wall_seconds: float = 3.0) -> Path:
    """Two schemes, two numbers of heads, three seeds; one diverged, one broken, one refused."""
    for pos, steps in (("learned", 400), ("sinusoidal", 200)):
        for heads in (4, 16):
            for seed in (1, 2, 3):
                lost = pos == "learned" and heads == 16 and seed == 3
                write_job(
                    folder / f"{pos}-{heads}-{seed}",
                    status="diverged" if lost else "completed",
                    error="DivergedError: loss nan\n</script><b>at</b> step 40 | lower the rate" if lost else None,
                    steps_to_99=steps + 10 * seed + heads,
                    loss=0.001 * seed,
                    pictures=0 if lost else 100,
                    metrics={"length/9/exact_match": 0.5, "length/12/exact_match": 0.25},
                    wall_seconds=wall_seconds + seed,
                    overrides=[f"pos={pos}", f"model.n_heads={heads}", f"seed={seed}", "resume=auto"],
                    pos=pos,
                    model__n_heads=heads,
                    seed=seed,
                )
    (folder / "learned-4-1" / "result.json").write_text("{")
    refused = [{"overrides": ["pos=learned", "model.n_heads=5", "seed=1"], "reason": "32 has no 5 equal heads"}]
    (folder / "invalid.json").write_text(json.dumps(refused))
    return folder


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(target: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((target / "comparison.csv").read_text())))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with its comparison beside its jobs."""
    folder = small_sweep(tmp_path_factory.mktemp("compared") / "sweep")
    comparison = write_comparison([folder], folder)
    assert comparison.counts == {"completed": 10, "diverged": 1, "broken": 1, "invalid": 1}
    assert {path.relative_to(folder).as_posix() for path in comparison.files} == FILES
    return folder


def test_everything_is_written_and_nothing_else(compared: Path) -> None:
    others = {path.name for path in compared.iterdir() if path.is_dir() and path.name != "comparison"}
    assert {name for name in written(compared) if name.split("/")[0] not in others} == {*FILES, "invalid.json"}


def test_a_row_a_job_with_only_the_axes_that_vary(compared: Path) -> None:
    table = rows(compared)
    assert list(table[0]) == [
        "job", "pos", "model.n_heads", "seed", "status", "error", "overrides",
        "parameters/total", "parameters/attention", "parameters/head", "parameters/position",
        "parameters/token_embedding", "best/val/loss", "best/val/accuracy", "best/val/exact_match",
        "val/loss", "val/accuracy", "val/exact_match", "train/loss", "length/9/exact_match", "length/12/exact_match",
        "neighbour_similarity/offset_1", "steps_to_99/exact_match", "steps_to_99/accuracy", "wall_seconds",
    ]  # fmt: skip
    assert [(row["pos"], row["model.n_heads"], row["seed"]) for row in table] == [
        *(("learned", "4", seed) for seed in "123"),
        ("learned", "5", "1"),
        *(("learned", "16", seed) for seed in "123"),
        *(("sinusoidal", heads, seed) for heads in ("4", "16") for seed in "123"),
    ]
    by_name = {row["job"]: row for row in table}
    good = by_name["sinusoidal-16-2"]
    result = json.loads((compared / "sinusoidal-16-2" / "result.json").read_text())
    assert float(good["train/loss"]) == result["metrics"]["train/loss"]
    assert good["parameters/total"] == "8833"
    assert good["overrides"] == "pos=sinusoidal model.n_heads=16 seed=2"
    # It learns at step 236 and validates every 20.
    assert good["steps_to_99/exact_match"] == "240"
    assert [by_name[name]["status"] for name in ("learned-16-3", "learned-4-1", "")] == [
        "diverged",
        "broken",
        "invalid",
    ]
    assert by_name["learned-16-3"]["val/loss"] == ""
    assert "loss nan </script>" in by_name["learned-16-3"]["error"]


def test_the_same_jobs_make_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    one, two = small_sweep(tmp_path / "one"), tmp_path / "two"
    for seed in (4, 5):
        write_job(two / f"job{seed}", seed=seed, pos="sinusoidal", model__n_heads=16)
    write_comparison([one, two], tmp_path / "out1")
    write_comparison([one, two], tmp_path / "out2")
    write_comparison([two, *reversed([path for path in one.iterdir() if path.is_dir()]), one], tmp_path / "out3")
    assert set(written(tmp_path / "out1")) == FILES
    assert written(tmp_path / "out1") == written(tmp_path / "out2") == written(tmp_path / "out3")
    assert {row["sweep"] for row in rows(tmp_path / "out1")} == {"one", "two"}


def test_of_an_equal_sweep_only_the_last_column_differs(compared: Path, tmp_path: Path) -> None:
    again = small_sweep(tmp_path / "sweep", wall_seconds=9.0)
    write_comparison([again], again)
    columns = list(rows(again)[0])
    for one, two in zip(rows(compared), rows(again), strict=True):
        assert {name for name in columns if one[name] != two[name]} <= {"wall_seconds"}
    assert columns[-1] == "wall_seconds"


def test_the_text_says_it_first_then_shows_settings_and_reasons(compared: Path) -> None:
    text = (compared / "comparison.md").read_text()
    assert text.splitlines()[0] == "# Comparison of 13 jobs"
    first = text.splitlines()[2]
    assert first.startswith("- **sinusoidal reaches 99 % exact match in ")
    assert text.index("Holm") < text.index("## By setting") < text.index("## Not completed")
    # 0.001, 0.002 and 0.003: their geometric mean, and its interval by t with two degrees of freedom.
    assert "| sinusoidal | 4 | 3 | 100.0 % | 100.0 % | 0.00182 [4.6e-4, 0.0072] |" in text
    assert "| learned | 16 | 2 |" in text
    assert "1 diverged |" in text
    assert (
        "| learned-16-3 | diverged | DivergedError: loss nan \\</script>\\<b>at\\</b> step 40 \\| lower the rate |"
        in text
    )
    assert "| pos=learned model.n_heads=5 seed=1 | invalid | 32 has no 5 equal heads |" in text


class Page(HTMLParser):
    """The parts of a page that the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = str(dict(attrs).get("id")) if tag == "script" else tag

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside not in ("style", "None"):
            self.text.append(data)

    def attributes(self, *names: str) -> list[str]:
        return [str(value) for _, attributes in self.tags for name, value in attributes.items() if name in names]


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
    assert [each.text for each in comparison.statements] == ["No job completed, so there is nothing to compare"]
    assert "RuntimeError: no" in (tmp_path / "comparison.html").read_text()
    assert [row["status"] for row in rows(tmp_path)] == ["failed", "failed"]


def test_only_refused_combinations(tmp_path: Path) -> None:
    (tmp_path / "invalid.json").write_text(json.dumps([{"overrides": ["model.n_heads=5"], "reason": "no"}]))
    assert write_comparison([tmp_path], tmp_path).counts == {"invalid": 1}


def test_a_single_run(tmp_path: Path) -> None:
    run = write_job(tmp_path / "run")
    comparison = write_comparison([run], run)
    assert comparison.axes == []
    assert "n = 1 has no interval" in (run / "comparison.md").read_text()
    assert "only one seed" in (run / "comparison.md").read_text()
    # Written into the run's own folder, it does not become a part of the run.
    assert len(write_comparison([run], run).jobs) == 1


def test_mixed_versions_and_repeated_jobs_are_said(tmp_path: Path) -> None:
    write_job(tmp_path / "a" / "job")
    other = write_job(tmp_path / "b" / "job")
    result = json.loads((other / "result.json").read_text())
    result["versions"]["torch"] = "2.9.0"
    (other / "result.json").write_text(json.dumps(result))
    write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "different versions: torch 2.13.0, 2.9.0" in text
    assert "1 of the completed jobs have exactly the settings of another one" in text


def test_a_status_of_a_later_version_is_shown_as_it_is(tmp_path: Path) -> None:
    write_job(tmp_path / "job", status="pruned", error="behind the others")
    assert write_comparison([tmp_path], tmp_path).counts == {"pruned": 1}
    assert "1 pruned" in (tmp_path / "comparison.html").read_text()


def test_an_old_comparison_stays_whole_when_a_new_one_fails(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(compared)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_comparison([compared], compared)
    assert written(compared) == before


def test_the_command_line(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(compared), "--output", str(tmp_path / "out")])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "13 jobs: 1 broken, 10 completed, 1 diverged, 1 invalid"
    assert said[1].startswith("- sinusoidal reaches 99 % exact match in ")
    assert said[-1] == f"see it: {tmp_path / 'out' / 'comparison.html'}"
    assert set(written(tmp_path / "out")) == FILES
    main([str(compared)])
    assert capsys.readouterr().out.endswith(f"see it: {compared / 'comparison.html'}\n")


def test_errors_on_the_command_line_are_one_line(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ([tmp_path / "missing"], "is not a folder"),
        ([tmp_path / "empty"], "no runs in"),
        ([compared, "--output", tmp_path / "file"], "cannot write to"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        message = str(stopped.value.code)
        assert message.startswith("error: ")
        assert words in message
        assert "\n" not in message
    with pytest.raises(ComparisonError):
        write_comparison([tmp_path / "empty"], tmp_path)


JOBS, SECONDS, MEBIBYTES = 500, 20, 1024
MEASURE = """
import resource, sys, time
from poslab.comparison.__main__ import main
started = time.perf_counter()
main([sys.argv[1]])
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print([name for name in ("torch", "lightning", "matplotlib.pyplot") if name in sys.modules])
"""


@pytest.mark.process
def test_five_hundred_jobs_in_time_and_memory_without_torch(tmp_path: Path) -> None:
    at = 0
    for pos in ("a", "b", "c", "d", "e"):
        for heads in (1, 2, 4, 8, 16):
            for seed in range(20):
                write_job(
                    tmp_path / f"job{at}", pos=pos, model__n_heads=heads, seed=seed, steps_to_99=200 + at % 37,
                    every=20, last=780, pictures=40_000,
                )  # fmt: skip
                at += 1
    assert at == JOBS
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    *_, measured, imported = done.stdout.splitlines()
    seconds, peak = map(float, measured.split())
    assert imported == "[]"
    assert len(rows(tmp_path)) == JOBS
    assert seconds < SECONDS
    assert peak < MEBIBYTES
    assert (tmp_path / "comparison.html").stat().st_size < 8_000_000


def test_a_mean_share_is_inside_its_own_interval() -> None:
    # Rounded down, the mean of these would be 99.9 % and both ends 100.0.
    assert share_interval(mean_interval([0.99967, 0.99966, 0.99968])) == "99.97 % [99.96, 99.97]"
    assert share_interval(mean_interval([1.0, 0.998, 1.0])) == "99.9 % [99.6, 100.0]"
    assert share_interval(mean_interval([0.5, 0.5])) == "50.0 %"
    draw = np.random.default_rng(0)
    for _ in range(500):
        shares = 1 - draw.random(3) * 10.0 ** -draw.integers(0, 6)
        mean, low, high = (float(part) for part in re.findall(r"[\d.]+", share_interval(mean_interval(list(shares)))))
        assert low <= mean <= high


def test_numbers_are_never_rounded_to_more_than_they_are() -> None:
    shares = (0.0, 1e-9, 0.0004, 0.29, 0.9996, 0.9999999, 1.0)
    assert [percent(share) for share in shares] == [
        "0.0 %", "0.0000 %", "0.04 %", "29.0 %", "99.96 %", "99.9999 %", "100.0 %",
    ]  # fmt: skip
    assert [factor(value) for value in (1.04, 1.94, 12.4, 2634.0)] == ["1.04x", "1.9x", "12x", "2,600x"]
    assert [number(value) for value in (0.0, 0.00131, 0.000131, 3.14159, 8833.0)] == [
        "0", "0.00131", "1.3e-4", "3.14", "8,833",
    ]  # fmt: skip
    assert [p_value(p) for p in (0.0001, 0.012, 1.0)] == ["p < 0.001", "p = 0.012", "p = 1"]
