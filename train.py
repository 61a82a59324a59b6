"""Train one model, or a grid of them with ``-m``.

python train.py                                   the default job
python train.py pos=sinusoidal model.n_heads=8    another position scheme, eight heads
"""

import sys
from pathlib import Path
from typing import Any

import poslab

ROOT = Path(__file__).resolve().parent
USED = Path(str(poslab.__file__)).resolve().parent
if (ROOT / "src/poslab").is_dir() and ROOT / "src/poslab" != USED:
    # Before the other imports, which fail if that copy is older.
    sys.stderr.write(
        f"warning: Python imports poslab from {USED} and not from this checkout; to change that: "
        f"{sys.executable} -m pip install -e {ROOT}\n"
    )

import hydra
from omegaconf import DictConfig

from poslab.cli import console
from poslab.preflight.hydra import Preflight, require_preflight
from poslab.system import signals, startup

CONFIG_DIR = ROOT / "conf"


@hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")
def main(config: DictConfig) -> Any:
    # Here and not at the top: torch and Lightning take seconds, and --help or a typing error needs neither.
    with startup.quick_imports():
        from poslab.experiment.run import run
        from poslab.sweeps.search.pruning import open_trial
        from poslab.training.after_validation import AfterValidation

    with console.job_errors(CONFIG_DIR):
        folder, overrides = console.folder_and_overrides()
        trial = open_trial(folder)
        callbacks = [] if trial is None else [AfterValidation(trial.report)]
        job = Preflight.prepared or config
        return run(job, folder, overrides, brief=console.in_sweep(), callbacks=callbacks)


if __name__ == "__main__":
    startup.print_anything()
    signals.answer_signals()
    startup.quick_exit()
    with console.one_line_errors(CONFIG_DIR):
        console.check_typed()
        console.quote_conditions()
        require_preflight()
        main()
