"""The search itself; `Search.run` reads top to bottom."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from poslab.errors import PrunedError
from poslab.runs.names import INVALID_FILE
from poslab.runs.result import stored_result
from poslab.sweeps.plan import PLAN_FILE, Job, as_json
from poslab.sweeps.search.objectives import check_objectives, reached
from poslab.sweeps.search.options import Options, absolute, build_sampler, open_storage, quiet
from poslab.sweeps.search.probes import probes
from poslab.sweeps.search.pruning import PRUNING_FILE
from poslab.sweeps.search.space import Parameter, literal, split_space
from poslab.sweeps.search.study import open_study
from poslab.sweeps.search.summary import COMPLETED, JSON_FILE, Outcome, Summary, shown
from poslab.sweeps.sweep import Sweep
from poslab.system.files import write_atomically

log = logging.getLogger(__name__)

STATES = {
    TrialState.COMPLETE: COMPLETED,
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


def run_search(
    config: DictConfig, launcher: Launcher, loader: ConfigLoader, given: Sequence[Override], options: dict[str, Any]
) -> None:
    """Search from the command line; nothing is left behind by a refusal.

    Args:
        config: of the multirun, with Hydra's own part.
        launcher: runs the jobs.
        loader: composes a job's configuration.
        given: what was typed.
        options: ``hydra.sweeper``.

    Raises:
        ConfigError: it cannot be searched like this.
        SystemExit: stopped (130, 143), or no trial was completed (1).
    """
    checked_options = Options(**options)
    space, fixed = split_space(given)
    if checked_options.sampler == "grid":
        build_sampler(checked_options, space, 0)
    check_objectives(checked_options.goals, probes(config, launcher, loader, space, fixed))
    if (database := absolute(checked_options.storage)) is not None:
        # Whether it can be, before there is a folder.
        open_storage(database, Path()).remove_session()
    Search(config, launcher, loader, checked_options, space, fixed).run()


class Search:
    """A study and the sweep that its trials are jobs of.

    Every trial is kept in the study before its job starts, and told when it has ended. One that was running when the
    search was stopped is still running for the study: the next start runs the rest of it and tells it then.
    """

    def __init__(
        self,
        config: DictConfig,
        launcher: Launcher,
        loader: ConfigLoader,
        options: Options,
        space: Sequence[Parameter],
        fixed: Sequence[str],
    ) -> None:
        self.options = options
        self.space = {parameter.key: parameter for parameter in space}
        self.fixed = list(fixed)
        self.sweep = Sweep(config, launcher, loader)
        self.sweep.folder.mkdir(parents=True, exist_ok=True)
        self.study = open_study(self.sweep, options, space, fixed)
        self.jobs: dict[int, Job] = {}
        self._recall()

    def run(self) -> None:
        """Run what is missing of the trials; what was found is written however it ends.

        Raises:
            ConfigError: a combination cannot be run and ``sweep.on_invalid=fail``.
            SystemExit: stopped (130, 143), or no trial was completed (1).
        """
        self.announce()
        try:
            self.finish(self.left_over())
            while missing := min(self.n_missing(), self.options.n_jobs):
                self.finish([self.ask() for _ in range(missing)])
        except KeyboardInterrupt as stopped:
            raise SystemExit(130) from stopped
        finally:
            self.conclude()
        if not self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            raise SystemExit(1)

    def n_missing(self) -> int:
        """Trials that are still to be asked for."""
        total = self.options.n_trials
        if self.options.sampler == "grid":
            size = 1
            for parameter in self.space.values():
                size *= len(parameter.every_value())
            total = min(total, size)
        asked = sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))
        return max(0, total - asked)

    def ask(self) -> FrozenTrial:
        """The next trial, drawn and kept."""
        number = len(self.study.get_trials(deepcopy=False))
        with quiet():
            self.study.sampler = build_sampler(self.options, list(self.space.values()), number)
            trial = self.study.ask({key: parameter.distribution for key, parameter in self.space.items()})
            # A grid's sampler would stop the study, which only Optuna's own loop can be.
            self.study.sampler = RandomSampler()
        drawn = [parameter.override(trial.params[key]) for key, parameter in self.space.items()]
        trial.set_user_attr("overrides", [*self.fixed, *drawn])
        return self.study.get_trials(deepcopy=False)[trial.number]

    def left_over(self) -> list[FrozenTrial]:
        """Trials that an earlier start did not bring to their end."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            if "overrides" not in trial.user_attrs:
                # Stopped before it was drawn: there is no job to go on with.
                self.study.tell(trial.number, state=TrialState.FAIL)
        return [trial for trial in running if "overrides" in trial.user_attrs]

    def finish(self, trials: Sequence[FrozenTrial]) -> None:
        """Run trials, as many at a time as were asked for, and tell what each reached.

        Raises:
            ConfigError: a combination cannot be run and ``sweep.on_invalid=fail``.
        """
        for start in range(0, len(trials), self.options.n_jobs):
            batch = trials[start : start + self.options.n_jobs]
            jobs = dict(zip((trial.number for trial in batch), self._jobs_of(batch), strict=True))
            self.jobs |= jobs
            if self.sweep.config.sweep.on_invalid == "fail":
                for number in (number for number, job in jobs.items() if job.reason):
                    self.tell(number)
                self.sweep.refuse_if_asked()
            # Two trials may be the same job: it is run once, and both are told.
            due = {job.key: (number, job) for number, job in jobs.items() if self._to_run(job)}
            self._offer_pruning({job.name: number for number, job in due.values()})
            self.sweep.launch([job for _, job in due.values()])
            for number in jobs:
                self.tell(number)
            self.summary().write(self.sweep.folder)

    def tell(self, number: int) -> None:
        """Bring a trial to its end with what its job left."""
        job = self.jobs[number]
        result = {} if job.reason else stored_result(self.sweep.folder / job.name)
        values = reached(result, self.options.goals)
        if result.get("status") == "completed" and len(values) == len(self.options.goals):
            self.study.tell(number, [values[goal.metric] for goal in self.options.goals])
        elif self._pruned(job):
            self.study.tell(number, state=TrialState.PRUNED)
        else:
            self.study.tell(number, state=TrialState.FAIL)
        outcome = self.outcome(self.study.get_trials(deepcopy=False)[number])
        said = ", ".join(f"{name} {value:.4f}" for name, value in outcome.values.items())
        settings = " ".join(f"{key}={shown(value)}" for key, value in outcome.settings.items())
        log.info("trial  %d %s: %s (%s)", number, outcome.state, said or outcome.reason, settings)

    def outcome(self, trial: FrozenTrial) -> Outcome:
        """A trial with what its folder says about it."""
        job = self.jobs.get(trial.number)
        complete = trial.state == TrialState.COMPLETE
        values = dict(zip((goal.metric for goal in self.options.goals), trial.values if complete else (), strict=False))
        return Outcome(
            trial=trial.number,
            state=STATES.get(trial.state, trial.state.name.lower()),
            settings={key: self._used(key, value) for key, value in trial.params.items()},
            values=values,
            folder="" if job is None else job.name,
            reason="" if complete or trial.state == TrialState.RUNNING else self._reason(job),
        )

    def _used(self, key: str, drawn: Any) -> Any:
        parameter = self.space[key]
        return literal(parameter.override(drawn).partition("=")[2])

    def _reason(self, job: Job | None) -> str:
        """Why a trial has no value."""
        if job is None:
            return "the search was stopped before it began"
        if job.reason:
            return job.reason
        result = stored_result(self.sweep.folder / job.name)
        if result.get("status") != "completed":
            return str(result.get("error") or "it left no result")
        values = reached(result, self.options.goals)
        lacking = [goal.metric for goal in self.options.goals if goal.metric not in values]
        return f"its result has no finite {', '.join(lacking)}"

    def summary(self) -> Summary:
        """What was found so far."""
        trials = self.study.get_trials(deepcopy=False)
        complete = any(trial.state == TrialState.COMPLETE for trial in trials)
        if len(self.options.goals) > 1:
            # The same job twice is one compromise; in order of the first objective.
            distinct = {self.jobs[trial.number].name: trial for trial in reversed(self.study.best_trials)}
            best = sorted(distinct.values(), key=lambda trial: trial.values)
        else:
            best = [self.study.best_trial] if complete else []
        return Summary(
            options=self.options,
            study=self.study.study_name,
            trials=[self.outcome(trial) for trial in trials],
            best=[self.outcome(trial) for trial in best],
        )

    def announce(self) -> None:
        """The first line of a search: for what, how, where, and how much of it is done."""
        ended = sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))
        log.info(
            "search %s: %d trials%s, %s, sampler %s, launcher %s, workers %s, %d at a time",
            self.sweep.folder,
            self.options.n_trials,
            f", {ended} done before" if ended else "",
            " and ".join(map(str, self.options.goals)),
            self.options.sampler,
            self.sweep.config.hydra.runtime.choices["hydra/launcher"],
            getattr(self.sweep.launcher, "workers", 1),
            self.options.n_jobs,
        )

    def conclude(self) -> None:
        """The comparison, the files and the table."""
        self.sweep.conclude()
        summary = self.summary()
        summary.write(self.sweep.folder)
        said = ", ".join(f"{count} {state}" for state, count in summary.counts.items())
        log.info("search done: %s of %d trials", said or "none", self.options.n_trials)
        if summary.best:
            log.info("%s", summary.table())
        else:
            log.info("no trial was completed; %s says why", self.sweep.folder / JSON_FILE)

    def _recall(self) -> None:
        """Know the jobs of the trials that have ended, without composing each of them again."""
        sweep = self.sweep
        plan, invalid = (read_jobs(sweep.folder / name) for name in (PLAN_FILE, INVALID_FILE))
        sweep.jobs |= {job.key: job for job in plan}
        sweep.invalid += invalid
        known = {tuple(job.overrides): job for job in (*plan, *invalid)}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished() and "overrides" in trial.user_attrs:
                job = known.get(tuple(trial.user_attrs["overrides"]))
                self.jobs[trial.number] = job or self._jobs_of([trial])[0]

    def _jobs_of(self, trials: Sequence[FrozenTrial]) -> list[Job]:
        return self.sweep.add([trial.user_attrs["overrides"] for trial in trials], set(self.space))

    def _to_run(self, job: Job) -> bool:
        """Whether a job can be run and did not end because it had no hope."""
        return not job.reason and not self._pruned(job)

    def _pruned(self, job: Job) -> bool:
        if job.reason:
            return False
        error = stored_result(self.sweep.folder / job.name).get("error")
        return isinstance(error, str) and error.startswith(PrunedError.__name__)

    def _offer_pruning(self, trials: dict[str, int]) -> None:
        """Tell the jobs of a batch where to report to."""
        if self.options.pruner == "none":
            # Nor as an earlier start of this search did.
            (self.sweep.folder / PRUNING_FILE).unlink(missing_ok=True)
            return
        content = {
            "study": self.study.study_name,
            "storage": absolute(self.options.storage),
            "pruner": self.options.pruner,
            "options": self.options.pruner_options,
            "lower_is_better": self.options.goals[0].direction == "minimize",
            "trials": trials,
        }
        write_atomically(self.sweep.folder / PRUNING_FILE, as_json(content))


def read_jobs(path: Path) -> list[Job]:
    """The jobs that an earlier start of a sweep listed in a file; none without it."""
    if not path.exists():
        return []
    return [Job(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
