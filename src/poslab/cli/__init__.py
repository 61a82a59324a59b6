"""The command line: the console, ``key=value`` arguments, errors in one line."""
