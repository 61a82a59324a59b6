"""What a job is: the schema of its configuration, the rules it keeps, and the settings that decide its result."""

# Hydra has to know the schema before a configuration is composed.
from poslab.config.registration import register

register()
