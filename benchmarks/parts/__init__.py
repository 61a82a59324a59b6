"""The parts of ``make bench``: each module has a function ``measure(repeats, full)`` that returns Markdown."""
