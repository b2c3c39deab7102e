"""What a batch script of Slurm says: its options, the variables it sets, and its `srun`s.

It is read as far as that can be done without running it: what a shell would compute is unknown.

Source: sbatch(1), srun(1) of 22.05.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
_STOPS = frozenset({"||", "&&", "|", "&", ";", ";;", ")", ">", ">>", "<", "<<", "<<<", "|&", ">&"})
_COMPUTED = re.compile(r"(export\s+)?([A-Za-z_]\w*=.*(?:\$\(|`).*)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^${}`]*))?\})")

Options = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One `srun`.

    Attributes:
        options: Long names without dashes, and values; "" of those that have none.
        command: What each task runs; variables in it are not replaced yet.
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
    for line in _logical_lines(text):
        stripped = line.strip()
        if directive := _DIRECTIVE.match(stripped):
            _take_directive(script, directive[1].strip())
            continue
        if not stripped or stripped.startswith("#"):
            continue
        script.commands.append(stripped)
        _take_command(script, stripped, known)
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

    result = _REFERENCE.sub(replaced, word)
    return None if unknown or "$" in _REFERENCE.sub("", word) or "`" in word else result


def _logical_lines(text: str) -> Iterator[str]:
    """Lines, those that end with a backslash joined to the next; bodies of << are left out."""
    held, end = "", ""
    for line in text.replace("\r\n", "\n").split("\n"):
        if end:
            end = "" if line.strip() == end else end
            continue
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            held += line[:-1] + " "
            continue
        whole, held = held + line, ""
        if here := re.search(r"(?<!<)<<-?\s*['\"]?(\w+)['\"]?", whole):
            end = here[1]
        yield whole
    if held:
        yield held


def _take_directive(script: Script, text: str) -> None:
    if script.commands:
        script.late.append(text)
        return
    words = _words(text, comments=True)
    if words and words[0] in _HET:
        script.groups.append({})
        return
    script.groups[-1].update(options_of(words)[0])


def _take_command(script: Script, line: str, known: dict[str, str]) -> None:
    computed = _COMPUTED.fullmatch(line)
    words = _words(line)
    if computed:  # not split where a command stands within it
        words = [*(["export"] if computed[1] else []), computed[2]]
    if step := _step(words):
        script.steps.append(step)
        return
    if script.steps:
        return
    exported = words[:1] == ["export"]
    pairs = [found for word in words[exported:] if (found := _ASSIGNMENT.fullmatch(word))]
    if exported:
        for word in words[1:]:
            if found := _ASSIGNMENT.fullmatch(word):
                script.exports.append((found[1], found[2]))
            elif word in known:
                script.exports.append((word, known[word]))
            else:
                script.handed_on.append(word)
    elif pairs and len(pairs) == len(words):
        known.update((found[1], found[2]) for found in pairs)
    elif words and words[0] not in ("set", ":", "echo", "trap", "if", "fi", "then", "else"):
        script.setup.append(line)


def _step(words: Sequence[str]) -> Step | None:
    """The step that a line starts, after assignments, `time`, `exec` and the like."""
    names = [word.rpartition("/")[2] for word in words]
    at = names.index("srun") if "srun" in names else len(words)
    if not all(_ASSIGNMENT.fullmatch(word) or word in _BEFORE for word in words[:at]):
        return None
    rest = list(words[at + 1 :])
    end = next((i for i, each in enumerate(rest) if each in _STOPS), len(rest))
    in_background = end < len(rest) and rest[end] == "&"
    rest = rest[: end - 1] if end and end < len(rest) and _is_fd(rest, end) else rest[:end]
    options, used = options_of(rest)
    command = tuple(rest[used:])
    return Step(options=options, command=command, in_background=in_background) if command else None


_BEFORE = frozenset({"time", "exec", "if", "!", "then", "do", "{", "(", "command", "env", "else"})


def _is_fd(words: Sequence[str], end: int) -> bool:
    """Whether the word before a > is its descriptor, as in 2>&1."""
    return words[end].startswith(">") and words[end - 1] in ("1", "2")


def _words(text: str, *, comments: bool = True) -> list[str]:
    """As a shell splits them; by spaces where quotes don't match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#" if comments else ""
    try:
        return list(lexer)
    except ValueError:
        return text.split()
