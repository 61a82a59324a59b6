"""The settings that a run folder stores."""

from pathlib import Path
from typing import Any

from poslab.errors import ConfigError
from poslab.runs.names import CONFIG_FILE
from poslab.system.reading import read_yaml


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in a run folder's ``config.yaml``.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    try:
        content = read_yaml(folder / CONFIG_FILE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{folder / CONFIG_FILE} cannot be read ({reason})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{folder / CONFIG_FILE} holds no configuration")
    return content
