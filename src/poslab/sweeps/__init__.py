"""Runs the jobs of a grid or a search, each in a folder of its own, and compares them at the end."""
