"""Measure in one process the steps per second of ``fit`` and of a bare loop, and the time of the diagnostics."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from bare_loop import BATCH, SYMBOLS, BareModel, train
from measure import Watched, in_turn, median, seconds_of, watched_run
from tables import table

from poslab import LearnedPositionalEmbedding
from poslab.model import TransformerLM
from poslab.system.threads import choose_threads

REPEATS = 3


class Size(NamedTuple):
    """A job of one size.

    Attributes:
        name: name in the tables.
        overrides: settings of the run.
        d_model: D.
        seq_len: T, tokens per row.
        steps: number of steps that are measured.
        share: length of an epoch relative to the default of 120 steps. The validation set is reduced by the same
            factor, so that validation takes its usual share of the time.
        val_examples: size of the full validation set.
    """

    name: str
    overrides: tuple[str, ...]
    d_model: int
    seq_len: int
    steps: int
    share: float
    val_examples: int

    @property
    def length(self) -> int:
        return self.seq_len // 2

    def model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        if "model=transformer" not in self.overrides:
            return BareModel()
        positions = LearnedPositionalEmbedding(self.seq_len, self.d_model)
        return TransformerLM(SYMBOLS + 1, self.d_model, 4, 6, self.seq_len, positions=positions)

    def bare(self) -> float:
        """Seconds per step of a bare loop."""
        threads = torch.get_num_threads()
        torch.set_num_threads(choose_threads("auto", BATCH, self.seq_len, self.d_model))
        # A third of the steps for the large size, whose steps take long.
        steps = self.steps if self.seq_len < 100 else self.steps // 3
        seconds = seconds_of(partial(train, self.model(), steps, length=self.length)) / steps
        torch.set_num_threads(threads)
        return seconds

    def run(self, *overrides: str) -> Watched:
        epoch = max(4, round(120 * self.share))
        return watched_run(
            *self.overrides,
            f"data.steps_per_epoch={epoch}",
            f"data.val_examples={round(self.val_examples * self.share)}",
            *overrides,
        )


LARGE = (
    "model=transformer",
    "model.d_model=128",
    "model.n_layers=6",
    "model.token_init_std=0.02",
    "task.length=128",
    "data.val_batch_size=16",
)
SMALL = Size("default", (), 32, 12, 360, 1.0, 512)


def measure(repeats: int, full: bool) -> str:
    share = 1.0 if full else 1 / 4
    large = Size("D 128, T 256, 6 layers", LARGE, 128, 256, round(360 * share), share, 96)
    rows, costs = [], []
    # Short runs are repeated more often, because the noise is as large as their differences.
    for size, times in ((SMALL, 5 * repeats), (large, repeats)):
        ways: dict[str, Callable[[], object]] = {
            "bare": size.bare,
            "plain": partial(size.run, "diagnostics=none"),
            "all": size.run,
        }
        if share < 1 and size is large:
            # All steps in one epoch: with three short epochs, checkpoints would be saved four times as often.
            n_val = round(size.val_examples * size.steps / 120)
            one_epoch = "trainer.max_epochs=1", f"data.steps_per_epoch={size.steps}", f"data.val_examples={n_val}"
            ways["one epoch"] = partial(size.run, "diagnostics=none", *one_epoch)
        found = in_turn(ways, times)
        bare = median(found["bare"])
        plain: list[Watched] = found["plain"]
        fit = median([one.fit / one.steps for one in found.get("one epoch", plain)])
        rows.append((size.name, 1 / bare, 1 / fit, bare / fit))
        every: list[Watched] = found["all"]
        usual = median([one.fit for one in plain])
        waits = (
            median([one.diagnostics for one in every]),
            median([one.fit + one.diagnostics - one.diagnostics_after_fit for one in every]) - usual,
            median([one.fit + one.diagnostics for one in every]) - usual,
        )
        # Relative to a full run, which has the same number of diagnostics and more steps between them.
        whole = fit * 360
        costs.append((size.name, whole, *(f"{wait:.3g} ({wait / whole:.1%})" for wait in waits)))
    return "\n\n".join(
        [
            "## Fit alone",
            "Steps per second from the first step to the end of `fit`, with logging and the validation after each "
            "epoch. The bare loop does neither. The large size is measured with "
            + (
                "three epochs."
                if full
                else "one epoch of 90 steps and a validation set reduced by the same factor (`--full`: all of it)."
            ),
            table(("size", "bare loop", "poslab, diagnostics=none", "ratio"), rows),
            "## Diagnostics",
            "All diagnostics at their default intervals in three epochs of 120 steps, in s and as a share of the fit "
            "without diagnostics: the time spent waiting for them, how much later the fit ends (the drawing process "
            "shares the cores), and how much later the run ends, which waits for the last pictures."
            + ("" if full else " The large size is measured with three epochs of 30 steps and as many diagnostics."),
            table(("size", "fit without, s", "waiting", "fit ends later", "run ends later"), costs),
        ]
    )
