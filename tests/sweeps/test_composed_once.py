"""A sweep runs what it has checked, and notices at a resume that the configuration files have changed."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from poslab.runs.names import SWEEP_FILE
from support.paths import CONF
from support.played_sweeps import Sweeps

OWN = ("--config-dir", "own", "-m")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The file of ``optimizer=mine``, which sets the learning rate."""
    path = tmp_path / "own" / "optimizer" / "mine.yaml"
    path.parent.mkdir(parents=True)
    shutil.copy(CONF / "optimizer" / "adam.yaml", path)
    return path


def edit(path: Path, **values: object) -> None:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


def test_a_file_that_is_edited_while_a_sweep_runs_changes_no_job(sweeps: Sweeps, mine: Path) -> None:
    typed = ("seed=1,2,3", "optimizer=mine", "data.val_batch_size=${data.batch_size}")
    assert sweeps(*typed, flags=OWN, before_each=lambda: edit(mine, lr=0.5)) is None
    assert [(job.seed, job.optimizer.lr) for job in sweeps.ran.values()] == [(1, 0.005), (2, 0.005), (3, 0.005)]
    assert all(job.resume == "auto" for job in sweeps.ran.values())
    stored = [job["settings"] for job in sweeps.plan()]
    assert [(one["seed"], one["optimizer.lr"]) for one in stored] == [(1, 0.005), (2, 0.005), (3, 0.005)]
    assert stored[0]["data.val_batch_size"] == 16, "resolved, although it was typed as a reference"


def test_a_resume_after_the_files_have_changed_names_the_setting(sweeps: Sweeps, mine: Path) -> None:
    assert sweeps("seed=1", "optimizer=mine", flags=OWN) is None
    edit(mine, lr=0.25)
    again = ("data.num_workers=1", "optimizer=mine", "seed=1,2", "sweep.resume=latest")
    said = sweeps(*again, flags=OWN)
    assert " was started with other settings for trainer=cpu trainer.max_steps=2" in said
    assert said.endswith(
        "optimizer=mine seed=1: optimizer.lr was 0.005 and is 0.25; change the configuration files back, or start a "
        "new sweep"
    )
    assert "\n" not in said
    assert sweeps.ran == {}
    # An older version stored no settings with its list; those of the folders are compared.
    plan = [{key: value for key, value in job.items() if key != "settings"} for job in sweeps.plan()]
    (sweeps.sweep / SWEEP_FILE).write_text(json.dumps(plan))
    assert sweeps(*again, flags=OWN) == said


def test_a_folder_whose_run_has_other_settings_than_its_name_is_not_done(sweeps: Sweeps) -> None:
    """As versions left it that read an edited file for the later jobs."""
    assert sweeps("seed=1,2") is None
    (folder,) = sweeps.sweep.glob("seed2-*")
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    edit(folder / "config.yaml", optimizer=stored["optimizer"] | {"lr": 1.0})
    said = sweeps("seed=1,2", "sweep.resume=latest")
    assert f"{folder.name} was trained with other settings than its name says: optimizer.lr was 1.0 and is 0.0" in said
    assert sweeps.ran == {}
    folder.rename(sweeps.folder / "aside")
    # The list is damaged, and the resume adds a value and a setting that decides nothing.
    (sweeps.sweep / SWEEP_FILE).write_bytes((sweeps.sweep / SWEEP_FILE).read_bytes()[:300])
    assert sweeps("seed=1,2,3", "data.num_workers=2", "sweep.resume=latest") is None
    assert f"{SWEEP_FILE} cannot be read (JSONDecodeError); it is written again" in sweeps.said
    assert [job.seed for job in sweeps.ran.values()] == [2, 3]
    assert [job["settings"]["seed"] for job in sweeps.plan()] == [1, 2, 3]
