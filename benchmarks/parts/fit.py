"""In one process: the steps per second of a fit against a bare loop's, and what the diagnostics add to it."""

from functools import partial
from typing import NamedTuple

import torch
from bare_loop import BATCH, SYMBOLS, BareModel, train
from measure import Watched, in_turn, median, seconds_of, watched_run
from tables import table

from poslab import LearnedPositionalEmbedding
from poslab.model import TransformerLM
from poslab.threads import choose_threads

REPEATS = 3


class Size(NamedTuple):
    """A job: its name and its overrides, D and the tokens of a row, and how many of its steps are measured.

    ``share`` is the part of a default run's epoch that this many steps are: the validation set is cut alike, so that it
    takes its usual part of the time.
    """

    name: str
    overrides: tuple[str, ...]
    d_model: int
    seq_len: int
    steps: int
    share: float

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
        seconds = seconds_of(partial(train, self.model(), self.steps, length=self.length)) / self.steps
        torch.set_num_threads(threads)
        return seconds

    def run(self, *overrides: str, epochs: int = 1) -> Watched:
        epoch = max(4, round(120 * self.share))
        return watched_run(
            *self.overrides,
            f"data.steps_per_epoch={epoch}",
            f"data.val_examples={round(512 * self.share)}",
            f"trainer.max_epochs={epochs}",
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
SMALL = Size("default", (), 32, 12, 360, 1.0)


def measure(repeats: int, full: bool) -> str:
    large = Size("D 128, T 256, 6 layers", LARGE, 128, 256, 120 if full else 24, 1.0 if full else 0.2)
    rows, costs = [], []
    for size in (SMALL, large):
        # The default run whole; of the large one an epoch.
        epochs = 3 if size is SMALL or full else 1
        found = in_turn(
            {
                "bare": size.bare,
                "plain": partial(size.run, "diagnostics=none", epochs=epochs),
                "all": partial(size.run, epochs=epochs),
            },
            repeats,
        )
        bare = median(found["bare"])
        plain: list[Watched] = found["plain"]
        fit = median([one.fit / one.steps for one in plain])
        rows.append((size.name, 1 / bare, 1 / fit, bare / fit))
        waited = median([one.diagnostics for one in found["all"]])
        slower = median([one.fit + one.diagnostics for one in found["all"]]) - median([one.fit for one in plain])
        # Of a run of three epochs as the defaults have it, with looks at the start and after each.
        looks = 4 / (epochs + 1)
        whole = fit * 360
        costs.append(
            (size.name, whole, waited * looks, f"{waited * looks / whole:.1%}", f"{slower * looks / whole:.1%}")
        )
    return "\n\n".join(
        [
            "## Fit alone",
            "Steps per second from the first step to the end of `fit`, with logging and the validation after each "
            "epoch. The bare loop does neither. Of the large size "
            + ("three epochs." if full else "a fifth of an epoch, with a fifth of the validation set (`--full`: all)."),
            table(("size", "bare loop", "poslab, diagnostics=none", "ratio"), rows),
            "## Diagnostics",
            "All of them at their intervals in three epochs of 120 steps: how long training waits for them, and how "
            "much later the fit ends (where pictures are drawn in a process of their own, that also shares the cores)."
            + ("" if full else " The large size is reckoned from one epoch."),
            table(("size", "fit without, s", "waited, s", "waited, share of fit", "later, share of fit"), costs),
        ]
    )
