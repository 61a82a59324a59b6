"""Measure whole processes, imports included: the time of the default run, its phases, and its memory."""

from functools import partial
from pathlib import Path

from measure import HERE, TRAIN, Ended, in_turn, median, process
from tables import ratios, table

REPEATS = 5

BARE = "bare PyTorch loop"
RUN = "poslab, all diagnostics"
PLAIN = "poslab, diagnostics=none"
BY_HAND = "Lightning, by hand"
NANO = "nanoGPT's way"
IMPORTS = "import lightning, hydra"
MODEL = "import lightning, build the model"


def measure(repeats: int, full: bool) -> str:
    scripts = {
        BARE: ("bare_loop.py",),
        NANO: ("nano_style.py",),
        BY_HAND: ("lightning_loop.py",),
        PLAIN: (TRAIN, "diagnostics=none"),
        RUN: (TRAIN,),
        IMPORTS: ("imports.py", "hydra"),
        MODEL: ("imports.py", "model"),
    }
    found: dict[str, list[Ended]] = in_turn(
        {name: partial(process, str(HERE / Path(script)), *rest) for name, (script, *rest) in scripts.items()}, repeats
    )
    whole = {name: [one.seconds for one in found[name]] for name in (BARE, NANO, BY_HAND, PLAIN, RUN)}
    to_first_step = {
        name: [one.marks["first_step"] - one.marks["started"] for one in found[name]]
        for name in (BARE, NANO, BY_HAND, PLAIN, RUN)
    }
    # Without the diagnostics of the untrained model, which run before the first step.
    to_first_step[RUN] = [one.phases()["start-up"] for one in found[RUN]]
    start = {IMPORTS: [one.seconds for one in found[IMPORTS]], **to_first_step}
    memory = {name: [one.memory for one in found[name]] for name in (MODEL, BARE, BY_HAND, PLAIN, RUN)}
    phases = ("start-up", "fit", "diagnostics", "shutdown")
    split = [
        (name, *(median([one.phases()[phase] for one in found[name]]) for phase in phases)) for name in (PLAIN, RUN)
    ]
    return "\n\n".join(
        [
            "## The whole default run",
            "360 steps of 16 rows; a process from its start to its end.",
            ratios(whole, BARE),
            "Phases, median s. Start-up ends at the first optimiser step; it includes the validation of the untrained "
            "model, but not its diagnostics.",
            table(("", *phases), split),
            "## From the start of the process to the first optimiser step",
            "Without diagnostics; the time of the imports is that of the whole process.",
            ratios(start, IMPORTS),
            "## Peak memory",
            ratios(memory, MODEL, "MiB"),
        ]
    )
