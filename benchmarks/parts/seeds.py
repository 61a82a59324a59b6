"""Compare ways to train several seeds: as one batched computation, one after another, and in parallel processes."""

import torch
from bare_loop import BareModel, train
from measure import TRAIN, Watched, in_turn, median, process, seconds_of, watched_run
from tables import table

REPEATS = 3
COUNTS = (8, 32)
TOGETHER = 16


def sweep(*overrides: str) -> float:
    return process(TRAIN, "-m", *overrides).seconds


def measure(repeats: int, full: bool) -> str:
    # Steps take a second and sweeps half a minute, so steps are repeated more often.
    return "\n\n".join([replica_steps(3 * repeats), sweeps(max(1, repeats - 1), full)])


def replica_steps(repeats: int) -> str:
    steps = 120

    def bare() -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        seconds = seconds_of(lambda: train(BareModel(), steps))
        torch.set_num_threads(threads)
        return seconds / steps

    def together(seeds: int) -> float:
        run: Watched = watched_run(f"seeds={seeds}", "trainer.max_epochs=1", "diagnostics=none")
        return run.stepping / (run.steps - 1) / seeds

    found = in_turn({"bare": bare, "one": lambda: together(1), "together": lambda: together(TOGETHER)}, repeats)
    base = median(found["bare"])
    rows = [
        (name, 1 / median(taken), base / median(taken))
        for name, taken in (
            ("bare PyTorch loop", found["bare"]),
            ("poslab", found["one"]),
            (f"poslab, seeds={TOGETHER}", found["together"]),
        )
    ]
    return "\n\n".join(
        [
            "## Steps of all replicas per second",
            "Between the first and the last step, with logging and without validation.",
            table(("", "replica steps per second", "ratio to the bare loop"), rows),
        ]
    )


def sweeps(repeats: int, full: bool) -> str:
    ways = {"single": lambda: process(TRAIN, "seed=0").seconds}
    for n in COUNTS:
        if n == COUNTS[0] or full:
            ways[f"sweep {n}"] = lambda n=n: sweep(f"seed=range({n})")  # type: ignore[misc]
        ways[f"joblib {n}"] = lambda n=n: sweep(f"seed=range({n})", "hydra/launcher=joblib")  # type: ignore[misc]
        ways[f"together {n}"] = lambda n=n: sweep(f"seeds={n}")  # type: ignore[misc]
        if full:
            ways[f"singles {n}"] = lambda n=n: sum(  # type: ignore[misc]
                process(TRAIN, f"seed={seed}").seconds for seed in range(n)
            )
    found = {name: median(taken) for name, taken in in_turn(ways, repeats).items()}
    rows = []
    for n in COUNTS:
        singles = found.get(f"singles {n}", n * found["single"])
        commands = {
            f"{n} times `train.py seed=..`": (singles, "" if full else f"{n} x the median of one run"),
            f"`-m seed=range({n})`": (found.get(f"sweep {n}"), "with comparison"),
            f"`-m seed=range({n}) hydra/launcher=joblib`": (found[f"joblib {n}"], "with comparison"),
            f"`-m seeds={n}`": (found[f"together {n}"], "with comparison"),
        }
        rows += [
            (name, seconds, seconds / singles, note)
            for name, (seconds, note) in commands.items()
            if seconds is not None
        ]
    return "\n\n".join(
        [
            "## Sweeps over seeds",
            "The default job with several seeds, from the start of the process to its end. A sweep draws only the "
            "first and the last pictures.",
            table(("command", "s", "share of single runs", "note"), rows),
        ]
    )
