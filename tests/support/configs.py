"""Configurations as the commands compose them, and the choices in conf."""

from support.paths import CONF


def compose(*overrides: str):
    """The configuration that ``train.py`` would get."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    import poslab.config.schema  # noqa: F401  (registers the schema)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", overrides=list(overrides))


CHOICES = [
    # A folder within a group is a part of the choice: experiment=claims/depth.
    tuple(path.relative_to(CONF).with_suffix("").as_posix().split("/", maxsplit=1))
    for path in sorted(CONF.rglob("*.yaml"))
    if path.parent != CONF and not path.is_relative_to(CONF / "hydra")
]
