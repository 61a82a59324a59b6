"""Asks Optuna for trials, runs them as jobs of a sweep and tells it the results; `Search.run` reads top to bottom."""

import logging
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from poslab.config.overrides import key_of
from poslab.errors import ConfigError, PrunedError
from poslab.runs.names import INVALID_FILE, SWEEP_FILE
from poslab.sweeps.plan import Job, as_json, read_jobs
from poslab.sweeps.search.objectives import check_objectives, reached
from poslab.sweeps.search.options import Options, build_sampler, open_storage, quiet
from poslab.sweeps.search.pruning import PRUNING_FILE
from poslab.sweeps.search.samples import sample_jobs
from poslab.sweeps.search.space import Parameter, literal, split_space
from poslab.sweeps.search.study import open_study
from poslab.sweeps.search.summary import COMPLETED, JSON_FILE, Outcome, Summary, shown
from poslab.sweeps.sweep import Sweep
from poslab.system.files import write_atomically

log = logging.getLogger(__name__)

# In a summary; the other states have Optuna's names.
STATES = {TrialState.COMPLETE: COMPLETED, TrialState.FAIL: "failed"}


def run_search(sweep: Sweep, given: Sequence[Override], options: dict[str, Any]) -> None:
    """Search from the command line; an error in the options leaves no folder behind.

    Args:
        sweep: runs the jobs.
        given: the overrides as typed.
        options: ``hydra.sweeper``.

    Raises:
        ConfigError: the options, the space or the jobs are wrong.
        SystemExit: stopped (130, 143), or no trial was completed (1).
    """
    checked_options = Options(**options)
    if checked_options.n_jobs > 1 and sweep.one_after_another:
        raise ConfigError(
            f"hydra.sweeper.n_jobs={checked_options.n_jobs} starts {checked_options.n_jobs} trials at a time, and "
            "hydra/launcher=basic runs one after another; add hydra/launcher=joblib"
        )
    space, fixed = split_space(given)
    for parameter in space:
        if sweep.composer.is_group(parameter.key):
            # Now, because an option may be drawn long after its file was changed.
            sweep.composer.read(parameter.key, [str(option) for option in parameter.values or ()])
    if checked_options.sampler == "grid":
        build_sampler(checked_options, space, 0)
    check_objectives(checked_options.goals, sample_jobs(sweep, space, fixed))
    if checked_options.database is not None:
        # Refuse a database that cannot be opened before there is a folder.
        open_storage(checked_options.database, Path()).remove_session()
    with closing(sweep.lock):
        Search(sweep, checked_options, space, fixed).run()


class Search:
    """A study and the sweep whose jobs are its trials.

    The study stores every trial before its job starts and gets the result after the job's end. A trial that was running
    when the search was stopped stays so in the study; the next start resumes its job.
    """

    def __init__(self, sweep: Sweep, options: Options, space: Sequence[Parameter], fixed: Sequence[str]) -> None:
        self.sweep = sweep
        self.options = options
        self.space = {parameter.key: parameter for parameter in space}
        self.fixed = list(fixed)
        self.sweep.lock.acquire()
        self.study = open_study(self.sweep, options, space, fixed)
        self.jobs: dict[int, Job] = {}
        self._load_jobs()

    def run(self) -> None:
        """Run the missing trials and write the summary, also after an error.

        Raises:
            ConfigError: a combination cannot be run and ``sweep.on_invalid=fail``.
            SystemExit: stopped (130, 143), or no trial was completed (1).
        """
        self.announce()
        try:
            self.finish(self.unfinished())
            while missing := min(self.n_missing(), self.options.n_jobs):
                self.finish([self.ask() for _ in range(missing)])
        except KeyboardInterrupt as stopped:
            raise SystemExit(130) from stopped
        finally:
            self.conclude()
        if not self.trials(TrialState.COMPLETE):
            raise SystemExit(1)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials of the study in these states, or all of them."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def n_missing(self) -> int:
        """How many trials remain to be drawn."""
        total = self.options.n_trials
        if self.options.sampler == "grid":
            total = min(total, math.prod(len(parameter.every_value()) for parameter in self.space.values()))
        return max(0, total - len(self.trials()))

    def ask(self) -> FrozenTrial:
        """Draw the next trial and store its overrides."""
        with quiet():
            self.study.sampler = build_sampler(self.options, list(self.space.values()), len(self.trials()))
            trial = self.study.ask({key: parameter.distribution for key, parameter in self.space.items()})
            # A grid's sampler would stop the study when it is told a result, which only Optuna's own loop allows.
            self.study.sampler = RandomSampler()
        drawn = [parameter.override(trial.params[key]) for key, parameter in self.space.items()]
        trial.set_user_attr("overrides", [*self.fixed, *drawn])
        return self.trials()[trial.number]

    def unfinished(self) -> list[FrozenTrial]:
        """The trials that an earlier start left running; fails those that were stopped before they were drawn."""
        running = self.trials(TrialState.RUNNING)
        for trial in running:
            if "overrides" not in trial.user_attrs:
                self.study.tell(trial.number, state=TrialState.FAIL)
        return [trial for trial in running if "overrides" in trial.user_attrs]

    def finish(self, trials: Sequence[FrozenTrial]) -> None:
        """Run trials in batches of ``n_jobs`` and tell the study the results.

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
                self.sweep.refuse_invalid()
            # Two trials may be the same job, which then runs once.
            due = {job.name: (number, job) for number, job in jobs.items() if not job.reason and not self._pruned(job)}
            self._offer_pruning({job.name: number for number, job in due.values()})
            self.sweep.launch([job for _, job in due.values()])
            for number in jobs:
                self.tell(number)
            self.summary().write(self.sweep.folder)

    def tell(self, number: int) -> None:
        """Tell the study the result of a trial's job."""
        job = self.jobs[number]
        result = self.sweep.result(job)
        values = reached(result, self.options.goals)
        if result.get("status") == "completed" and len(values) == len(self.options.goals):
            self.study.tell(number, [values[goal.metric] for goal in self.options.goals])
        else:
            self.study.tell(number, state=TrialState.PRUNED if self._pruned(job) else TrialState.FAIL)
        outcome = self.outcome(self.trials()[number])
        found = ", ".join(f"{name} {value:.4f}" for name, value in outcome.values.items())
        settings = " ".join(f"{key}={shown(value)}" for key, value in outcome.settings.items())
        log.info("trial  %d %s: %s (%s)", number, outcome.state, found or outcome.reason, settings)

    def outcome(self, trial: FrozenTrial) -> Outcome:
        """A trial for the summary, with its folder or the reason why it has no value."""
        job = self.jobs.get(trial.number)
        complete = trial.state == TrialState.COMPLETE
        values = dict(zip((goal.metric for goal in self.options.goals), trial.values if complete else (), strict=False))
        return Outcome(
            trial=trial.number,
            state=STATES.get(trial.state, trial.state.name.lower()),
            settings={key: literal(self.space[key].typed(drawn)) for key, drawn in trial.params.items()},
            values=values,
            folder="" if job is None else job.name,
            reason="" if complete or trial.state == TrialState.RUNNING else self._reason(job),
        )

    def _reason(self, job: Job | None) -> str:
        """Why a trial has no value."""
        if job is None:
            return "the search was stopped before it began"
        if job.reason:
            return job.reason
        result = self.sweep.result(job)
        if result.get("status") != "completed":
            return str(result.get("error") or "it left no result")
        values = reached(result, self.options.goals)
        lacking = [goal.metric for goal in self.options.goals if goal.metric not in values]
        return f"its result has no finite {', '.join(lacking)}"

    def summary(self) -> Summary:
        """The trials so far and the best of them."""
        if len(self.options.goals) > 1:
            # One trial for each job of the front, in order of the first objective.
            distinct = {self.jobs[trial.number].name: trial for trial in reversed(self.study.best_trials)}
            best = sorted(distinct.values(), key=lambda trial: trial.values)
        else:
            best = [self.study.best_trial] if self.trials(TrialState.COMPLETE) else []
        return Summary(
            options=self.options,
            study=self.study.study_name,
            trials=[self.outcome(trial) for trial in self.trials()],
            best=[self.outcome(trial) for trial in best],
        )

    def announce(self) -> None:
        """Print what is searched, how, where, and how many trials ended before."""
        ended = sum(trial.state.is_finished() for trial in self.trials())
        log.info(
            "search %s: %d trials%s, %s, sampler %s, %s, %d at a time",
            self.sweep.folder,
            self.options.n_trials,
            f", {ended} done before" if ended else "",
            " and ".join(map(str, self.options.goals)),
            self.options.sampler,
            self.sweep.place,
            self.options.n_jobs,
        )

    def conclude(self) -> None:
        """Write the comparison and the summary; print the best trials."""
        self.sweep.conclude()
        summary = self.summary()
        summary.write(self.sweep.folder)
        log.info("search done: %s of %d trials", summary.counts_text or "none", self.options.n_trials)
        if summary.best:
            log.info("%s", summary.table())
        else:
            log.info("no trial was completed; %s says why", self.sweep.folder / JSON_FILE)

    def _load_jobs(self) -> None:
        """Read the jobs of ended trials from the sweep's folder, which is faster than composing each again."""
        sweep = self.sweep
        plan, invalid = (read_jobs(sweep.folder / name) for name in (SWEEP_FILE, INVALID_FILE))
        sweep.jobs |= {job.name: job for job in plan}
        sweep.invalid += invalid
        self._refuse_changed_files(plan)
        known = {tuple(job.overrides): job for job in (*plan, *invalid)}
        for trial in self.trials():
            if trial.state.is_finished() and "overrides" in trial.user_attrs:
                job = known.get(tuple(trial.user_attrs["overrides"]))
                self.jobs[trial.number] = job or self._jobs_of([trial])[0]

    def _refuse_changed_files(self, plan: Sequence[Job]) -> None:
        """Compose one ended job of each combination of options again, to notice changed configuration files.

        Raises:
            ConfigError: names the setting that differs.
        """
        by_options: dict[tuple[str, ...], Job] = {}
        for job in plan:
            by_options[tuple(one for one in job.overrides if self.sweep.composer.is_group(key_of(one)))] = job
        self.sweep.add([job.overrides for job in by_options.values()], set(self.space))

    def _jobs_of(self, trials: Sequence[FrozenTrial]) -> list[Job]:
        return self.sweep.add([trial.user_attrs["overrides"] for trial in trials], set(self.space))

    def _pruned(self, job: Job) -> bool:
        # Older versions stored the status interrupted.
        return str(self.sweep.result(job).get("error")).startswith(PrunedError.__name__)

    def _offer_pruning(self, trials: dict[str, int]) -> None:
        """Tell the jobs of a batch which study to report to."""
        if self.options.pruner == "none":
            # An earlier start of this search may have pruned.
            (self.sweep.folder / PRUNING_FILE).unlink(missing_ok=True)
            return
        content = {
            "study": self.study.study_name,
            "storage": self.options.database,
            "pruner": self.options.pruner,
            "options": self.options.pruner_options,
            "lower_is_better": self.options.goals[0].direction == "minimize",
            "trials": trials,
        }
        write_atomically(self.sweep.folder / PRUNING_FILE, as_json(content))
