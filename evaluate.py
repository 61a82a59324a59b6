"""Score the model of a run, on the run's validation set, other examples or other lengths.

python evaluate.py run=outputs/runs/NAME                        on the run's validation set
python evaluate.py run=outputs/runs/NAME lengths=20,25,30,40    at these lengths too
python evaluate.py run=outputs/runs/NAME examples=5000 seed=7   on other examples
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poslab.cli.arguments import MOST_EXAMPLES, MOST_SEED, Option, command, whole, whole_numbers
from poslab.errors import ConfigError
from poslab.system.startup import quick_imports

if TYPE_CHECKING:
    from poslab.evaluation.lengths import AtLength

OPTIONS = {
    "run": Option("folder of a run or of a sweep's job; latest: the newest in outputs/runs"),
    "checkpoint": Option("last (default), best, step_<n>, or a file", str, "last"),
    "lengths": Option("score at these lengths too: 20,25,30,40", whole_numbers, []),
    "examples": Option("number of examples; default: the run's validation set", whole(1, MOST_EXAMPLES)),
    "seed": Option("seed of the validation set; default: the run's seed", whole(0, MOST_SEED)),
    "device": Option("auto (default): an accelerator if there is one; or cpu, cuda, ...", str, "auto"),
    "output": Option("write the numbers to this file too, as JSON", Path),
}


def main(values: dict[str, Any]) -> None:
    # Imported here, so that a mistyped argument is reported without importing torch.
    from poslab.trained import choose_device, find_checkpoint, find_run, in_precision, load

    if values["output"]:
        check_output(values["output"])
    folder = find_run(values["run"])
    checkpoint = find_checkpoint(folder, values["checkpoint"])
    with quick_imports():
        import torch

        from poslab.build import check_scoring_memory
        from poslab.data.module import SeedData
        from poslab.evaluation.lengths import at_lengths
        from poslab.evaluation.metrics import score_all
        from poslab.runs.checkpoint import step_of
        from poslab.system.threads import choose_threads
    job, task, model = load(folder, checkpoint)
    device = choose_device(values["device"])
    # The same number of threads as in training: it changes the order of sums and so their last digits.
    torch.set_num_threads(choose_threads(job.trainer.threads, job.data.batch_size, task.seq_len, job.model.d_model))
    seed = job.seed if values["seed"] is None else values["seed"]
    n_examples = values["examples"] or job.data.n_val_examples(task.seq_len)
    # By default as many examples per length as the run's own diagnostic used.
    at_each = values["examples"] or job.diagnostics.get("lengths", {}).get("n_examples", n_examples)
    if values["lengths"] and not (isinstance(at_each, int) and 1 <= at_each <= MOST_EXAMPLES):
        raise ConfigError(f"diagnostics.lengths.n_examples={at_each} of {folder} is not usable; give examples=")
    most = max(n_examples, at_each if values["lengths"] else 0)
    check_scoring_memory(replace(job, data=replace(job.data, val_examples=most)), task)
    data = SeedData(task, replace(job.data, val_examples=n_examples), seed, model.vocab_size)
    with in_precision(job.trainer.precision, device):
        own = score_all(model.to(device), data.validation.batches).means()
        lengths = at_lengths(model, data, values["lengths"], at_each)

    metrics = {f"val/{name}": value for name, value in own.items()}
    for at in lengths:
        metrics |= {f"length/{at.length}/{score}": value for score, value in at.scores().items()}
    found = {
        "run": str(folder),
        "checkpoint": str(checkpoint),
        "step": step_of(checkpoint),
        "seed": seed,
        "examples": n_examples,
        "metrics": metrics,
        "out_of_reach": {at.length: at.out_of_reach for at in lengths if at.out_of_reach},
    }
    sys.stdout.write(report(found, own, lengths))
    if values["output"]:
        write(values["output"], found)


def report(found: dict[str, Any], own: dict[str, float], lengths: "list[AtLength]") -> str:
    """The scores as a text table, one row for the validation set and one per length.

    Accuracy is given twice: of the next token, after the true tokens before it, and past the training lengths also
    free-running, after the model's own predictions.
    """
    lines = [
        f"run       {found['run']}, checkpoint {Path(found['checkpoint']).stem}, step {found['step']}",
        f"examples  {found['examples']} a row, seed {found['seed']}",
        f"{'set':<12}{'loss':>9}{'next token':>12}{'exact match':>13}{'free-running':>14}",
        f"{'validation':<12}{own['loss']:>9.4f}{own['accuracy']:>12.1%}{own['exact_match']:>13.1%}",
    ]
    for at in lengths:
        name = f"{f'length {at.length}':<12}{'-':>9}"
        if at.accuracy is None:
            lines.append(f"{name}  out of reach: {at.out_of_reach}")
            continue
        free = "" if at.free_accuracy is None else f"{at.free_accuracy:>14.1%}"
        lines.append(f"{name}{at.accuracy:>12.1%}{at.exact_match or 0:>13.1%}{free}")
    return "\n".join(lines) + "\n"


def check_output(path: Path) -> None:
    """Refuse a file that must not be replaced: of a run or a sweep, or no regular file.

    Raises:
        ConfigError: names the file and the reason.
    """
    from poslab.runs.names import CONFIG_FILE, METRICS_FILE, RESULT_FILE, SWEEP_FILE
    from poslab.system.reading import read_json

    if not os.path.lexists(path) and path.name not in (CONFIG_FILE, METRICS_FILE, RESULT_FILE):
        return
    if path.exists() and not path.is_file():
        # Writing atomically would replace a device such as /dev/null by a regular file.
        raise ConfigError(f"output={path} exists and is not a regular file; give another file")
    marks = ((CONFIG_FILE, RESULT_FILE), (SWEEP_FILE,))
    parents = path.parent.resolve() / path.name
    owners = [
        folder for folder in parents.parents if any(all((folder / name).exists() for name in names) for names in marks)
    ]
    try:
        # What this command wrote there before can be replaced.
        ours = {"run", "checkpoint", "out_of_reach"} <= set(read_json(path))
    except (OSError, TypeError, ValueError):
        ours = False
    if owners and not ours:
        raise ConfigError(f"output={path} is a file of {owners[0]}; give another file")


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the numbers to a JSON file, atomically.

    Raises:
        ConfigError: it cannot be written.
    """
    from poslab.system.files import write_atomically

    try:
        write_atomically(path, json.dumps(found, indent=2).encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"output={path} cannot be written ({error.strerror}); give another file") from error


if __name__ == "__main__":
    command(main, __doc__, OPTIONS)
