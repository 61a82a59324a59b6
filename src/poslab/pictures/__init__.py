"""Draw figures from arrays, in a separate process where possible."""
