"""Which of a manifest's words `drumbeat run` would refuse."""

from __future__ import annotations

from collections.abc import Sequence


def option_of_run(words: Sequence[str]) -> str:
    """The first option that `drumbeat run` has not, "" where it has all.

    Args:
        words: What stands behind `drumbeat run`.
    """
    from typer.main import get_command

    from drumbeat.cli.options import app

    commands = getattr(get_command(app), "commands", {})
    known = {
        name: each
        for each in commands["run"].params
        for name in (*each.opts, *each.secondary_opts)
        if name.startswith("-")
    }
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        name, equals, _ = word.partition("=")
        if not word.startswith("--"):
            name, equals = word[:2], word[2:]
        if name in ("--help", "-h"):
            return ""
        if name not in known:
            return name
        is_flag = getattr(known[name], "is_flag", False)
        at += 1 if is_flag or equals else 2
    return ""
