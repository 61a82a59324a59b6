"""TensorBoard itself lists the numbers, pictures and sessions of runs."""

import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poslab.runs.tensorboard import RunTensorBoard
from poslab.system.shell import tensorboard_command
from support.event_files import EPOCHS, IMAGES, PARTS
from support.job_folders import png
from support.runs import TIED


class Server:
    """``tensorboard --logdir ...`` on this machine only."""

    def __init__(self, logdir: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (logdir.parent / "server.log").open("w+")
        # The command that a run prints.
        command = [*shlex.split(tensorboard_command(logdir))[1:], "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *command], stdout=self.log, stderr=self.log
        )

    def fetch(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/data/plugin/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.fetch(path, body))

    def wait_for(self, path: str, ready: Callable[[Any], bool]) -> Any:
        """Ask until the answer is there; the server reads its files in the background."""
        deadline = time.monotonic() + 60
        answer = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {self.log.name}"
            try:
                answer = self.ask(path)
            except OSError:
                answer = None
            if answer is not None and ready(answer):
                return answer
            time.sleep(0.1)
        raise AssertionError(f"{path} never got ready: {answer}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture
def server(finished_runs: Callable[..., Path], tmp_path: Path) -> Iterator[Server]:
    for name, overrides in (("one", ()), ("two", TIED)):
        shutil.copytree(finished_runs(*overrides), tmp_path / "outputs" / "runs" / name)
    board = RunTensorBoard(tmp_path / "outputs" / "pictures")
    for step in range(31):
        board.log_png("heads/layer_0", png(), step)
    board.close()
    server = Server(tmp_path / "outputs")
    yield server
    server.close()
    assert server.process.returncode is not None


@pytest.mark.process
def test_tensorboard_itself_lists_numbers_pictures_and_sessions(
    server: Server, finished_runs: Callable[..., Path]
) -> None:
    runs = ["runs/one", "runs/two"]
    scalars = server.wait_for("scalars/tags", lambda tags: all("train/loss" in tags.get(run, {}) for run in runs))
    assert sorted(scalars) == runs, "a run that is none"
    wanted = {"train/loss", "val/loss", "val/accuracy", "val/exact_match", "learning_rate"}
    wanted |= {f"parameters/{part}" for part in PARTS} | {f"neighbour_similarity/offset_{k}" for k in range(1, 9)}
    assert wanted <= scalars["runs/one"].keys()
    points = server.ask("scalars/scalars?run=runs/one&tag=val/loss")
    assert [point[1] for point in points] == EPOCHS

    images = server.wait_for("images/tags", lambda tags: tags.get("runs/one", {}).keys() >= IMAGES)
    assert set(images["runs/one"]) == IMAGES
    listed = server.ask(f"images/images?run=runs/one&tag={urllib.parse.quote('heads/layer_0')}&sample=0")
    assert [image["step"] for image in listed] == EPOCHS
    picture = server.fetch(f"images/individualImage?{listed[-1]['query']}")
    assert picture == (finished_runs() / "figures" / "heads_layer_0.png").read_bytes()

    server.wait_for("images/tags", lambda tags: "pictures" in tags)
    query = f"images/images?run=pictures&tag={urllib.parse.quote('heads/layer_0')}&sample=0"
    listed = server.wait_for(query, lambda images: len(images) == 31)
    assert [image["step"] for image in listed] == [*range(31)], "TensorBoard keeps ten by default, without step 0"

    texts = server.ask("text/tags")
    assert {"config/text_summary", "parameters/text_summary"} <= set(texts["runs/one"])

    described = server.ask("hparams/experiment", {"experimentName": ""})
    types = {info["name"]: info["type"] for info in described["hparamInfos"]}
    assert types["model.d_model"] == "DATA_TYPE_FLOAT64"
    assert types["pos"] == "DATA_TYPE_STRING"
    assert types["model.tie_embeddings"] == "DATA_TYPE_BOOL"
    assert {"val/loss", "val/accuracy", "val/exact_match"} <= {info["name"]["tag"] for info in described["metricInfos"]}
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    question = {"experimentName": "", "allowedStatuses": statuses, "colParams": [], "startIndex": 0, "sliceSize": 10}
    groups = server.ask("hparams/session_groups", question)["sessionGroups"]
    sessions = {group["sessions"][0]["name"]: group for group in groups}
    assert sorted(sessions) == runs
    for name, tied in (("runs/one", False), ("runs/two", True)):
        group = sessions[name]
        assert group["sessions"][0]["status"] == "STATUS_SUCCESS"
        assert group["hparams"]["model.d_model"] == 32
        assert group["hparams"]["model.tie_embeddings"] is tied
        shown = {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
        last = server.ask(f"scalars/scalars?run={name}&tag=val/loss")[-1][2]
        assert shown["val/loss"] == pytest.approx(last)
