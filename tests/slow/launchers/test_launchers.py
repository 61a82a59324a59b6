"""Every launcher leaves the same; a job that dies, a Ctrl-C and a missing package end as they should."""

import csv
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.utils import JobReturn, JobStatus

from poslab import launchers
from poslab.errors import ConfigError, LostJobError
from poslab.system.threads import available_cores, choose_threads
from support.commands import only_sweep, start
from support.launching import EXTRAS, HOOK, MODULES, PARALLEL, QUICK, Swept, needs, results
from support.paths import CONF, ROOT
from support.processes import processes_of, wait_for
from support.runs import train


@pytest.fixture
def hook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a sweep whose jobs do as `HOOK` says."""
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(folder)}


def by_seed(cwd: Path) -> dict[int, dict[str, Any]]:
    return {result["seed"]: result for result in results(cwd).values()}


@pytest.mark.process
@pytest.mark.parametrize("launcher", ["basic", *PARALLEL])
def test_a_job_that_fails_or_diverges_does_so_alone(launcher: str, swept: Callable[[str], Swept]):
    cwd, ended = swept(launcher)
    assert ended.returncode == 1
    jobs = by_seed(cwd)
    assert {seed: result["status"] for seed, result in jobs.items()} == {
        1: "completed",
        2: "completed",
        3: "failed",
        4: "diverged",
    }
    assert jobs[3]["error"] == "Awkward: the disk and the network"
    assert "sweep done: 2 completed, 1 failed, 1 diverged" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    logs = {path.parent.name: path.read_text() for path in only_sweep(cwd).glob("*/train.log")}
    assert len(logs) == 4, "each job says in its own file what it did"
    (with_traceback,) = [name for name, log in logs.items() if "in hooked" in log and "Awkward: the disk" in log]
    assert results(cwd)[with_traceback]["seed"] == 3
    with open(only_sweep(cwd) / "comparison.csv", newline="") as file:
        assert {row["job"] for row in csv.DictReader(file)} == set(logs)


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_pictures_are_drawn_under_every_launcher(launcher: str, swept: Callable[[str], Swept]):
    cwd, _ = swept(launcher)
    for name, result in results(cwd).items():
        if result["status"] == "completed":
            assert (only_sweep(cwd) / name / "figures" / "positions_table.png").stat().st_size > 0


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_the_console_says_who_works_and_how_each_job_ended(launcher: str, swept: Callable[[str], Swept]):
    cwd, ended = swept(launcher)
    cores = available_cores()
    workers = {"ray": f"{cores} on 1 node"}.get(launcher, str(cores))
    lines = ended.stdout.splitlines()
    assert lines[0].endswith(f": 4 jobs, launcher {launcher}, workers {workers}")
    assert sorted(re.findall(r"\((\d) of 4\)", ended.stdout)) == ["1", "2", "3", "4"]
    for name, result in results(cwd).items():
        (line,) = [line for line in lines if name in line and " of 4)" in line]
        assert line.startswith(result["status"])
    assert not any(line.startswith(("run ", "epoch")) for line in lines), "the lines of several jobs are no use mixed"


def test_a_worker_s_job_has_one_thread_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    # The widest product is large enough for every core. Joblib's and submitit's workers are told 1, Ray's their share.
    monkeypatch.setattr("poslab.system.threads.available_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    size = {"batch_size": 256, "seq_len": 20, "d_model": 512}
    assert choose_threads("auto", **size) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_threads("auto", **size) == 1
    assert choose_threads("4", **size) == 4


@pytest.mark.process
@needs("joblib")
def test_a_job_whose_process_dies_is_tried_once_more_and_takes_no_other_with_it(hook: dict[str, str], tmp_path: Path):
    """Seed 5 kills its process whenever it runs, as one that needs too much memory does."""
    ended = start("-m", "seed=1,5,2", *QUICK, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", cwd=tmp_path, **hook)
    assert ended.returncode == 1
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {
        1: "completed",
        2: "completed",
        5: "interrupted",
    }
    assert "each is tried once more, alone" in ended.stdout
    assert "sweep done: 2 completed, 1 interrupted" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    for seed in (1, 2):
        alone = train(tmp_path / f"alone{seed}", f"seed={seed}", *QUICK)
        (found,) = only_sweep(tmp_path).glob(f"seed{seed}-*/metrics.csv")
        assert found.read_bytes() == (alone / "metrics.csv").read_bytes()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``begin(*overrides, under_way=n)``: a sweep in a session of its own, when n of its jobs have a checkpoint."""
    started: list[subprocess.Popen[str]] = []

    def begin(*overrides: str, under_way: int) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), "-m", *overrides, "diagnostics=none", "logger=none"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Under a test runner in the background the signal is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(child)
        checkpoints = "outputs/sweeps/*/*/checkpoints/last.ckpt"
        wait_for(lambda: child.poll() is not None or len(list(tmp_path.glob(checkpoints))) >= under_way, 120)
        assert child.poll() is None, child.communicate()
        return child

    yield begin
    for child in started:
        if processes_of(child.pid):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


LONG = ("seed=1,2,3", "trainer.max_epochs=2000")


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_ctrl_c_stops_the_sweep_and_leaves_nobody_behind(
    launcher: str, begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    child = begin(*LONG, f"hydra/launcher={launcher}", under_way=2)
    # As a terminal does it: to all of them.
    os.killpg(child.pid, signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {
        1: "interrupted",
        2: "interrupted",
    }
    assert all(result["metrics"] for result in results(tmp_path).values()), "they had the time to say what they knew"
    assert "sweep done: 2 interrupted, 1 not started" in said
    assert wait_for(lambda: not processes_of(child.pid), 10), processes_of(child.pid)


@pytest.mark.process
@needs("joblib")
def test_the_jobs_of_a_sweep_that_was_killed_end_by_themselves(begin: Callable[..., subprocess.Popen[str]]):
    child = begin(*LONG, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", under_way=1)
    child.kill()
    assert wait_for(lambda: not processes_of(child.pid), 20), processes_of(child.pid)


def test_a_process_that_has_ended_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert launchers.local.is_alive(child.pid)
    child.kill()
    # Nobody has asked how it ended: its number is still taken.
    assert wait_for(lambda: not launchers.local.is_alive(child.pid), 10)
    child.communicate()
    assert not launchers.local.is_alive(child.pid)


# What is refused.

NOT_INSTALLED = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name=name)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.process
@pytest.mark.parametrize("launcher", MODULES)
def test_a_launcher_that_is_not_installed_says_what_to_install(launcher: str, tmp_path: Path):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(NOT_INSTALLED.format(MODULES[launcher]))
    ended = start("-m", "seed=1,2", f"hydra/launcher={launcher}", cwd=tmp_path, PYTHONPATH=str(tmp_path / "hook"))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: hydra/launcher={launcher} needs {MODULES[launcher]}: pip install 'poslab[{EXTRAS[launcher]}]'\n"
    )
    assert ended.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["hook"]


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


@needs("submitit_slurm")
def test_a_gpu_that_slurm_is_not_asked_for_makes_a_job_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"SLURM is asked for none; set hydra.launcher.gpus_per_node=1"):
        launchers.SubmititPool("slurm", cpus_per_task=1).check_devices("gpu", 1)
    for asked in ({"gpus_per_node": 1}, {"gres": "gpu:1"}, {"additional_parameters": {"gpus-per-task": 1}}):
        launchers.SubmititPool("slurm", **asked).check_devices("gpu", 1)


@needs("ray")
def test_jobs_that_fit_on_no_node_are_refused(monkeypatch: pytest.MonkeyPatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}}]
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 8.0}}])
    assert launchers.RayPool({}, {"num_cpus": 2, "num_gpus": 0}).workers == "3 on 2 nodes"
    assert launchers.RayPool({}, {"num_cpus": 1, "num_gpus": 0.5}).workers == "2 on 2 nodes"
    with pytest.raises(ConfigError, match=r"has what a job asks for: hydra.launcher.ray.remote.num_cpus=1, num_gpus=2"):
        launchers.RayPool({}, {"num_cpus": 1, "num_gpus": 2}).prepare(1, Path())


# GPUs of this machine.


@needs("joblib")
def test_gpus_are_shared_out_among_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Look(launchers.Call):  # made here so that it travels by value
        def __init__(self) -> None:
            pass

        def __call__(self) -> JobReturn:
            import os
            import signal

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


# The part that all pools share.


class FakePool(launchers.Pool[int]):
    """Jobs that end in the order they were started, or as they are told."""

    capacity = 2
    tries_again = True

    def __init__(self, dies: Sequence[tuple[str, int]] = (), at_end: Callable[[], None] = lambda: None) -> None:
        self.dies = dict(dies)
        self.at_end = at_end
        self.running: list[launchers.Call] = []
        self.most = 0
        self.alone: list[str] = []
        self.stopped: list[str] | None = None

    def start(self, calls: Sequence[launchers.Call]) -> list[int]:
        self.running += calls
        self.most = max(self.most, len(self.running))
        return [id(call) for call in calls]

    def ended(self, handles: Sequence[int]) -> list[int]:
        return [id(self.running[0])]

    def result(self, handle: int) -> JobReturn:
        call = self.running.pop(0)
        self.at_end()
        name = call.overrides[0]
        if self.dies.get(name, 0):
            self.dies[name] -= 1
            raise LostJobError(f"{name} is gone\nwith details")
        return JobReturn(overrides=call.overrides, status=JobStatus.COMPLETED, _return_value=name)

    def stop(self, handles: Sequence[int]) -> None:
        self.stopped = [call.overrides[0] for call in self.running]


def launch(pool: launchers.Pool[Any], n_jobs: int, folder: Path) -> list[JobReturn]:
    from hydra.types import HydraContext
    from omegaconf import OmegaConf

    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}, "hydra_logging": None, "verbose": False}})
    context = HydraContext(config_loader=None, callbacks=None)  # type: ignore[arg-type]
    return launchers.launch(pool, context, print, config, [[f"job{number}"] for number in range(n_jobs)], 0)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers.pool, "configure_log", lambda *args: None)


def test_returns_come_in_the_order_of_the_jobs_and_never_more_run_than_may(tmp_path: Path):
    pool = FakePool()
    assert [ended.return_value for ended in launch(pool, 5, tmp_path)] == [f"job{number}" for number in range(5)]
    assert pool.most == 2
    assert pool.stopped is None


def test_a_lost_job_is_tried_again_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    returned = launch(FakePool([("job1", 1), ("job2", 2)]), 4, tmp_path)
    assert [ended.status for ended in returned] == [
        JobStatus.COMPLETED,
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.COMPLETED,
    ]
    with pytest.raises(LostJobError, match="job2 is gone"):
        returned[2].return_value  # noqa: B018


def test_a_pool_that_has_tried_itself_is_not_asked_again(tmp_path: Path):
    pool = FakePool([("job1", 1)])
    pool.tries_again = False
    assert [ended.status for ended in launch(pool, 2, tmp_path)] == [JobStatus.COMPLETED, JobStatus.FAILED]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_pool_and_decides_the_exit_code(number: int, code: int, tmp_path: Path):
    pool = FakePool(at_end=lambda: os.kill(os.getpid(), number))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            launch(pool, 4, tmp_path)
    finally:
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])
    assert end.value.code == code
    assert pool.stopped == ["job1"], "the one that was running; nothing further was started"
    assert signal.getsignal(signal.SIGTERM) == handlers[signal.SIGTERM]


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_any_error_survives_the_way_back():
    plain, awkward = (
        vars(launchers.pool.failed([], error))["_return_value"] for error in (KeyError("a"), Unpicklable("a", "b"))
    )
    assert isinstance(plain, KeyError)
    assert (type(awkward), str(awkward)) == (RuntimeError, "Unpicklable: ab")


# The settings.


@pytest.mark.parametrize("launcher", MODULES)
def test_a_launcher_composes_from_its_own_file_alone(launcher: str):
    """Also where the public plugin of the same name is installed, whose settings Hydra would merge."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("joblib", {"_target_": "a.b", "backend": "loky"}, group="hydra/launcher", provider="x")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    import poslab.config  # noqa: F401  (registers the schema)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra_compose("train", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    written = yaml.safe_load((CONF / "hydra" / "launcher" / f"{launcher}.yaml").read_text())
    assert dict(config.hydra.launcher) == written


def test_the_program_starts_quickly_with_every_launcher_installed(tmp_path: Path):
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance(); import hydra_plugins.poslab_launchers;"
        "print([name for name in ('joblib', 'ray', 'submitit', 'torch') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.strip() == "[]", "imported at every start, --help included"


# SLURM: a stand-in that does with a job array what the real one does.

SBATCH = """#!/bin/bash
# Runs every task of the array at once.
cp "$1" "$FAKE_SLURM/submitted.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
for task in $(seq 0 "$last"); do "$FAKE_SLURM/bin/run_task" "$task" > /dev/null 2>&1 & done
echo "Submitted batch job 7"
"""
RUN_TASK = """#!/bin/bash
export SLURM_JOB_ID=$((70 + $1)) SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$1 SLURM_NTASKS=1 SLURM_PROCID=0
export SLURM_LOCALID=0 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_JOB_NODELIST=localhost SLURM_JOB_NAME=poslab
bash "$FAKE_SLURM/submitted.sh" > "$FAKE_SLURM/task$1.log" 2>&1
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] && shift || shift 2; done
echo $$ > "$FAKE_SLURM/pid$SLURM_ARRAY_TASK_ID"
exec "$@"
"""
SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
for task in 0 1; do echo "7_$task|RUNNING|localhost"; done
"""
SCONTROL = """#!/bin/bash
# requeue 7_0: when this process has ended, the same again.
echo "$@" >> "$FAKE_SLURM/scontrol.log"
job=$PPID
(while kill -0 "$job" 2> /dev/null; do sleep 0.1; done; exec "$FAKE_SLURM/bin/run_task" "${2#7_}") > /dev/null 2>&1 &
"""
SCANCEL = """#!/bin/bash
echo "$@" >> "$FAKE_SLURM/scancel.log"
kill -TERM $(cat "$FAKE_SLURM"/pid*)
"""


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}
    bin_folder = folder / "slurm" / "bin"
    bin_folder.mkdir(parents=True)
    for name, text in {**programs, "run_task": RUN_TASK}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("FAKE_SLURM", str(folder / "slurm"))
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "slurm"


@pytest.mark.process
@needs("submitit_slurm")
def test_a_job_that_slurm_preempts_goes_on_in_the_same_folder(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slurm = fake_slurm(tmp_path, monkeypatch)
    job = (
        "data.steps_per_epoch=40",
        "trainer.max_epochs=25",
        "data.val_examples=16",
        "diagnostics=none",
        "logger=none",
    )
    options = ("hydra.launcher.partition=small", "hydra.launcher.gpus_per_node=1")
    more = "+hydra.launcher.additional_parameters.mail-type=END"
    child = begin("seed=1,2", *job, "hydra/launcher=submitit_slurm", *options, more, under_way=2)
    os.kill(int((slurm / "pid0").read_text()), signal.SIGUSR2)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0, said
    assert (slurm / "scontrol.log").read_text() == "requeue 7_0\n"
    log = next(only_sweep(tmp_path).glob("seed1-*/train.log")).read_text()
    assert "resume from last.ckpt, step" in log
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {1: "completed", 2: "completed"}
    monkeypatch.undo()  # Lightning looks for SLURM's programs
    alone = train(tmp_path / "alone", "seed=1", *job)
    (preempted,) = only_sweep(tmp_path).glob("seed1-*/metrics.csv")
    assert preempted.read_bytes() == (alone / "metrics.csv").read_bytes()
    settings = dict(re.findall(r"#SBATCH --([a-z-]+)=(\S+)", (slurm / "submitted.sh").read_text()))
    wanted = {
        "array": "0-1%2",
        "cpus-per-task": "1",
        "gpus-per-node": "1",
        "job-name": "poslab",
        "mail-type": "END",
        "mem": "4GB",
        "partition": "small",
        "signal": "USR2@120",
        "time": "60",
    }
    assert {name: settings.get(name) for name in wanted} == wanted
    assert settings["output"].startswith(str(only_sweep(tmp_path) / ".submitit"))


@pytest.mark.process
@needs("submitit_slurm")
def test_slurm_s_settings_can_be_tried_without_slurm(tmp_path: Path):
    ended = start(
        *("-m", "seed=1,2", *QUICK, "hydra/launcher=submitit_slurm", "hydra.launcher.cluster=debug"), cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert [result["status"] for result in results(tmp_path).values()] == ["completed"] * 2
