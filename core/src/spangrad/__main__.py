"""`python -m spangrad`: the same as the `spangrad` command."""

from spangrad.cli import main

if __name__ == "__main__":
    main()
