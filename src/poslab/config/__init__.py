"""What a job is: the schema of its configuration, its rules, and the settings that decide its result."""

# Hydra needs the schema before it composes a configuration.
from poslab.config.registration import register

register()
