"""A run that goes on to a later end: it is the longer run, but for the validation at its old end."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from poslab.errors import ConfigError
from poslab.runs.folder import RunFolder
from poslab.runs.names import SWEEP_FILE
from poslab.runs.result import stored_result, stored_status
from support.runs import train
from support.stopping import TINY, Wholes, content, same, stopped_at, told_to_stop

RESUMED = "resume=auto"
DIAGNOSTIC = ("diagnostics=[neighbour_similarity]", "diagnostics.neighbour_similarity.every=2")


def table(folder: Path) -> dict[int, dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    return {int(row.pop("step")): row for row in rows}


def assert_longer_run(folder: Path, longer: Path, *old_ends: int, within_epoch: bool) -> None:
    assert stored_status(folder) == stored_status(longer) == "completed"
    parts = [path.parent.relative_to(longer) for path in longer.rglob("metrics.csv")]
    for part in parts:
        rows, wanted = table(folder / part), table(longer / part)
        around = {step for end in old_ends for step in (end - 1, end)}
        assert rows.keys() - wanted.keys() <= around
        for step, row in wanted.items():
            found = rows[step]
            if step in around:
                found = {name: value for name, value in found.items() if name in row}
            if step == max(wanted) and within_epoch:
                # The best of all validations may be that at the old end.
                found, row = ({name: one[name] for name in one if not name.startswith("test/")} for one in (found, row))
            assert found == row, (part, step)
        configs = [yaml.safe_load((root / part / "config.yaml").read_text()) for root in (folder, longer)]
        assert [{**config, "resume": None, "ckpt_path": None} for config in configs] == [configs[1]] * 2
        assert stored_result(folder / part)["validation"] == stored_result(longer / part)["validation"]
        for name in ("last",) if within_epoch else ("last", "best"):
            ours, theirs = (content(root / part, name) for root in (folder, longer))
            for key in ("state_dict", "global_step", "optimizer_states", "poslab"):
                assert same(ours.get(key), theirs.get(key)), (part, name, key)


@pytest.mark.parametrize(
    ("settings", "first", "then"),
    [
        (("model.dropout=0.1",), "trainer.max_epochs=1", "trainer.max_epochs=3"),
        (("seeds=2", "task.min_length=2"), "trainer.max_epochs=2", "trainer.max_epochs=3"),
        (("optimizer.warmup_steps=20", *DIAGNOSTIC), "trainer.max_steps=7", "trainer.max_steps=40"),
        (("seeds=2", "task.min_length=2"), "trainer.max_steps=19", "trainer.max_steps=30"),
        (("trainer.accumulate_batches=2", "model.dropout=0.1"), "trainer.max_steps=11", "trainer.max_steps=-1"),
        ((), "trainer.max_steps=12", "trainer.max_steps=13"),
    ],
)
def test_it_is_the_longer_run(settings: tuple[str, ...], first: str, then: str, whole: Wholes, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole(*settings, first), tmp_path / "run"))
    old_end = content(folder)["global_step"]
    train(folder, *TINY, *settings, then, RESUMED)
    assert_longer_run(folder, whole(*settings, then), old_end, within_epoch=old_end % 12 != 0)
    assert stored_result(folder)["wall_seconds"] > stored_result(whole(*settings, first))["wall_seconds"]


def test_twice(whole: Wholes, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole("trainer.max_steps=7"), tmp_path / "run"))
    train(folder, *TINY, "trainer.max_steps=12", RESUMED)
    train(folder, *TINY, "trainer.max_steps=20", RESUMED)
    assert_longer_run(folder, whole("trainer.max_steps=20"), 7, 12, within_epoch=True)


def test_a_run_that_a_signal_stopped_may_get_a_later_end(
    whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_to_stop(tmp_path / "run", 7, monkeypatch)
    train(tmp_path / "run", *TINY, "trainer.max_epochs=3", RESUMED)
    longer = whole("trainer.max_epochs=3")
    assert (tmp_path / "run/metrics.csv").read_bytes() == (longer / "metrics.csv").read_bytes()
    assert_longer_run(tmp_path / "run", longer, 7, within_epoch=False)


def test_a_checkpoint_of_the_end_goes_on_in_a_new_folder(whole: Wholes, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in whole().rglob("*") if path.is_file()}
    last = whole() / "checkpoints/last.ckpt"
    train(tmp_path / "run", *TINY, "trainer.max_epochs=3", f"ckpt_path={last}")
    assert_longer_run(tmp_path / "run", whole("trainer.max_epochs=3"), 24, within_epoch=False)
    assert {path: path.read_bytes() for path in whole().rglob("*") if path.is_file()} == before


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("settings", [(), ("seeds=2",)], ids=["one", "seeds"])
def test_killed_while_it_gets_its_later_end(
    settings: tuple[str, ...], whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = "trainer.max_epochs=2", "trainer.max_epochs=3"
    real, stored = RunFolder.store, []

    def kill(self: RunFolder, job: object) -> None:
        stored.append(self.path)
        if len(stored) == 1 + bool(settings):
            raise KeyboardInterrupt
        real(self, job)  # type: ignore[arg-type]

    folder = Path(shutil.copytree(whole(*settings), tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "store", kill)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(folder, *TINY, *settings, new, RESUMED)
    assert stored_status(folder) == "interrupted"
    train(folder, *TINY, *settings, new, RESUMED)
    assert_longer_run(folder, whole(*settings, new), 24, within_epoch=False)
    with pytest.raises(ConfigError, match=r"trainer\.max_epochs was 3 and is 2; give the old ones"):
        train(folder, *TINY, *settings, old, RESUMED)


def test_killed_before_its_first_new_checkpoint(whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(whole("trainer.max_steps=7"), tmp_path / "run"))
    stopped_at(folder, 3, monkeypatch, *TINY, "trainer.max_steps=20", RESUMED)
    train(folder, *TINY, "trainer.max_steps=20", RESUMED)
    assert_longer_run(folder, whole("trainer.max_steps=20"), 7, within_epoch=True)


def test_where_it_was_told_to_stop_it_is_complete_already(finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    stop = "trainer.stop_when='val/loss>0'"
    folder = Path(shutil.copytree(finished_runs(*TINY, stop), tmp_path / "run"))
    rows = table(folder)
    train(folder, *TINY, stop, "trainer.max_epochs=5", RESUMED)
    assert content(folder)["global_step"] == 12
    assert table(folder) == rows


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            ["optimizer.decay=cosine"],
            ["optimizer.decay=cosine", "trainer.max_epochs=3"],
            r"trainer\.max_epochs was 2 and is 3 \(with optimizer\.decay=cosine every rate depends on the last step\)",
        ),
        ([], ["trainer.max_epochs=1"], r"trainer\.max_epochs was 2 and is 1; give the old ones or a new folder"),
        ([], ["trainer.max_steps=24"], r"trainer\.max_steps was -1 and is 24; give the old ones or a new folder"),
        (
            [],
            ["trainer.max_epochs=3", "optimizer.lr=0.1"],
            r"optimizer\.lr was 0\.005 and is 0\.1; trainer\.max_epochs was 2 and is 3; give the old ones",
        ),
    ],
)
def test_what_would_be_another_run_is_refused(
    before: list[str], now: list[str], said: str, whole: Wholes, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole(*before), tmp_path / "run"))
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=said):
        train(folder, *TINY, *now, RESUMED)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_a_sweep_s_job_and_a_run_without_checkpoints_are_refused(whole: Wholes, tmp_path: Path) -> None:
    assert SWEEP_FILE == "sweep.json"
    folder = Path(shutil.copytree(whole(), tmp_path / "sweep/job-0123abcd"))
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint to go on from"):
        train(folder, *TINY, "trainer.max_epochs=3", RESUMED)
    (tmp_path / "sweep/sweep.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"is a job of a sweep.*ckpt_path=.*last\.ckpt"):
        train(folder, *TINY, "trainer.max_epochs=3", RESUMED)
    assert stored_status(folder) == "completed"
