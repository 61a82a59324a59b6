"""What a person meets: the console, ``key=value`` arguments, errors in one line."""
