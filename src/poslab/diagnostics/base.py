"""When a diagnostic looks, where its findings go, and that it never ends a training."""

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
"""As many of the validation set tell what heads do; of long sequences more would cost what the training does."""


class Scalars(NamedTuple):
    """Numbers by their whole tag."""

    values: dict[str, float]


class Picture(NamedTuple):
    """A figure under a tag; in the run's ``figures/`` a slash becomes an underscore.

    ``draw`` is called later and perhaps in another process: it gets arrays of its own, never the model.
    """

    tag: str
    draw: Callable[[], Figure]


class Text(NamedTuple):
    """Markdown under a tag."""

    tag: str
    markdown: str


class OutOfReach(NamedTuple):
    """What has no number, by the beginning of its tags, and why, in one line; goes into ``result.json``."""

    reasons: dict[str, str]


Finding = Scalars | Picture | Text | OutOfReach


class Diagnostic(Callback):
    """Looks at the model before the first step, then at every ``every``-th validation, and at the end.

    A subclass implements `look`. A failure inside it is reported once and never ends the training; the random state is
    not touched, so a run has the same numbers with diagnostics on or off.

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
        """The replica that is inspected."""
        self._validations = 0
        self._last_look: int | None = None
        self._failed = False

    def check(self, task: Task, max_context_length: int) -> None:
        """Refuse options that do not go with the task or the model; asked before anything is trained.

        Raises:
            ValueError: names the values and the way out.
        """
        return

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        """The tags of the scalars that this diagnostic logs in a run of this task and model.

        A search accepts these names as objectives without training a model first.
        """
        return []

    @abstractmethod
    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        """What there is to see now.

        Args:
            model: in evaluation mode, without gradients.
            probe: one fixed sequence on the model's device, its labels and the cells that hold its answers.
        """

    def state_dict(self) -> dict[str, Any]:
        """What has been seen, in plain values: a run that goes on neither repeats a look nor forgets its start."""
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
        # The last one is due at the end of the training, at this same step: now all diagnostics look together.
        if due or trainer.global_step == pl_module.total_steps:
            self._report(trainer, pl_module)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._report(trainer, pl_module)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # A run that was stopped after its last step and goes on has no training that could end.
        self._report(trainer, pl_module)
        self._draw_again(trainer, pl_module)

    def _report(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.is_global_zero and trainer.global_step != self._last_look:
            self._look(trainer, module)

    def _draw_again(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Order the pictures of this step that a run which was stopped here did not come to show; nothing else."""
        if self.gallery is None or not self.gallery.owes(trainer.global_step):
            return
        # One that did not look then has nothing to show; what it finds now may stand in another's picture.
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
        """Say it once on the console; every time with its traceback in the log file."""
        if not self._failed:
            name = type(self).__name__
            log.warning("diagnostic %s failed at step %d, training goes on (see train.log): %r", name, step, error)
        self._failed = True
        log.debug("diagnostic %s failed", type(self).__name__, exc_info=True)
