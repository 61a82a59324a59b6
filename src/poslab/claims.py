"""``python -m poslab.claims``: see `poslab.comparison.claims`."""

from poslab.comparison.claims import main

if __name__ == "__main__":
    main()
