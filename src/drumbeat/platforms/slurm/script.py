"""What a batch script of Slurm says: its options, the variables it sets, and its `srun`s.

It is read as far as that can be done without running it: what a shell would compute is unknown.

Source: sbatch(1), srun(1) of 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drumbeat.platforms.shell_text import (
    LITERAL,
    Line,
    commands,
    is_redirection,
    lines,
    plain,
    words_of,
)

MAX_WORD = 1 << 17
"""Linux takes no longer argument: MAX_ARG_STRLEN."""
_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_HET = ("hetjob", "packjob")
_SHORT = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "m": "distribution", "p": "partition",
    "J": "job-name", "o": "output", "t": "time", "G": "gpus", "A": "account", "q": "qos",
    "C": "constraint", "K": "kill-on-bad-exit", "W": "wait", "l": "label", "u": "unbuffered",
    "D": "chdir", "e": "error", "w": "nodelist", "x": "exclude", "r": "relative", "i": "input",
    "d": "dependency", "b": "begin", "M": "clusters", "a": "array", "L": "licenses", "B":
    "extra-node-info", "S": "core-spec", "T": "threads", "k": "no-kill", "O": "overcommit",
    "s": "oversubscribe", "Q": "quiet", "v": "verbose", "X": "disable-status", "E":
    "preserve-env", "H": "hold", "I": "immediate", "Z": "no-allocate",
}  # fmt: skip
_WITHOUT_VALUE = frozenset({
    "label", "unbuffered", "no-kill", "overcommit", "oversubscribe", "quiet", "verbose",
    "disable-status", "preserve-env", "hold", "no-allocate", "contiguous", "exact", "overlap",
    "interactive", "multi-prog", "pty", "reboot", "spread-job", "use-min-nodes", "test-only",
    "requeue", "no-requeue", "parsable", "wait-all-nodes", "exclusive", "bcast",
    "kill-on-bad-exit", "immediate", "container-mount-home", "no-container-mount-home",
    "container-remap-root", "no-container-remap-root", "container-writable",
    "container-readonly", "no-container-entrypoint", "container-entrypoint", "help", "usage",
    "version",
})  # fmt: skip
"""Or with one that only = can give."""
_LETTERS_WITHOUT_VALUE = "lukOsQvXEHIZK"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(rf"(?<!{LITERAL})\$(?:(\w+)|\{{(\w+)(?::?-([^${{}}`]*))?\}})", re.ASCII)
_COMPUTED = re.compile(rf"(?<!{LITERAL})[$`]")
_KEYWORDS = frozenset({"time", "exec", "if", "!", "then", "do", "{", "command", "env", "else"})
_WITHOUT_EFFECT = frozenset({"set", ":", "echo", "trap", "fi", "done", "exit", "}", "["})

Options = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One `srun`.

    Attributes:
        options: Long names without dashes, and values; "" of those that have none.
        command: What each task runs; `filled` replaces the variables in it.
        in_background: Whether the script goes on beside it.
    """

    options: Options
    command: tuple[str, ...]
    in_background: bool = False


@dataclass
class Script:
    """A batch script.

    Attributes:
        groups: Options of sbatch, of each component of a heterogeneous job; one of other jobs.
        late: Directives after the first command, which sbatch does not read.
        exports: Variables that are set for the steps, with what their values were written as, in
            their order; of those before the first step that trains.
        handed_on: Variables that are exported as sbatch was given them.
        steps: In their order.
        setup: Other lines before the first step.
        commands: All lines that run something.
    """

    groups: list[Options] = field(default_factory=lambda: [{}])
    late: list[str] = field(default_factory=list)
    exports: list[tuple[str, str]] = field(default_factory=list)
    handed_on: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def options(self) -> Options:
        """Those of sbatch; of a heterogeneous job, the first component's."""
        return self.groups[0]

    @property
    def training(self) -> Step | None:
        """The step that most likely trains: the first that runs drumbeat, else Python, else any."""
        for words in (("drumbeat",), ("python", ".py")):
            for step in self.steps:
                if any(each in word for word in step.command for each in words):
                    return step
        return self.steps[0] if self.steps else None


def read(text: str) -> Script:
    """The script in a text; whatever is in it, nothing is raised."""
    script = Script()
    known: dict[str, str] = {}
    for line in lines(text):
        stripped = line.text.strip()
        if directive := _DIRECTIVE.match(stripped):
            _take_directive(script, directive[1].strip())
        elif line.words:
            script.commands.append(stripped)
            _take_line(script, line, known)
    return script


def options_of(words: Sequence[str]) -> tuple[Options, int]:
    """The options that words begin with, and how many words these are."""
    found: Options = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _WITHOUT_VALUE and at < len(words):
                value, at = words[at], at + 1
        else:
            letter, value = word[1], word[2:].removeprefix("=")
            name = _SHORT.get(letter, letter)
            if not value and letter not in _LETTERS_WITHOUT_VALUE and at < len(words):
                value, at = words[at], at + 1
        found[name] = value
    return found, at


def filled(word: str, variables: Mapping[str, str]) -> str | None:
    """`word` with its variables replaced; None where a shell would have to compute it.

    Nor is one replaced that becomes longer than `MAX_WORD`: a few lines can stand for any length.
    """
    unknown, length = False, len(word)

    def replaced(found: re.Match[str]) -> str:
        nonlocal unknown, length
        value = variables.get(found[1] or found[2], found[3])
        length += len(value or "")
        unknown |= value is None or length > MAX_WORD
        return "" if unknown else value or ""

    if _COMPUTED.search(_REFERENCE.sub("", word)):
        return None
    result = plain(_REFERENCE.sub(replaced, word))
    return None if unknown else result


def _take_directive(script: Script, text: str) -> None:
    if script.commands:
        script.late.append(text)
        return
    words = [plain(word) for word in words_of(text)]
    if words and words[0] in _HET:
        script.groups.append({})
        return
    script.groups[-1].update(options_of(words)[0])


def _take_line(script: Script, line: Line, known: dict[str, str]) -> None:
    for words, end in commands(line.words):
        if step := _step(words, in_background=end == "&"):
            if not script.steps:
                script.exports += _assignments(words)
            script.steps.append(step)
        elif not script.steps and not _take_variables(script, words, known):
            text = line.text.strip()
            if words[0] not in _WITHOUT_EFFECT and text not in script.setup[-1:]:
                script.setup.append(text)


def _take_variables(script: Script, words: list[str], known: dict[str, str]) -> bool:
    """Whether the command only sets variables, or hands them on."""
    if words[0] != "export":
        pairs = _assignments(words)
        known.update(pairs)
        return len(pairs) == len(words)
    for word in words[1:]:
        if pair := _assignments([word]):
            script.exports += pair
        elif word in known:
            script.exports.append((word, known[word]))
        else:
            script.handed_on.append(word)
    return True


def _assignments(words: Sequence[str]) -> list[tuple[str, str]]:
    """Those that the words begin with."""
    found: list[tuple[str, str]] = []
    for word in words:
        pair = _ASSIGNMENT.fullmatch(word)
        if pair is None:
            break
        found.append((pair[1], pair[2]))
    return found


def _step(words: Sequence[str], *, in_background: bool) -> Step | None:
    """The step that a command starts, after assignments, `time`, `exec` and the like."""
    names = [word.rpartition("/")[2] for word in words]
    if "srun" not in names:
        return None
    at = names.index("srun")
    if not all(_ASSIGNMENT.fullmatch(word) or word in _KEYWORDS for word in words[:at]):
        return None
    rest = list(words[at + 1 :])
    rest = rest[: next((i for i, each in enumerate(rest) if is_redirection(each)), len(rest))]
    options, used = options_of(rest)
    command = tuple(rest[used:])
    if not command:
        return None
    options = {name: plain(value) if "$" not in value else value for name, value in options.items()}
    return Step(options=options, command=command, in_background=in_background)
