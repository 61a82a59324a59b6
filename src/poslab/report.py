"""What a run says: a line an epoch, a short table at the end, its settings as text."""

import io
import logging
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import lightning
import yaml
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table

from poslab.cli import pasted
from poslab.config import TrainConfig, choice_of, flat
from poslab.loggers import MetricsTable
from poslab.results import COPIES, Result, RunFolder, by_length

log = logging.getLogger(__name__)

# What decides no copy's result.
NO_HPARAMS = ("diagnostics", "logger", "resume", "ckpt_path", "sweep", "seeds")


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
            "epoch  %d, step %d of %d: train loss %.4f, val loss %.4f, accuracy %.1f %%, exact match %.1f %%",
            trainer.current_epoch + 1,
            trainer.global_step,
            pl_module.total_steps,
            last.get("train/loss_epoch", float("nan")),
            last["val/loss"],
            100 * last["val/accuracy"],
            100 * last["val/exact_match"],
        )


def hparams(job: TrainConfig) -> dict[str, int | float | str | bool]:
    """The settings that decide the result, flat and of the types that the HParams tab knows."""
    settings = flat({key: value for key, value in asdict(job).items() if key not in NO_HPARAMS})
    named = {key: value for key, value in settings.items() if not key.startswith(("pos.", "task."))}
    for group, options in (("pos", job.pos), ("task", job.task)):
        # A class is shown as its module, as on the command line. Its options are one text: the tab takes its columns
        # from a single run, and another scheme has other options.
        named[group] = choice_of(options["_target_"])
        named[f"{group}.options"] = ", ".join(f"{key}={value}" for key, value in options.items() if key != "_target_")
    return {
        key: value if isinstance(value, (int, float, bool)) else without_home(str(value))
        for key, value in named.items()
    }


def config_text(job: TrainConfig) -> str:
    """The whole configuration as Markdown."""
    return f"```yaml\n{without_home(yaml.safe_dump(asdict(job), sort_keys=False, allow_unicode=True))}```"


def without_home(text: str) -> str:
    """A text for the dashboard, whose readers need not know where this person's own folder lies."""
    home = os.path.expanduser("~")
    return text.replace(f"{home}{os.sep}", f"~{os.sep}") if len(home) > 1 else text


def shown_path(path: Path) -> Path:
    """As short as it can be typed: relative to where the person stands, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def quoted(word: str) -> str:
    """A word as this system's shell takes it: single quotes are none in Windows' cmd."""
    return subprocess.list2cmdline([word]) if os.name == "nt" else shlex.quote(word)


def program(name: str) -> str:
    """How to call a program of this environment: by its name, or with a path where the environment is not active."""
    ours = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    active = not ours.exists() or (on_path is not None and Path(on_path).parent.samefile(ours.parent))
    return name if active else quoted(str(shown_path(ours)))


def tensorboard_command(folder: Path) -> str:
    """The command that shows a folder, so that it can be pasted."""
    return f"{program('tensorboard')} --logdir {quoted(str(folder))}"


def commands_for(path: Path) -> list[str]:
    """The commands that use what a run has learned, so that they can be pasted."""
    commands = []
    for name in ("evaluate.py", "generate.py"):
        # Beside the script that was started; a notebook has none.
        script = Path(sys.argv[0]).with_name(name)
        script = shown_path(script) if script.exists() else Path(name)
        commands.append(f"{program('python')} {quoted(str(script))} {quoted(f'run={path}')}")
    return commands


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
    table.add_column("what")
    table.add_column("value", overflow="fold")
    for name in ("val/loss", "train/loss"):
        if name in metrics:
            table.add_row(name, f"{metrics[f'start/{name}']:.4f} -> {metrics[name]:.4f}")
    for name in ("val/accuracy", "val/exact_match"):
        if name in metrics:
            table.add_row(name, f"{metrics[name]:.1%}")
    curve = by_length(metrics).get("exact_match", {})
    if curve:
        unreached = sorted(
            int(name.removeprefix("length/")) for name in result.out_of_reach if name.startswith("length/")
        )
        texts = [f"{length}: {share:.1%}" for length, share in curve.items()]
        table.add_row(
            "exact match at length", ", ".join([*texts, *(f"{length}: out of reach" for length in unreached)])
        )
    if "copies/completed" in metrics:
        table.add_row("copies", f"{metrics['copies/completed']:.0f} completed; numbers above are means")
    if result.parameters:
        parts = [f"{part} {count:,}" for part, count in result.parameters.items()]
        table.add_row("parameters", ", ".join(parts))
    missing = "no table" if result.status == "completed" else "-"
    similarity = metrics.get("neighbour_similarity/offset_1")
    table.add_row("neighbour similarity at 1", f"{similarity:.4f}" if similarity is not None else missing)
    table.add_row("seconds", f"{result.wall_seconds:.1f}")
    if result.error:
        table.add_row("error", result.error)
    path = shown_path(folder.path)
    table.add_row("results", str(path))
    text = io.StringIO()
    Console(file=text, width=100, force_terminal=False, markup=False, emoji=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    usable = next(iter(sorted(folder.path.glob(f"{COPIES}/*/checkpoints/last.ckpt"))), folder.checkpoints / "last.ckpt")
    if usable.exists():
        lines += [f"use it: {command}" for command in commands_for(shown_path(usable.parents[1]))]
    if dashboard:
        lines.append(f"see it: {tensorboard_command(path)}")
    if result.status == "interrupted" or (result.status == "failed" and usable.exists()):
        lines.append(f"go on:  the same command with resume=auto {pasted('hydra.run.dir', path)}")
    return "\n".join(lines)
