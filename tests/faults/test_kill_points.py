"""Killed anywhere and continued, a run leaves what an undisturbed one does, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ROOT, RUN, STOPPED_BY_KILL, Server, differences, environment, status

# FAULTS_SEED repeats the points of another day; make faults chooses one and says which.
SEED = os.environ.get("FAULTS_SEED", "0")
N_POINTS = 50
# By what the run is doing, so that the short phases are hit as often as the long ones.
PHASES = {
    "start-up": ("claim before", "claim after", "start before", "start after", "result before", "result after"),
    "step": ("step before", "step after", "loss before", "loss after"),
    "validation": ("validation before", "validation after", "report before", "report after"),
    "checkpoint": ("checkpoint before", "checkpoint after", "write before", "write after", "serialise after"),
    "figure": ("fork before", "fork after", "collect before", "collect after", "picture before", "picture after"),
    "TensorBoard": ("event before", "event after", "flush before", "flush after"),
    "table": ("table before", "table after"),
    "shutdown": ("session before", "session after", "close before", "close after", "report_end before"),
    "file": ("file",),
}
LENGTHS = {"any": (1, 3_000), "checkpoint": (3_000, 39_000), "events": (39_000, 330_000)}


def random_fault(index: int, counts: dict[str, int]) -> tuple[str, dict[str, dict[str, Any]]]:
    """One of the points where a run can be killed, by its number and the seed alone: what it is, and as a fault."""
    rng = random.Random(f"{SEED}-{index}")
    kinds = [*PHASES, "write", "time", "drawing child"]
    kind = kinds[index % len(kinds)]
    background = {"draw_in_background": {"whether": kind != "write" and rng.random() < 0.7}}
    if kind == "write":
        return kind, background | {"kill_in_write": {"n_bytes": rng.randint(*LENGTHS[rng.choice([*LENGTHS])])}}
    whole = rng.random() < 0.5
    if kind == "time":
        return kind, background | {"kill_after": {"seconds": round(rng.uniform(0, 3), 3), "whole": whole}}
    if kind == "drawing child":
        # It takes the run with it, as the end of the machine would.
        point = {"point": "figure before", "number": rng.randint(1, 3), "whole": True, "child": True}
        return kind, {"draw_in_background": {"whether": True}, "kill_at": point}
    point = rng.choice([one for one in PHASES[kind] if one in counts])
    return kind, background | {"kill_at": {"point": point, "number": rng.randint(1, counts[point]), "whole": whole}}


def killed_and_continued(
    server: Server, folder: Path, undisturbed: Path, *faults: dict[str, dict[str, Any]], must_die: bool = True
) -> None:
    """The same command again and again, with one fault after another and then with none."""
    command = (*RUN, "resume=auto", "hydra.run.dir=run")
    for fault in faults:
        ended = server.start(folder, *command, faults=fault)
        if must_die:
            assert ended.code in (STOPPED_BY_KILL, -signal.SIGXFSZ), f"{fault}: {ended}"
    background = {"draw_in_background": faults[0]["draw_in_background"]}
    ended = server.start(folder, *command, faults=background)
    assert ended.code == 0, f"seed {SEED}, {faults}: {ended.err}"
    found = differences(folder / "run", undisturbed)
    assert not found, f"seed {SEED}, {json.dumps(faults)}: {found}"


IN_PLACE = {"draw_in_background": {"whether": False}}
BESIDE = {"draw_in_background": {"whether": True}}


@pytest.mark.parametrize(
    "faults",
    [
        # In an epoch, with the pictures of the epoch before on their way and numbers that are beyond the checkpoint.
        [{**BESIDE, "kill_at": {"point": "step after", "number": 6, "whole": True}}],
        # Twice: where the end of an epoch has been saved as the best and not yet as the last, then at the very end.
        pytest.param(
            [
                {**IN_PLACE, "kill_at": {"point": "write after", "number": 2}},
                {**IN_PLACE, "kill_at": {"point": "session after", "number": 1}},
            ],
            marks=pytest.mark.faults,
        ),
        # The same save, the final one: nothing is left to train that would bring the last one up to date.
        pytest.param([{**BESIDE, "kill_at": {"point": "write after", "number": 4}}], marks=pytest.mark.faults),
        # Within the write of the first file that has so many bytes: the configuration.
        pytest.param([{**IN_PLACE, "kill_in_write": {"n_bytes": 1000}}], marks=pytest.mark.faults),
    ],
    ids=["step", "checkpoint and shutdown", "final checkpoint", "first file"],
)
def test_chosen_points(
    faults: list[dict[str, dict[str, Any]]], server: Server, undisturbed: Path, tmp_path: Path
) -> None:
    killed_and_continued(server, tmp_path, undisturbed, *faults)


def test_a_checkpoint_that_is_being_written_does_not_cost_the_one_before(server: Server, tmp_path: Path) -> None:
    quiet = (*RUN, "diagnostics=none", "logger=none", "hydra.run.dir=run")
    # It has 38 thousand bytes.
    fault = {"kill_in_write": {"n_bytes": 20_000, "point": "serialise after", "number": 2}}
    assert server.start(tmp_path, *quiet, faults=fault).code == -signal.SIGXFSZ
    (cut,) = (tmp_path / "run/checkpoints").glob(".*.part")
    assert cut.stat().st_size == 20_000
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 4
    ended = server.start(tmp_path, *quiet, "resume=auto")
    assert "resume from last.ckpt, step 4" in ended.out
    assert not list((tmp_path / "run").rglob("*.part"))


@pytest.mark.faults
@pytest.mark.parametrize("index", range(N_POINTS))
def test_random_points(index: int, server: Server, undisturbed: Path, counts: dict[str, int], tmp_path: Path) -> None:
    kind, fault = random_fault(index, counts)
    print(f"seed {SEED}, point {index}, {kind}: {json.dumps(fault)}")  # noqa: T201
    faults = [fault]
    if index % 5 == 4:
        # A second time, while it goes on from there.
        faults.append(random_fault(index + N_POINTS, counts)[1])
    killed_and_continued(server, tmp_path, undisturbed, *faults, must_die=False)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("moment", ["imports", "config.yaml", "checkpoints/last.ckpt", "figures"])
def test_real_processes(moment: str, undisturbed: Path, tmp_path: Path) -> None:
    """Without the server, its hooks and its imports: the way a person starts it, killed from outside."""
    run = tmp_path / "run"
    command = [sys.executable, str(ROOT / "train.py"), *RUN, "resume=auto", "hydra.run.dir=run"]
    everywhere = {"cwd": tmp_path, "env": {**os.environ, **environment()}, "stdout": subprocess.DEVNULL}
    child = subprocess.Popen(command, start_new_session=True, **everywhere)
    deadline = time.monotonic() + 120
    if moment == "imports":
        time.sleep(random.Random(SEED).uniform(0.1, 3))
    while moment != "imports" and not (run / moment).exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(random.Random(f"{SEED}{moment}").uniform(0, 0.2))
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait(30) == STOPPED_BY_KILL
    assert status(run) in (None, "interrupted")
    subprocess.run(command, check=True, timeout=240, **everywhere)
    assert differences(run, undisturbed) == []


@pytest.mark.faults
def test_a_killed_drawing_child_costs_its_pictures_and_nothing_else(
    server: Server, undisturbed: Path, tmp_path: Path
) -> None:
    fault = {**BESIDE, "kill_at": {"point": "figure before", "number": 1, "child": True}}
    ended = server.start(tmp_path, *RUN, "hydra.run.dir=run", faults=fault)
    assert ended.code == 0
    assert "the picture heads/layer_0 failed at step 0, training goes on: its process ended early" in ended.out
    found = differences(tmp_path / "run", undisturbed)
    assert found
    assert all("figures" in one or "images" in one or "config" in one for one in found), found
