"""`python -m drumbeat`: the same as the command `drumbeat`."""

from __future__ import annotations

from drumbeat.cli.main import main

if __name__ == "__main__":
    main()
