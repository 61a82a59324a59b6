"""Train one model, or a grid of them with ``-m``.

python train.py                                   the default job
python train.py pos=sinusoidal model.n_heads=8    another position scheme, eight heads
"""

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from poslab import cli, signals, startup

CONFIG_DIR = Path(__file__).resolve().parent / "conf"


@hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")
def main(config: DictConfig) -> Any:
    # Here and not at the top: torch and Lightning take seconds, and --help or a typing error needs neither.
    with startup.quick_imports():
        from poslab.experiment import run

    with cli.job_errors(CONFIG_DIR):
        return run(config, *cli.folder_and_overrides(), brief=cli.in_sweep())


if __name__ == "__main__":
    signals.answer_signals()
    startup.quick_exit()
    with cli.one_line_errors(CONFIG_DIR):
        cli.check_typed()
        cli.require_preflight()
        main()
