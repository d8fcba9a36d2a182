"""`python -m waystation`: the command line."""

from waystation.cli import main

if __name__ == "__main__":
    main()
