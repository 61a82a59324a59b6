"""The settings that a run folder stores."""

from pathlib import Path
from typing import Any

import yaml

from poslab.errors import ConfigError
from poslab.runs.names import CONFIG_FILE


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in a run folder's ``config.yaml``.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    try:
        content = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} cannot be read ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{folder / CONFIG_FILE} holds no configuration")
    return content
