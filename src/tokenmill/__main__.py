"""``python -m tokenmill``: the command line."""

from tokenmill.cli.main import main

if __name__ == "__main__":
    main()
