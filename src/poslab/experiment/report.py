"""What a run says: a progress bar, a line an epoch, a short table at the end."""

import logging
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback, RichProgressBar
from rich.table import Table

from poslab.cli.terminal import drawn
from poslab.config.overrides import override
from poslab.runs.folder import RunFolder
from poslab.runs.metrics import SIMILARITY, SIMILARITY_ROWS
from poslab.runs.names import COPIES
from poslab.runs.result import Result, by_length
from poslab.runs.table import MetricsTable
from poslab.system.shell import commands_for, shell_quoted, shown_path, tensorboard_command

log = logging.getLogger(__name__)


class EpochLines(Callback):
    """One line after each validation."""

    def __init__(self, table: MetricsTable) -> None:
        self.table = table

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.table.save()
        last = self.table.last()
        log.info(
            "epoch  %d, step %d of %d: train loss %.4f, val loss %.4f, next-token accuracy %.1f %%, "
            "exact match %.1f %%",
            trainer.current_epoch + 1,
            trainer.global_step,
            pl_module.total_steps,
            last.get("train/loss_epoch", float("nan")),
            last["val/loss"],
            100 * last["val/accuracy"],
            100 * last["val/exact_match"],
        )


class LossBar(RichProgressBar):
    """A progress bar with the last logged training loss, which counts epochs from 1 as the lines do."""

    def __init__(self, table: MetricsTable) -> None:
        super().__init__(refresh_rate=20)
        self.table = table

    def _get_train_description(self, current_epoch: int) -> str:
        return f"epoch {current_epoch + 1}/{self.trainer.max_epochs}".ljust(len(self.validation_description))

    def get_metrics(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> dict[str, Any]:
        rows = reversed(self.table.rows.values())
        return next(({"train loss": row["train/loss"]} for row in rows if "train/loss" in row), {})


def brief_report(result: Result, folder: RunFolder, dashboard: bool) -> str:
    """The end of one job of many, in a line."""
    numbers = ", ".join(
        f"{name} {result.metrics[name]:.4f}" for name in ("val/loss", "val/exact_match") if name in result.metrics
    )
    return f"{result.status:<6} {numbers}, {result.wall_seconds:.1f} s{f', {result.error}' if result.error else ''}"


def final_report(result: Result, folder: RunFolder, dashboard: bool) -> str:
    """The short table at the end of a run, and the command that shows the rest."""
    metrics = result.metrics
    table = Table(title=f"run {result.status}", title_justify="left", show_header=False, title_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("value", overflow="fold")
    for name in ("val/loss", "train/loss"):
        if name in metrics:
            start = f"{metrics[f'start/{name}']:.4f} -> " if f"start/{name}" in metrics else ""
            table.add_row(name, f"{start}{metrics[name]:.4f}")
    for name, of in (("val/accuracy", " (next token)"), ("val/exact_match", "")):
        if name in metrics:
            table.add_row(name, f"{metrics[name]:.1%}{of}")
    curves = by_length(metrics)
    curve = curves.get("exact_match", {})
    if curve:
        unreached = sorted(
            int(name.removeprefix("length/")) for name in result.out_of_reach if name.startswith("length/")
        )
        texts = [f"{length}: {share:.1%}" for length, share in curve.items()]
        table.add_row(
            "exact match at length", ", ".join([*texts, *(f"{length}: out of reach" for length in unreached)])
        )
    if free := curves.get("free_accuracy"):
        table.add_row("free-running accuracy", ", ".join(f"{length}: {share:.1%}" for length, share in free.items()))
    if "copies/completed" in metrics:
        table.add_row("copies", f"{metrics['copies/completed']:.0f} completed; numbers above are means")
    if result.parameters:
        parts = [f"{part} {count:,}" for part, count in result.parameters.items()]
        table.add_row("parameters", ", ".join(parts))
    missing = "no table" if result.status == "completed" else "-"
    similarity = missing
    if SIMILARITY in metrics:
        rows = f" (positions 0 to {metrics[SIMILARITY_ROWS] - 1:.0f})" if SIMILARITY_ROWS in metrics else ""
        similarity = f"{metrics[SIMILARITY]:.4f}{rows}"
    table.add_row("neighbour similarity at 1", similarity)
    table.add_row("seconds", f"{result.wall_seconds:.1f}")
    if result.error:
        table.add_row("error", result.error)
    path = shown_path(folder.path)
    table.add_row("results", str(path))
    lines = drawn(table).splitlines()
    usable = next(iter(sorted(folder.path.glob(f"{COPIES}/*/checkpoints/last.ckpt"))), folder.checkpoints / "last.ckpt")
    if usable.exists():
        lines += [f"use it: {command}" for command in commands_for(shown_path(usable.parents[1]))]
    if dashboard:
        lines.append(f"see it: {tensorboard_command(path)}")
    if result.status == "interrupted" or (result.status == "failed" and usable.exists()):
        lines.append(f"go on:  the same command with resume=auto {shell_quoted(override('hydra.run.dir', str(path)))}")
    return "\n".join(lines)
