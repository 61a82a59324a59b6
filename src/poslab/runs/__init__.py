"""One run folder: claimed, filled, closed, and opened again to resume."""
