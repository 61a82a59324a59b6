"""The base class of the diagnostics: when they look, and where their findings go."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from poslab.data.module import Probe
from poslab.model import LanguageModel
from poslab.pictures.gallery import Gallery, showing
from poslab.tasks import Task
from poslab.training.module import Observed, TrainingModule, log_scalars

log = logging.getLogger(__name__)

TOKENS = 2048
"""Tokens on which the diagnostics of heads measure by default; with more, long sequences would take too much time."""


class Scalars(NamedTuple):
    """Numbers by their full tag."""

    values: dict[str, float]


class Picture(NamedTuple):
    """A figure and its tag; in the name of its file in ``figures/``, slashes become underscores.

    ``draw`` is called later, possibly in another process, so it must hold copies of the data and not the model.
    """

    tag: str
    draw: Callable[[], Figure]


class Text(NamedTuple):
    """Markdown under a tag."""

    tag: str
    markdown: str


class OutOfReach(NamedTuple):
    """Why numbers are missing: the reason in one line, by the beginning of their tags; stored in ``result.json``."""

    reasons: dict[str, str]


Finding = Scalars | Picture | Text | OutOfReach


class Diagnostic(Callback):
    """Looks at the model before the first step, at every ``every``-th validation, and at the end.

    A subclass implements `look`. If it fails, this is reported once and the training continues. It must not use the
    random state, so that a run has the same numbers with or without diagnostics.

    Args:
        every: validations from one look to the next; None looks at the end only, 0 switches the diagnostic off.

    Raises:
        ValueError: a negative ``every``.
    """

    def __init__(self, every: int | None = 1) -> None:
        super().__init__()
        if every is not None and every < 0:
            raise ValueError(f"every={every} must be at least 1, or 0 to switch it off, or null for the end only")
        self.every = every
        self.out_of_reach: dict[str, str] = {}
        self.gallery: Gallery | None = Gallery(in_background=False)
        self.replica = 0
        """Index of the replica that is inspected."""
        self._validations = 0
        self._last_look: int | None = None
        self._failed = False

    def check(self, task: Task, max_context_length: int) -> None:
        """Refuse options that do not fit the task or the model; called before training.

        Raises:
            ValueError: names the values and the way out.
        """
        return

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        """The tags of the scalars that this diagnostic logs in a run of this task and model.

        With this list a search knows its possible objectives before it has trained a model.
        """
        return []

    @abstractmethod
    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        """Inspect the model and return the findings.

        Args:
            model: in evaluation mode, without gradients.
            probe: one fixed sequence on the model's device, its labels and the cells that hold its answers.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in plain values, so that a resumed run repeats no look and keeps its start."""
        return {
            "validations": self._validations,
            "last_look": self._last_look,
            "out_of_reach": dict(self.out_of_reach),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]
        self._last_look = state_dict["last_look"]
        self.out_of_reach = state_dict.get("out_of_reach", {})

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self.every is not None and trainer.global_step == 0:
            self._report(trainer, pl_module)
        self._draw_again(trainer, pl_module)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validations += 1
        assert isinstance(pl_module, TrainingModule)
        due = self.every is not None and self._validations % self.every == 0
        # At the last validation all diagnostics look, also those that look at the end of the training only.
        if due or pl_module.ends_here(self.replica):
            self._report(trainer, pl_module)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._report(trainer, pl_module)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # A run that was stopped after its last step and resumes has no training loop, so `on_train_end` is not called.
        self._report(trainer, pl_module)
        self._draw_again(trainer, pl_module)

    def _report(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.is_global_zero and trainer.global_step != self._last_look:
            self._look(trainer, module)

    def _draw_again(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """After a resume, order the pictures of this step that the run had not drawn when it was stopped."""
        if self.gallery is None or not self.gallery.owes(trainer.global_step):
            return
        # Only if this diagnostic looked at this step, because its findings may also be part of another's picture.
        if trainer.is_global_zero and trainer.global_step == self._last_look:
            self._look(trainer, module, only_pictures=self.gallery.owed)

    def _look(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        only_pictures: Collection[str] | None = None,
    ) -> None:
        step = trainer.global_step
        assert isinstance(module, TrainingModule)
        training = module.training
        module.eval()
        try:
            seen = module.observed(self.replica)
            if seen is None:
                return
            self._last_look = step
            with torch.no_grad():
                device = next(seen.model.parameters()).device
                probe = seen.data.probe._replace(tokens=seen.data.probe.tokens.to(device))
                for finding in self.look(seen.model, probe):
                    if only_pictures is None or (isinstance(finding, Picture) and finding.tag in only_pictures):
                        self._publish(trainer, seen, finding, step)
        except Exception as error:
            self._warn(error, step)
        finally:
            module.train(training)

    def _publish(self, trainer: lightning.Trainer, seen: Observed, finding: Finding, step: int) -> None:
        match finding:
            case Scalars(values):
                log_scalars(trainer, values, seen.loggers)
            case Picture(tag, draw):
                if self.gallery is not None:
                    self.gallery.order(tag, step, draw)
            case Text(tag, markdown):
                for show in showing(seen.loggers, "log_markdown"):
                    show(tag, markdown, step)
            case OutOfReach(reasons):
                if reasons.keys() - self.out_of_reach.keys():
                    log.info("out of reach: %s (%s)", ", ".join(reasons), next(iter(reasons.values())))
                self.out_of_reach |= reasons

    def _warn(self, error: Exception, step: int) -> None:
        """Report a failure on the console the first time, and in the log file with its traceback every time."""
        if not self._failed:
            name = type(self).__name__
            log.warning("diagnostic %s failed at step %d, training goes on (see train.log): %r", name, step, error)
        self._failed = True
        log.debug("diagnostic %s failed", type(self).__name__, exc_info=True)
