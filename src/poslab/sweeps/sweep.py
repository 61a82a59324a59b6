"""Runs a set of jobs: checks them before the first one starts, gives each a folder, and skips those that have finished.

Hydra's launcher runs the jobs. The sweep reads only their folders, so it works alike with every launcher.
"""

import logging
import pickle
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict

from poslab.cli.explain import one_line
from poslab.config.composing import Composer
from poslab.config.identity import job_key
from poslab.config.overrides import override
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError, described
from poslab.launchers.pool import time_left
from poslab.preflight.ranks import check_alone
from poslab.preflight.words import check_chosen
from poslab.runs.names import CLAIMS_FILE, INVALID_FILE, SWEEP_FILE
from poslab.runs.result import stored_result
from poslab.sweeps.checking import (
    checked_job,
    composed_job,
    ready_to_run,
    refuse_settings_of_the_sweep,
    settings_of_the_sweep,
)
from poslab.sweeps.grid import job_label, varying_keys
from poslab.sweeps.plan import (
    EarlierJobs,
    Job,
    as_json,
    only,
    refuse_other_settings,
    settings_in,
    settings_of,
    short_hash,
    supersede,
    sweep_folder,
)
from poslab.system.devices import check_device
from poslab.system.files import write_atomically
from poslab.system.lock import FolderLock
from poslab.system.shell import shell_quoted, tensorboard_command

log = logging.getLogger(__name__)
# Sentences of the comparison on the console; the rest is in its files.
MOST_STATEMENTS = 5
# A diverged job would diverge again.
FINISHED = ("completed", "diverged")


class Progress:
    """Says which job of a grid starts, and how long the remaining ones take if they are like those before.

    Args:
        total: number of jobs.
        done: number of those that had finished before this start.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.begun = 0
        self.since = time.monotonic()

    def begin(self) -> str:
        """The line before a job, ``job    3 of 15, about 2 min left``."""
        due = self.total - self.done
        seconds = (time.monotonic() - self.since) / max(1, self.begun) * (due - self.begun)
        left = f", {time_left(seconds)}" if self.begun else ""
        self.begun += 1
        return f"job    {self.done + self.begun} of {self.total}{left}"


class Sweep:
    """One sweep, from its first jobs to the comparison.

    A grid adds all its jobs at once; a search adds a batch, reads the results and adds the next.

    Args:
        config: of the multirun, with Hydra's own part.
        launcher: runs the jobs.
        composer: composes a job's configuration, and gives it to the launcher.
    """

    def __init__(self, config: DictConfig, launcher: Launcher, composer: Composer) -> None:
        check_alone()
        self.config = config
        self.launcher = launcher
        self.composer = composer
        self.folder = sweep_folder(config)
        self.earlier = EarlierJobs(self.folder)
        self._own_settings = settings_of_the_sweep(config)
        self.lock = FolderLock(self.folder)
        self.jobs: dict[str, Job] = {}
        self.invalid: list[Job] = []
        self.repeated: list[Job] = []
        self.progress: Progress | None = None
        self.errors: dict[str, str] = {}
        """Of jobs that left none in their folder, by name."""
        self._notes: set[str] = set()
        with open_dict(config):
            config.hydra.sweep.dir = str(self.folder)

    def run_grid(self, grid: Sequence[Sequence[str]]) -> list[Any]:
        """Run the unfinished jobs of a whole grid and write the comparison, also after an error.

        Raises:
            ConfigError: no combination can be run, or one cannot and ``sweep.on_invalid=fail``.
            SystemExit: a job failed, diverged or was interrupted.
        """
        with closing(self.lock):
            if self.config.sweep.resume is not None:
                self.lock.acquire()
            return self._run_grid(grid)

    def _run_grid(self, grid: Sequence[Sequence[str]]) -> list[Any]:
        self.add(grid)
        self.refuse_invalid()
        self.announce()
        try:
            launch = self.launch if self.config.sweep.on_failure == "continue" else self.launch_until_failure
            returned = launch([*self.jobs.values()])
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
            varying: the keys that name a job's folder; None: those that differ in this grid.

        Returns:
            a job for each combination, with a reason where it cannot be run.
        """
        varying = varying_keys(grid) if varying is None else varying
        added = []
        for overrides in grid:
            job = self._job(list(overrides), varying)
            added.append(job)
            if job.reason:
                self.invalid.append(job)
            elif job.name in self.jobs:
                self.repeated.append(job)
            else:
                self.jobs[job.name] = job
        return added

    def _job(self, overrides: list[str], varying: set[str]) -> Job:
        job = Job(overrides)
        try:
            composed, checked, note = self.composed(overrides, varying)
        except ConfigError as error:
            # An impossible combination; an unknown name or a wrong type is a mistake and ends the sweep here.
            job.reason = one_line(str(error))
            return job
        refuse_settings_of_the_sweep(self._own_settings, self.config, composed, job, varying)
        job.key = job_key(checked)
        job.settings = settings_of(asdict(checked))
        self.earlier.refuse_changes(job)
        if note and note not in self._notes:
            self._notes.add(note)
            log.info("note   %s", note)
        job.name = self._folder_name(job, varying)
        # A folder without a readable status was claimed and not finished.
        known = (self.folder / job.name).exists()
        job.state = self.result(job).get("status") or ("interrupted" if known else "new")
        if job.state != "failed":
            refuse_other_settings(self.folder / job.name, job)
        ready = ready_to_run(composed, checked, job.name, str(self.folder.absolute()))
        self.composer.jobs[job.name] = pickle.dumps(ready)
        return job

    def _folder_name(self, job: Job, varying: set[str]) -> str:
        """The folder that holds this job already, or the name of a new one.

        Jobs with one key have the same numbers, but may differ in settings such as ``data.num_workers``.
        """
        for other in self.jobs.values():
            if other.key == job.key and other.settings in ({}, job.settings):
                return other.name
        folders = sorted(folder.name for folder in self.folder.glob(f"*-{job.key}") if folder.name not in self.jobs)
        stored = {name: settings_in(self.folder / name) for name in folders}
        known = [name for name in folders if stored[name] in ({}, job.settings)]
        # A resume may set data.num_workers to another value, unless it sweeps over it.
        known += [name for name in folders if only(varying, stored[name]) == only(varying, job.settings)]
        new = f"{job_label(job.overrides, varying)}-{job.key}"
        if not known and (new in folders or new in self.jobs):
            new = f"{job_label(job.overrides, varying)}-{short_hash(job.settings)}-{job.key}"
        return known[0] if known else new

    def composed(self, overrides: Sequence[str], varying: set[str]) -> tuple[DictConfig, TrainConfig, str]:
        """Compose one job and check it, also on the devices of the launcher's workers.

        Args:
            overrides: of the job.
            varying: the keys that differ between jobs.

        Returns:
            the job as composed and as checked, and what a person should know about its positions; empty for most.

        Raises:
            ConfigError, omegaconf.errors.OmegaConfBaseException: it cannot be run.
        """
        composed = composed_job(self.composer, self.config, overrides, varying)
        job, note = checked_job(composed)
        check_chosen(composed)
        # Hydra's own launcher runs the job in this process.
        check = self.launcher.pool.check_devices if hasattr(self.launcher, "pool") else check_device
        check(job.trainer.accelerator, job.trainer.devices)
        return composed, job, note

    def result(self, job: Job) -> dict[str, Any]:
        """What a job stored in ``result.json``; empty if it stored nothing or cannot be run."""
        return {} if job.reason else stored_result(self.folder / job.name)

    def write_plan(self) -> None:
        """Store the list of jobs; this makes the sweep's folder."""
        self.lock.acquire()
        invalid = [{"overrides": job.overrides, "reason": job.reason} for job in self.invalid]
        write_atomically(self.folder / INVALID_FILE, as_json(invalid))
        claims = OmegaConf.to_container(self.config.sweep.claims)
        if claims:
            write_atomically(self.folder / CLAIMS_FILE, as_json(claims))
        write_atomically(self.folder / SWEEP_FILE, as_json([vars(job) for job in self.jobs.values()]))

    def launch(self, jobs: Sequence[Job]) -> list[Any]:
        """Run the unfinished ones of these jobs.

        An interrupted job resumes from its last checkpoint; a failed one starts again.
        """
        self.write_plan()
        due = [job for job in jobs if not job.reason and job.state not in FINISHED]
        for job in due:
            if job.state == "failed":
                supersede(self.folder, job.name)
        if not due:
            return []
        # Absolute, because a cluster's worker may have another working directory.
        own = [override("hydra.sweep.dir", str(self.folder.absolute())), "resume=auto"]
        launched = [[*job.overrides, f"hydra.sweep.subdir={job.name}", *own] for job in due]
        if not self.one_after_another:
            return self._watched(due, self.launcher.launch(launched, initial_job_idx=0))
        # Hydra's own launcher prints nothing between its jobs, so it gets one at a time.
        returned: list[Any] = []
        for number, (job, words) in enumerate(zip(due, launched, strict=True)):
            if self.progress is not None:
                log.info("%s", self.progress.begin())
            returned += self._watched([job], self.launcher.launch([words], initial_job_idx=number))
        return returned

    def _watched(self, jobs: Sequence[Job], returned: Sequence[Any]) -> list[Any]:
        """Note the errors of jobs that failed before they had their folder; returns what the launcher returned."""
        for job, ended in zip(jobs, returned, strict=False):
            error = vars(ended).get("_return_value")
            if isinstance(error, BaseException) and self.result(job).get("status") not in ("failed", "diverged"):
                self.errors[job.name] = described(error)
        return list(returned)

    def launch_until_failure(self, jobs: Sequence[Job]) -> list[Any]:
        """Run as many jobs at a time as there are workers, until one fails or diverges.

        A cluster with a queue of its own gets all jobs at once.
        """
        due = [job for job in jobs if job.state not in FINISHED]
        size = self.workers if isinstance(self.workers, int) else max(1, len(due))
        returned = []
        for first in range(0, len(due), size):
            batch = due[first : first + size]
            returned += self.launch(batch)
            results = {job.name: self.result(job) for job in batch}
            stopping = ("failed", "diverged")
            failed = [name for name, one in results.items() if one.get("status") in stopping or diverged_replicas(one)]
            if failed:
                log.info("sweep.on_failure=stop: no further jobs after %s", ", ".join(failed))
                break
        return returned

    @property
    def one_after_another(self) -> bool:
        """Whether Hydra's own launcher runs the jobs in this process."""
        # By name, because Hydra may import the class twice.
        return type(self.launcher).__name__ == "BasicLauncher"

    @property
    def workers(self) -> int | str:
        """How many jobs run at once, or where they wait; Hydra's own launcher runs one."""
        return self.launcher.pool.workers if hasattr(self.launcher, "pool") else 1

    @property
    def place(self) -> str:
        """The launcher and its workers, for the console."""
        return f"launcher {self.config.hydra.runtime.choices['hydra/launcher']}, workers {self.workers}"

    def refuse_invalid(self) -> None:
        """Stop before the first job if no combination can be run, or if one cannot and ``sweep.on_invalid=fail``.

        Raises:
            ConfigError: names the first of them and why.
        """
        if self.invalid and (not self.jobs or self.config.sweep.on_invalid == "fail"):
            listed = "; ".join(f"{job.typed}: {job.reason}" for job in self.invalid[:3])
            more = f" (and {len(self.invalid) - 3} more)" if len(self.invalid) > 3 else ""
            total = len(self.jobs) + len(self.invalid)
            raise ConfigError(f"{len(self.invalid)} of {total} combinations cannot be run: {listed}{more}")

    def announce(self) -> None:
        """Print how many jobs run, where, and which combinations are skipped."""
        done = sum(job.state in FINISHED for job in self.jobs.values())
        self.progress = Progress(len(self.jobs), done)
        before = f", {done} done before" if done else ""
        total = f"{len(self.jobs)} {'job' if len(self.jobs) == 1 else 'jobs'}"
        log.info("sweep  %s: %s%s, %s", self.folder, total, before, self.place)
        by_reason: dict[str, list[Job]] = {}
        for job in self.invalid:
            by_reason.setdefault(job.reason, []).append(job)
        for reason, jobs in by_reason.items():
            what = jobs[0].typed if len(jobs) == 1 else f"{len(jobs)} jobs"
            log.info("invalid and skipped: %s: %s", what, reason)
        if self.repeated:
            more = f" (and {len(self.repeated) - 1} more)" if len(self.repeated) > 1 else ""
            log.info("the same as another job and not run twice: %s%s", self.repeated[0].typed, more)

    def conclude(self) -> bool:
        """Write the comparison and print how the jobs ended; True if every job is complete."""
        results = {job.name: self.result(job) for job in self.jobs.values()}
        statuses = {name: result.get("status") or "not started" for name, result in results.items()}
        diverged = {name: reason for name, result in results.items() if (reason := diverged_replicas(result))}
        failed = {
            name: str(result.get("error")) for name, result in results.items() if result.get("status") == "failed"
        }
        reasons = failed | self.errors | diverged
        for name, status in statuses.items():
            if status != "completed" or name in diverged:
                log.info("%-12s %s%s", status, name, f" ({one_line(reasons[name])})" if name in reasons else "")
        self._compare()
        counts = Counter(statuses.values())
        counts["invalid"] = len(self.invalid)
        log.info("sweep done: %s", ", ".join(f"{count} {status}" for status, count in counts.items() if count))
        log.info("see it: %s", tensorboard_command(self.folder))
        if any(status in ("interrupted", "not started") for status in statuses.values()):
            log.info("go on:  the same command with %s", shell_quoted(override("sweep.resume", str(self.folder))))
        return not diverged and all(status == "completed" for status in statuses.values())

    def _compare(self) -> None:
        try:
            from poslab.comparison import write_comparison

            comparison = write_comparison([self.folder], self.folder)
            for statement in comparison.statements[:MOST_STATEMENTS]:
                log.info("found  %s", statement.text)
            log.info("compare: %s", self.folder / "comparison.html")
        except Exception as error:
            # The runs are complete without it, and it can be made again.
            log.warning("no comparison was written (%r); try: python -m poslab.comparison %s", error, self.folder)
            log.debug("comparison failed", exc_info=True)


def diverged_replicas(result: Mapping[str, Any]) -> str:
    """Which replicas of a completed job diverged, as its error says; empty if none did."""
    return str(result.get("error") or "") if result.get("status") == "completed" else ""
