"""GPUs of this machine are shared out among workers."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn

from poslab import launchers
from support.commands import start
from support.launching import QUICK, needs, results


@needs("joblib")
def test_gpus_are_shared_out_among_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Look(launchers.Call):  # made here so that it travels by value
        def __init__(self) -> None:
            pass

        def __call__(self) -> JobReturn:
            import os

            time.sleep(0.5)
            said = os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]
            return JobReturn(_return_value=(*said, signal.getsignal(signal.SIGINT) == signal.SIG_IGN))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    pool = launchers.JoblibPool(2)
    pool.prepare(4, tmp_path)
    try:
        seen = [vars(pool.result(handle))["_return_value"] for handle in pool.start([Look(), Look(), Look(), Look()])]
    finally:
        pool.stop([])
    workers = {process: device for process, device, _, _ in seen}
    assert sorted(workers.values()) == ["5", "7"]
    assert {(threads, ignored) for _, _, threads, ignored in seen} == {("1", True)}


@needs("submitit_local")
def test_a_job_gets_the_gpu_that_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Handed out in turn, the third job would join the first, which is still going, and the second's GPU stay idle."""

    class Handle:
        over = False

        def done(self) -> bool:
            return self.over

    class Executor:
        def submit(self, call: Any) -> Handle:
            given.append(call.device)
            return Handle()

    given: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    pool = launchers.SubmititPool("local", n_jobs=2)
    pool.prepare(4, tmp_path)
    pool.executor = Executor()
    call, *others = (object.__new__(launchers.submitit.SubmititCall) for _ in range(4))
    first, second = pool.start([call, others[0]])
    second.over = True
    assert pool.ended([first, second]) == [second]
    (third,) = pool.start([others[1]])
    third.over = True
    assert pool.ended([first, third]) == [third]
    pool.start([others[2]])
    assert given == ["5", "7", "7", "7"]


# The sweep's own process sees a GPU, the processes of its jobs do not.
HIDDEN = """
import sys
if any(one.endswith("train.py") for one in sys.orig_argv):
    import importlib.util

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "torch.accelerator":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), setattr(module, "is_available", lambda: True))
            return spec

    sys.meta_path.insert(0, Finder())
"""


@pytest.mark.process
@needs("joblib")
def test_a_gpu_that_only_the_sweep_sees_is_one_line_in_each_job_s_folder(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    hidden = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    ended = start("-m", "seed=1,2", *QUICK, "trainer=gpu", "hydra/launcher=joblib", cwd=tmp_path, **hidden)
    assert ended.returncode == 1
    jobs = results(tmp_path).values()
    assert [job["status"] for job in jobs] == ["failed"] * 2, ended.stdout + ended.stderr
    assert all("trainer.accelerator=gpu, but torch sees no GPU on this machine" in job["error"] for job in jobs)
    assert "sweep done: 2 failed" in ended.stdout
