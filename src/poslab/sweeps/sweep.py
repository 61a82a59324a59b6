"""A grid of jobs: checked before the first one starts, each in a folder of its own, resumed by what a job is.

The jobs themselves are run by whichever launcher Hydra was told to use; everything here reads and writes the sweep's
folder only, so all launchers leave the same.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict

from poslab.build import build_task
from poslab.cli.explain import explain, main_config_dir
from poslab.config.identity import job_key
from poslab.config.overrides import job_overrides, override
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.preflight.checks import check_buildable
from poslab.preflight.ranks import check_alone
from poslab.runs.names import CLAIMS_FILE, INVALID_FILE
from poslab.runs.result import stored_status
from poslab.sweeps.grid import job_label, varying_keys
from poslab.sweeps.plan import PLAN_FILE, Job, as_json, check_place, invalid_entry, lost_copies, supersede, sweep_folder
from poslab.system.files import write_atomically
from poslab.system.shell import shell_quoted, tensorboard_command

log = logging.getLogger(__name__)
# Sentences of the comparison on the console; the rest is in its files.
MOST_SAID = 5
# A diverged job would diverge again: the same numbers, the same end.
FINISHED = ("completed", "diverged")


class Sweep:
    """One sweep, from its first jobs to the comparison.

    A grid adds all its jobs at once; a search adds a batch, looks at the results and adds the next.

    Args:
        config: of the multirun, with Hydra's own part.
        launcher: runs the jobs.
        loader: composes a job's configuration.
    """

    def __init__(self, config: DictConfig, launcher: Launcher, loader: ConfigLoader) -> None:
        check_alone()
        self.config = config
        self.launcher = launcher
        self.loader = loader
        self.folder = sweep_folder(config)
        self.jobs: dict[str, Job] = {}
        self.invalid: list[Job] = []
        with open_dict(config):
            config.hydra.sweep.dir = str(self.folder)

    def run_grid(self, grid: Sequence[Sequence[str]]) -> list[Any]:
        """Run what is missing of a whole grid; the comparison is written however it ends.

        Raises:
            ConfigError: nothing can be run, or a combination cannot and ``sweep.on_invalid=fail``.
            SystemExit: a job failed, diverged or was interrupted.
        """
        self.add(grid)
        self.refuse_if_asked()
        self.announce()
        try:
            jobs = list(self.jobs.values())
            returned = (
                self.launch(jobs) if self.config.sweep.on_failure == "continue" else self.launch_until_failure(jobs)
            )
        except BaseException:
            # A Ctrl-C keeps its own exit code.
            self.conclude()
            raise
        if not self.conclude():
            raise SystemExit(1)
        return returned

    def add(self, grid: Sequence[Sequence[str]], varying: set[str] | None = None) -> list[Job]:
        """Compose and check combinations; the same job given twice is one job.

        Args:
            grid: overrides of each job.
            varying: the keys that name a job's folder, where these jobs alone do not tell them.

        Returns:
            a job for each combination, those that cannot be run with their reason.
        """
        varying = varying_keys(grid) if varying is None else varying
        added = [self._job(list(overrides), varying) for overrides in grid]
        for job in added:
            if job.reason:
                self.invalid.append(job)
            else:
                self.jobs.setdefault(job.key, job)
        return added

    def write_plan(self) -> None:
        """Record what this sweep is; from here on its folder is there."""
        write_atomically(self.folder / INVALID_FILE, as_json([invalid_entry(job) for job in self.invalid]))
        claims = OmegaConf.to_container(self.config.sweep.claims)
        if claims:
            write_atomically(self.folder / CLAIMS_FILE, as_json(claims))
        write_atomically(self.folder / PLAN_FILE, as_json([vars(job) for job in self.jobs.values()]))

    def launch(self, jobs: Sequence[Job]) -> list[Any]:
        """Run those of the jobs that have not finished; what each left is in its folder.

        A job whose folder holds a part of it goes on from its last checkpoint; a failed one begins again.
        """
        self.write_plan()
        due = [job for job in jobs if not job.reason and job.state not in FINISHED]
        for job in due:
            if job.state == "failed":
                supersede(self.folder, job.name)
        if not due:
            return []
        # Absolute: a worker of a cluster may stand elsewhere.
        own = [override("hydra.sweep.dir", str(self.folder.absolute())), "resume=auto"]
        launched = [[*job.overrides, f"hydra.sweep.subdir={job.name}", *own] for job in due]
        return list(self.launcher.launch(launched, initial_job_idx=0))

    def launch_until_failure(self, jobs: Sequence[Job]) -> list[Any]:
        """As many at a time as there are workers, and no more once one has failed or diverged.

        A cluster that queues jobs itself has been given them all.
        """
        due = [job for job in jobs if job.state not in FINISHED]
        workers = getattr(self.launcher, "workers", 1)
        size = workers if isinstance(workers, int) else max(1, len(due))
        returned = []
        for first in range(0, len(due), size):
            batch = due[first : first + size]
            returned += self.launch(batch)
            failed = [
                job.name
                for job in batch
                if stored_status(self.folder / job.name) in ("failed", "diverged")
                or lost_copies(self.folder / job.name)
            ]
            if failed:
                log.info("sweep.on_failure=stop: no further jobs after %s", ", ".join(failed))
                break
        return returned

    def _job(self, overrides: list[str], varying: set[str]) -> Job:
        job = Job(overrides)
        try:
            config = checked_job(self.loader.load_sweep_config(self.config, overrides))
            check_place(self.launcher, config)
        except ConfigError as error:
            # A combination that cannot exist; an unknown name or a wrong type is a mistake, and ends the sweep here.
            job.reason = explain(error, main_config_dir(self.config))
            return job
        job.key = job_key(config)
        job.name = self._folder_name(job, varying)
        status = stored_status(self.folder / job.name)
        # A folder without a readable status was claimed and not finished.
        job.state = status or ("interrupted" if (self.folder / job.name).exists() else "new")
        return job

    def _folder_name(self, job: Job, varying: set[str]) -> str:
        """The folder that holds this job already, whatever it is called, or a new name for one."""
        for known in sorted(self.folder.glob(f"*-{job.key}")):
            return known.name
        return f"{job_label(job.overrides, varying)}-{job.key}"

    def refuse_if_asked(self) -> None:
        """Stop before the first job if there is none, or if a combination cannot be run and that was not to be.

        Raises:
            ConfigError: names the first of them and why.
        """
        if self.invalid and (not self.jobs or self.config.sweep.on_invalid == "fail"):
            listed = "; ".join(f"{' '.join(job_overrides(job.overrides))}: {job.reason}" for job in self.invalid[:3])
            more = f" (and {len(self.invalid) - 3} more)" if len(self.invalid) > 3 else ""
            total = len(self.jobs) + len(self.invalid)
            raise ConfigError(f"{len(self.invalid)} of {total} combinations cannot be run: {listed}{more}")

    def announce(self) -> None:
        """The first lines of a sweep: what will run, where, by how many workers, and what will not."""
        launcher = self.config.hydra.runtime.choices["hydra/launcher"]
        workers = getattr(self.launcher, "workers", 1)
        done = sum(job.state in FINISHED for job in self.jobs.values())
        before = f", {done} done before" if done else ""
        total = f"{len(self.jobs)} {'job' if len(self.jobs) == 1 else 'jobs'}"
        log.info("sweep  %s: %s%s, launcher %s, workers %s", self.folder, total, before, launcher, workers)
        by_reason: dict[str, list[Job]] = {}
        for job in self.invalid:
            by_reason.setdefault(job.reason, []).append(job)
        for reason, jobs in by_reason.items():
            what = " ".join(job_overrides(jobs[0].overrides)) if len(jobs) == 1 else f"{len(jobs)} jobs"
            log.info("invalid and skipped: %s: %s", what, reason)

    def conclude(self) -> bool:
        """The end table and the comparison; whether every job is complete."""
        statuses = {job.name: stored_status(self.folder / job.name) or "not started" for job in self.jobs.values()}
        for name, status in statuses.items():
            lost = lost_copies(self.folder / name)
            if status != "completed" or lost:
                log.info("%-12s %s%s", status, name, f" ({lost})" if lost else "")
        try:
            from poslab.comparison import write_comparison

            comparison = write_comparison([self.folder], self.folder)
            for said in comparison.statements[:MOST_SAID]:
                log.info("found  %s", said.text)
            log.info("compare: %s", self.folder / "comparison.html")
        except Exception as error:
            # The runs are there; a comparison can be made again.
            log.warning("no comparison was written (%r); try: python -m poslab.comparison %s", error, self.folder)
            log.debug("comparison failed", exc_info=True)
        counts = Counter(statuses.values())
        counts["invalid"] = len(self.invalid)
        log.info("sweep done: %s", ", ".join(f"{count} {status}" for status, count in counts.items() if count))
        log.info("see it: %s", tensorboard_command(self.folder))
        if any(status in ("interrupted", "not started") for status in statuses.values()):
            log.info("go on:  the same command with %s", shell_quoted(override("sweep.resume", str(self.folder))))
        return all(status == "completed" and not lost_copies(self.folder / name) for name, status in statuses.items())


def checked_job(composed: DictConfig) -> TrainConfig:
    """One job's configuration, checked as far as it can be without training.

    Raises:
        ConfigError, omegaconf.errors.OmegaConfBaseException: it cannot be run.
    """
    job = checked(composed)
    check_buildable(job, build_task(job))
    if job.trainer.strategy != "auto":
        raise ConfigError(
            f"trainer={job.trainer.strategy} starts its processes by typing the command again, the whole sweep; run it "
            "alone"
        )
    if job.ckpt_path is not None:
        raise ConfigError("ckpt_path goes on with one run, and a sweep has many; sweep.resume goes on with all of them")
    return job
