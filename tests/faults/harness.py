"""Starts runs in child processes with a fault in them, and says whether two run folders tell the same."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import poslab

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STOPPED_BY_KILL = -9

# Small, and with everything that a real run does: dropout and a schedule to go on with, pictures, a dashboard.
RUN = (
    *("task.n_symbols=10", "task.length=3", "data.steps_per_epoch=6", "trainer.max_epochs=2", "data.val_examples=32"),
    *("trainer.log_every_n_steps=2", "model.dropout=0.1", "optimizer.decay=cosine", "model.d_model=16", "trainer=cpu"),
    *("trainer.threads=1", "trainer.checkpoint_every_n_steps=4"),
)


class Ended(NamedTuple):
    """How a child ended: its exit code, or minus the signal that ended it, and what it said."""

    code: int
    out: str
    err: str


class Server:
    """Forks a child for each run from a process that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment()},
        )
        self.running = 0

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        # It may still be importing, when nothing was asked of it.
        self.process.wait(120)
        self.process.stdout.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer, "the server of the faults has ended"
        return answer

    def start(
        self,
        folder: Path,
        *arguments: str,
        faults: Mapping[str, Mapping[str, Any]] | None = None,
        script: str = "train.py",
        environment: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        timeout: float = 120,
    ) -> Ended:
        """``python train.py`` with these arguments in ``folder``.

        Args:
            folder: where the child stands.
            arguments: as typed.
            faults: functions of `injections` by name, with their arguments.
            script: which program.
            environment, without: what is changed in the environment, and what is missing there.
            timeout: seconds after which the child is ended.
        """
        if self.running == 0:
            assert self._answer() == "ready"
        self.running += 1
        out, err = (self.folder / f"{self.running}.{name}" for name in ("out", "err"))
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "faults": faults or {},
            "script": script,
            "environment": dict(environment or {}),
            "without": list(without),
            "timeout": timeout,
            "out": str(out),
            "err": str(err),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = int(self._answer())
        return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def environment() -> dict[str, str]:
    """For a child to find the package that is tested, and to keep to one thread."""
    source = str(Path(poslab.__file__).parents[1])
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def status(run: Path) -> str | None:
    """What ``result.json`` says; None where there is none."""
    file = run / "result.json"
    return json.loads(file.read_text(encoding="utf-8"))["status"] if file.exists() else None


def same(left: Any, right: Any) -> bool:
    """Whether two nested values are the same, bit for bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def differences(run: Path, reference: Path) -> list[str]:
    """What a run leaves behind otherwise than the undisturbed one; empty when nothing."""
    found = []
    if status(run) != "completed":
        found.append(f"status {status(run)}")
    if (run / "metrics.csv").read_bytes() != (reference / "metrics.csv").read_bytes():
        found.append("metrics.csv")
    for name in ("last", "best"):
        ours, theirs = (
            torch.load(one / f"checkpoints/{name}.ckpt", weights_only=True, map_location="cpu")
            for one in (run, reference)
        )
        parts = ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch", "poslab")
        found += [f"{name}.ckpt: {part}" for part in parts if not same(ours[part], theirs[part])]
    ours, theirs = (json.loads((one / "result.json").read_text(encoding="utf-8")) for one in (run, reference))
    found += [
        f"result.json: {key}" for key in theirs if key not in ("wall_seconds", "overrides") and ours[key] != theirs[key]
    ]
    found += [
        f"figures/{path.name}"
        for path in sorted((reference / "figures").glob("*"))
        if not (run / "figures" / path.name).exists() or (run / "figures" / path.name).read_bytes() != path.read_bytes()
    ]
    found += shown_differences(run, reference)
    here, there = (
        {str(path.relative_to(one)) for path in one.rglob("*") if "tfevents" not in path.name}
        for one in (run, reference)
    )
    found += [f"left behind: {name}" for name in sorted(here - there)] + [
        f"missing: {name}" for name in sorted(there - here)
    ]
    return found


def shown_differences(run: Path, reference: Path) -> list[str]:
    """The same for what TensorBoard shows: each scalar's steps and values, each picture's steps and bytes."""
    found = []
    ours, theirs = shown(run), shown(reference)
    for kind in theirs:
        for tag in sorted(ours[kind].keys() | theirs[kind].keys()):
            mine, other = ours[kind].get(tag, []), theirs[kind].get(tag, [])
            steps = [step for step, _ in mine]
            if steps != sorted(set(steps)):
                found.append(f"TensorBoard {kind} {tag}: steps {steps}")
            elif mine != other:
                found.append(f"TensorBoard {kind} {tag}: {steps} instead of {[step for step, _ in other]}")
    return found


def shown(run: Path) -> dict[str, dict[str, list[tuple[int, Any]]]]:
    """What TensorBoard shows of a run: kind to tag to (step, content)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    return {
        "scalars": {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags["scalars"]},
        "images": {tag: [(one.step, one.encoded_image_string) for one in events.Images(tag)] for tag in tags["images"]},
        "texts": {
            tag: [(one.step, one.tensor_proto.string_val[:]) for one in events.Tensors(tag)]
            for tag in tags["tensors"]
            if "hparams" not in tag
        },
    }
