"""``python -m whymatch`` is the command."""

from whymatch.cli import main

if __name__ == "__main__":
    main()
