"""What launchers refuse before the first job starts, and the threads of a worker's job."""

from pathlib import Path

import pytest

from poslab import launchers
from poslab.errors import ConfigError
from poslab.system.threads import choose_threads
from support.launching import needs


def test_a_worker_s_job_has_one_thread_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    # The widest product is large enough for every core. Joblib's and submitit's workers are told 1, Ray's their share.
    monkeypatch.setattr("poslab.system.threads.available_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    size = {"batch_size": 256, "seq_len": 20, "d_model": 512}
    assert choose_threads("auto", **size) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_threads("auto", **size) == 1
    assert choose_threads("4", **size) == 4


@needs("joblib")
@pytest.mark.parametrize("n_jobs", [0, -2])
def test_a_number_of_workers_that_makes_no_sense(n_jobs: int):
    with pytest.raises(ConfigError, match=rf"hydra.launcher.n_jobs={n_jobs} must be at least 1, or -1"):
        launchers.JoblibPool(n_jobs)


@needs("submitit_slurm")
def test_slurm_without_slurm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no sbatch on this machine"):
        launchers.SubmititPool("slurm")


@needs("joblib")
def test_a_gpu_that_is_not_there_makes_a_job_invalid(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"trainer.accelerator=gpu, but torch sees no GPU"):
        launchers.JoblibPool(1).check_devices("gpu", 1)


@needs("ray")
def test_a_gpu_that_ray_is_not_asked_for_makes_a_job_invalid():
    with pytest.raises(ConfigError, match=r"hydra.launcher.ray.remote.num_gpus=0 gives the job none"):
        launchers.RayPool({}, {"num_cpus": 1, "num_gpus": 0}).check_devices("gpu", 1)
    launchers.RayPool({}, {"num_gpus": 0.5}).check_devices("gpu", 1)


@needs("ray")
def test_jobs_that_fit_on_no_node_are_refused(monkeypatch: pytest.MonkeyPatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}}]
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 8.0}}])
    assert launchers.RayPool({}, {"num_cpus": 2, "num_gpus": 0}).workers == "3 on 2 nodes"
    assert launchers.RayPool({}, {"num_cpus": 1, "num_gpus": 0.5}).workers == "2 on 2 nodes"
    with pytest.raises(ConfigError, match=r"has what a job asks for: hydra.launcher.ray.remote.num_cpus=1, num_gpus=2"):
        launchers.RayPool({}, {"num_cpus": 1, "num_gpus": 2}).prepare(1, Path())
