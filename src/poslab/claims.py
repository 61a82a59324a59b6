"""Entry point of ``python -m poslab.claims``; the code is in `poslab.comparison.claims`."""

from poslab.comparison.claims import main

if __name__ == "__main__":
    main()
