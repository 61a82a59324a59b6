"""Names of the files and folders in a run's folder and in a sweep's folder."""

CONFIG_FILE = "config.yaml"
RESULT_FILE = "result.json"
METRICS_FILE = "metrics.csv"
# In a sweep's folder, beside those of its jobs.
INVALID_FILE = "invalid.json"
CLAIMS_FILE = "claims.json"
SUPERSEDED = "superseded"
COPIES = "copies"
"""The folder of a run's replicas; each has a run folder in it."""
EVENTS = "events.out.tfevents.*"
