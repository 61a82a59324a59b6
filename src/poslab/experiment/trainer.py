"""The Lightning Trainer of a job: its callbacks, its loggers, and what it is kept from saying."""

import logging
import math
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler

from poslab.config.identity import identity, job_key
from poslab.config.schema import TrainConfig
from poslab.diagnostics import Diagnostics, build_diagnostics
from poslab.experiment.record import RunRecord
from poslab.experiment.report import EpochLines, LossBar
from poslab.pictures.gallery import Gallery, close_gallery
from poslab.training.checkpoints import Checkpoints, DurableFiles
from poslab.training.strategies import GatherModel, SameRunCheck, build_strategy

__all__ = ["build_trainer", "close_gallery", "quieten"]

log = logging.getLogger(__name__)

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


def build_trainer(job: TrainConfig, record: RunRecord, more_callbacks: Sequence[Callback] = ()) -> lightning.Trainer:
    """A Trainer that validates each epoch, keeps the best and the last checkpoint and runs the diagnostics."""
    folder, replicas, first = record.folder, record.replicas, record.replicas[0]
    callbacks: list[Callback] = [EpochLines(replicas.means.table)]
    if job.trainer.strategy != "auto":
        agreed = {
            "the job": job_key(job),
            "its folder": str(folder.path.absolute()),
            "the step to go on from": record.start.step,
        }
        callbacks = [SameRunCheck(agreed), GatherModel(only_end=not job.diagnostics), *callbacks]
    if wants_progress_bar(job.trainer.progress_bar):
        callbacks.append(LossBar(replicas.means.table))
    only_ends = job.logger.pictures == "ends" or (job.logger.pictures == "auto" and record.brief)
    gallery = Gallery(only_ends=only_ends, folder=first.folder, loggers=first.loggers)
    # The gallery after the diagnostics: when it runs, all of them have ordered their pictures.
    callbacks += [Diagnostics([build_diagnostics(job.diagnostics, gallery) for _ in replicas]), gallery]
    # After them: a trial that is ended here has been inspected.
    callbacks += more_callbacks
    callbacks.append(
        Checkpoints(
            folder,
            replicas,
            identity(asdict(job)),
            gallery.finish_earlier,
            record.signals,
            every_n_steps=job.trainer.checkpoint_every_n_steps,
            every_minutes=job.trainer.checkpoint_every_minutes,
            started_from=record.start.origin,
            keep=None if job.trainer.keep_checkpoints == "all" else int(job.trainer.keep_checkpoints),
        )
    )
    return lightning.Trainer(
        default_root_dir=folder.path,
        accelerator=job.trainer.accelerator,
        devices=job.trainer.devices,
        num_nodes=job.trainer.num_nodes,
        strategy=build_strategy(job),
        precision=PRECISIONS[job.trainer.precision],  # type: ignore[arg-type]
        # Whole epochs; the module ends the last one where `total_steps` says.
        max_epochs=math.ceil(job.total_steps / job.data.steps_per_epoch),
        # Each replica has loggers of its own.
        logger=False,
        callbacks=callbacks,
        plugins=[DurableFiles()],
        log_every_n_steps=job.trainer.log_every_n_steps,
        # The untrained model is scored before the first step; a sanity pass would only do it twice.
        num_sanity_val_steps=0,
        enable_progress_bar=wants_progress_bar(job.trainer.progress_bar),
        enable_model_summary=False,
        use_distributed_sampler=False,
        profiler=NoProfiler(),
    )


class NoProfiler(PassThroughProfiler):
    """Notes nothing; Lightning asks it fifty times a step, and its own opens and closes a generator each time."""

    def profile(self, action_name: str) -> Any:
        return NOTHING


NOTHING: AbstractContextManager[None] = nullcontext()


def wants_progress_bar(setting: str) -> bool:
    if setting != "auto":
        return setting.lower() == "true"
    # None where a process was started without the stream.
    return all(stream is not None and stream.isatty() for stream in (sys.stderr, sys.stdout))


def quieten() -> None:
    """Keep the console for what the run says; what libraries remark on goes to nobody but a debugger."""
    logging.captureWarnings(True)
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    threading.excepthook = _quiet_writers
    # Batches are made whole in the main process on purpose.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # The training loss is logged by `TrainingModule`, at steps of its own.
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    # Other diagnostics may be asked for when a run goes on.
    warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint need to be provided.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    # Ours is: a batch depends on the seed and its number alone.
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
    # Lightning itself calls it.
    warnings.filterwarnings("ignore", message=".*all_gather is deprecated.*")
    # Nothing here changes logits in place.
    warnings.filterwarnings("ignore", message=".*FSDP2-wrapped module.*returned a view tensor.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")


_usual_excepthook = threading.excepthook


def _quiet_writers(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's writing thread also hands its exception to whoever writes next: there it is dealt with."""
    if not type(failure.thread).__module__.startswith("tensorboard."):
        _usual_excepthook(failure)
