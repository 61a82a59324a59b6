"""How well a model does beyond the training length."""

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from matplotlib.figure import Figure

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, OutOfReach, Picture, Scalars
from poslab.evaluation.lengths import AtLength, at_lengths, model_for_length, scored_freely
from poslab.model import LanguageModel
from poslab.model.attention import MOST_CONTEXT
from poslab.pictures.figures import TICK_SIZE
from poslab.pictures.plots import Plot
from poslab.sizes import TOKEN_BYTES
from poslab.system.files import as_text
from poslab.system.memory import memory_bytes
from poslab.tasks import Task

FACTORS = (1.0, 1.25, 1.5, 2.0)
SCORES = ("accuracy", "exact_match")
FREE = "free_accuracy"


def tag(length: int, score: str) -> str:
    return f"length/{length}/{score}"


def default_lengths(trained: range) -> list[int]:
    """The longest training length and 1.25, 1.5 and 2 times that length; none if training has a single length."""
    return sorted({math.ceil(factor * trained[-1]) for factor in FACTORS}) if len(trained) > 1 else []


def draw_lengths(found: Sequence[AtLength], shortest: int, longest: int) -> Figure:
    """Draw the scores by length; training lengths are shaded, lengths out of reach are crosses."""
    plot = Plot(4.2, 2.5, "Scores by length (training lengths shaded)", "length", "share right")
    axes = plot.axes
    scored = [at for at in found if at.out_of_reach is None]
    missing = [at for at in found if at.out_of_reach is not None]
    low, high = min(shortest, found[0].length), max(longest, found[-1].length)
    margin = 0.04 * (high - low) or 0.5
    axes.axvspan(shortest - margin / 2, longest + margin / 2, color="0.92")
    axes.hlines((0, 0.5, 1), low - margin, high + margin, colors="0.8", linewidths=1)
    for name, colour, mark in (
        ("accuracy", "0.55", "s--"),
        ("exact_match", "C0", "o-"),
        ("free_accuracy", "C1", "^:"),
    ):
        found_at = {at.length: getattr(at, name) for at in scored if getattr(at, name) is not None}
        if found_at:
            axes.plot([*found_at], [*found_at.values()], mark, color=colour, markersize=4)
    axes.plot([at.length for at in missing], [0] * len(missing), "x", color="C3", markersize=6)
    legend = "exact match (blue), next-token (grey) and free-running accuracy (orange)"
    plot.write(high + margin, 1.07, legend, anchor="rd")
    if missing:
        reason = "\n".join(textwrap.wrap(f"x out of reach: {missing[0].out_of_reach}", 70))
        plot.write(high, 0.07, reason, size=TICK_SIZE - 1, colour="C3", anchor="rd")
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(-0.05, 1.05)
    shown = sorted({low, longest, *(at.length for at in found)})
    plot.xticks(shown, shown)
    plot.yticks((0, 0.5, 1), ("0", "0.5", "1"))
    return plot.figure


class Lengths(Diagnostic):
    """Scalars ``length/<n>/accuracy|exact_match|free_accuracy``, on a fixed set of examples per length, and a picture.

    ``accuracy`` is next-token accuracy: the model reads the true tokens before each target. ``free_accuracy``, for
    lengths past the training range only, is the share of right tokens if the model reads its own predictions instead,
    as in generation. It is measured on the first examples of the same set, with 65,536 tokens in total, but at least
    64 examples. ``exact_match`` is the same either way.

    A length that the model or the task does not support is out of reach, with the reason, and has no scalars.

    Args:
        every: validations from one look to the next; None looks at the end only, 0 switches the diagnostic off.
        lengths: in the unit of the task; None: the longest training length and 1.25, 1.5 and 2 times that length if
            training draws its lengths from a range, else none.
        n_examples: number of examples at each length.

    Raises:
        ValueError: ``lengths`` is not a list of whole numbers, or ``n_examples < 1``.
    """

    def __init__(self, every: int | None = None, lengths: Collection[int] | None = None, n_examples: int = 512) -> None:
        super().__init__(every)
        whole = lengths is None or (
            isinstance(lengths, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in lengths)
        )
        if not whole:
            raise ValueError(f"lengths={lengths} must be a list of whole numbers, [20,30] say, or null")
        if lengths is not None and min(lengths, default=1) < 1:
            raise ValueError(f"lengths={lengths} must all be at least 1")
        if n_examples < 1:
            raise ValueError(f"n_examples={n_examples} must be at least 1")
        self.lengths = None if lengths is None else sorted(set(lengths))
        self.n_examples = n_examples

    def check(self, task: Task, max_context_length: int) -> None:
        for length in self._lengths(task):
            n_tokens = task.seq_len_at(length)
            size = 2 * TOKEN_BYTES * self.n_examples * n_tokens
            # Longer sequences are out of reach and are not generated.
            if n_tokens <= MOST_CONTEXT and size > memory_bytes():
                raise ValueError(
                    f"n_examples={self.n_examples} at length {length} would take at least {as_text(size)}, and there "
                    f"are {as_text(memory_bytes())}; use fewer"
                )

    def _lengths(self, task: Task) -> Sequence[int]:
        return default_lengths(task.lengths) if self.lengths is None else self.lengths

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        names = []
        for length in self._lengths(task):
            # A length out of reach has no scalars.
            with suppress(ValueError):
                model_for_length(model, task, length)
                names += [tag(length, score) for score in SCORES]
                names += [tag(length, FREE)] if scored_freely(task, length) else []
        return names

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        trained = probe.data.task.lengths
        found = at_lengths(model, probe.data, self._lengths(probe.data.task), self.n_examples)
        values = {tag(at.length, score): value for at in found for score, value in at.scores().items()}
        reasons = {f"length/{at.length}": at.out_of_reach for at in found if at.out_of_reach is not None}
        if values:
            yield Scalars(values)
        if reasons:
            yield OutOfReach(reasons)
        if found:
            yield Picture("length/curve", partial(draw_lengths, found, trained[0], trained[-1]))
