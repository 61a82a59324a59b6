"""What ``make bench`` measures: each module here is a part, with ``measure(repeats, full)`` that returns Markdown."""
