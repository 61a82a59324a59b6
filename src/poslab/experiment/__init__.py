"""One job, from its configuration to a finished run folder."""
