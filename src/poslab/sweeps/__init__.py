"""A grid or a search: its jobs, their folders, and the comparison at the end."""
