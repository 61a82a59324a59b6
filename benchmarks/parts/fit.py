"""In one process: the steps per second of a fit against a bare loop's, and what the diagnostics add to it."""

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
    """A job: its name and its overrides, D and the tokens of a row, and how many of its steps are measured.

    ``share`` is the part of a default run's epoch that this many steps are: the validation set of ``val_examples`` is
    cut alike, so that it takes its usual part of the time.
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
        """Seconds of a bare loop's step."""
        threads = torch.get_num_threads()
        torch.set_num_threads(choose_threads("auto", BATCH, self.seq_len, self.d_model))
        # One epoch is enough where three take long.
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
    # What is over in a second is taken more often: the machine's noise is of the same size as the differences.
    for size, times in ((SMALL, 5 * repeats), (large, repeats)):
        ways: dict[str, Callable[[], object]] = {
            "bare": size.bare,
            "plain": partial(size.run, "diagnostics=none"),
            "all": size.run,
        }
        if share < 1 and size is large:
            # Its steps as one epoch: in three short ones checkpoints would come four times as often.
            part = round(size.val_examples * size.steps / 120)
            one = "trainer.max_epochs=1", f"data.steps_per_epoch={size.steps}", f"data.val_examples={part}"
            ways["one epoch"] = partial(size.run, "diagnostics=none", *one)
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
        # Of a whole run: as many looks, between more steps.
        whole = fit * 360
        costs.append((size.name, whole, *(f"{wait:.3g} ({wait / whole:.1%})" for wait in waits)))
    return "\n\n".join(
        [
            "## Fit alone",
            "Steps per second from the first step to the end of `fit`, with logging and the validation after each "
            "epoch. The bare loop does neither. Of the large size "
            + (
                "three epochs."
                if full
                else "an epoch of 90 steps, with as small a part of the validation set (`--full`: all)."
            ),
            table(("size", "bare loop", "poslab, diagnostics=none", "ratio"), rows),
            "## Diagnostics",
            "All of them at their intervals in three epochs of 120 steps, in s and as a share of the fit without: how "
            "long they are waited for, how much later the fit ends (the process that draws shares the cores), and how "
            "much later the run ends, which waits for the last pictures."
            + ("" if full else " Of the large size three epochs of 30 steps are taken, with the looks of a whole run."),
            table(("size", "fit without, s", "waited", "fit ends later", "run ends later"), costs),
        ]
    )
