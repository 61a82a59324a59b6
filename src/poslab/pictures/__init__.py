"""Figures from arrays, and the process that draws them beside the training."""
