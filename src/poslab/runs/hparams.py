"""The settings of a job in the form that TensorBoard shows."""

import os
from dataclasses import asdict

import yaml

from poslab.config.identity import Role, choice_of, flat, without
from poslab.config.schema import TrainConfig


def hparams(job: TrainConfig) -> dict[str, int | float | str | bool]:
    """The settings that decide the result, flat, with the types that the HParams tab supports."""
    settings = without(flat(asdict(job)), Role.OUTPUT, Role.ORIGIN, Role.RESTART, Role.REPLICAS)
    named = {key: value for key, value in settings.items() if not key.startswith(("pos.", "task."))}
    for group, options in (("pos", job.pos), ("task", job.task)):
        # A class is shown by the name of its module, as on the command line. Its options are one text, because the tab
        # takes its columns from a single run, and another scheme has other options.
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
    """Replace the path of the home folder by ``~``: a dashboard may be shown to other people."""
    home = os.path.expanduser("~")
    return text.replace(f"{home}{os.sep}", f"~{os.sep}") if len(home) > 1 else text
