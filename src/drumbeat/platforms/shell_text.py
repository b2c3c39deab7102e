"""Commands in the text of a shell's script, read as far as that can be done without running it.

Source: POSIX.1-2024, Shell Command Language, 2.2 (Quoting), 2.3 (Token Recognition).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LITERAL = "\0"
"""Stands in words before each $ and ` that a quote keeps from beginning anything."""
MAX_QUOTED = 1 << 18
"""Characters until a quote or a bracket has to be closed; else it is taken for an apostrophe."""
MAX_OPEN = 20
"""Lines with one that is not closed; of the others only the words between spaces are read."""
_OPERATORS = ";&|<>()"
_QUOTED = re.compile(r"[$`]")


class Operator(str):
    """A word that no quotes surround and that is the shell's own: &&, >, ( and the like."""

    __slots__ = ()


@dataclass(frozen=True)
class Line:
    """One line, with those that its quotes and backslashes join to it.

    Attributes:
        text: As it stands there.
        words: Without quotes; variables are not replaced, and comments are left out.
        wrong: Why they are only what stands between spaces; "" where a shell reads them so.
    """

    text: str
    words: tuple[str, ...]
    wrong: str = ""


def lines(text: str) -> Iterator[Line]:
    """The lines of a script; bodies of << are left out, and nothing is raised."""
    text = text.replace(LITERAL, "")
    if text.partition("\n")[0].endswith("\r"):
        text = text.replace("\r\n", "\n")
    at = unclosed = 0
    while at < len(text):
        try:
            if unclosed > MAX_OPEN:
                raise ValueError("no shell's script")
            words, end = _words(text, at)
            wrong = ""
        except ValueError as error:
            wrong = str(error)
            unclosed += 1
            end = _line_end(text, at)
            words = text[at:end].split()
        yield Line(text[at:end], tuple(words), wrong)
        at = end + 1
        for index, word in enumerate(words[:-1]):
            if isinstance(word, Operator) and word == "<<":
                at = _after(text, at, plain(words[index + 1]).removeprefix("-"))


def words_of(text: str) -> list[str]:
    """The words of one line; by spaces where quotes don't match."""
    return [word for line in lines(text) for word in line.words]


def commands(words: tuple[str, ...]) -> Iterator[tuple[list[str], str]]:
    """The simple commands of a line, each with the operator that ends it."""
    held: list[str] = []
    for word in words:
        if isinstance(word, Operator) and not is_redirection(word):
            if held:
                yield held, str(word)
            held = []
        else:
            held.append(word)
    if held:
        yield held, ""


def is_redirection(word: str) -> bool:
    """Whether it is one of >, <, &> and the like."""
    return isinstance(word, Operator) and not {"<", ">"}.isdisjoint(word)


def plain(word: str) -> str:
    """The word as a program would see it, its variables not replaced."""
    return word.replace(LITERAL, "")


def literal(text: str) -> str:
    """Text in which nothing begins a variable, as in single quotes."""
    return _QUOTED.sub(lambda found: LITERAL + found[0], text)


def _words(text: str, at: int) -> tuple[list[str], int]:
    """The words from `at` on, and where their line ends.

    Raises:
        ValueError: A quote is not closed.
    """
    found: list[str] = []
    word: str | None = None  # None between words, as "" is one
    is_number = True  # nothing but digits so far, without quotes
    while at < len(text) and (char := text[at]) != "\n":
        if char in " \t" or char in _OPERATORS:
            is_descriptor = char in "<>" and is_number
            if word is not None and not is_descriptor:
                found.append(word)
            word, is_number = None, True
            if char in _OPERATORS:
                end = at + 1
                while end < len(text) and text[end] in _OPERATORS and text[end] not in "()":
                    end += 1
                found.append(Operator(text[at:end]))
                at = end
            else:
                at += 1
            continue
        if char == "#" and word is None:
            return found, _line_end(text, at)
        piece, end = _piece(text, at)
        is_number = is_number and piece.isdecimal() and end == at + 1
        if text[at : at + 2] != "\\\n":
            word = (word or "") + piece
        at = end
    if word is not None:
        found.append(word)
    return found, at


def _piece(text: str, at: int) -> tuple[str, int]:
    """The next part of a word, without its quotes, and where it ends."""
    char = text[at]
    if char == "\\":
        after = text[at + 1 : at + 2]
        return ("" if after == "\n" else literal(after)), at + 2
    if char == "'":
        end = _find(text, "'", at + 1)
        return literal(text[at + 1 : end]), end + 1
    if char == '"':
        return _double(text, at + 1)
    if char in "$`":
        end = _computed(text, at)
        return text[at:end], end
    return char, at + 1


def _double(text: str, at: int) -> tuple[str, int]:
    """What is in double quotes from `at` on, and where they end."""
    parts: list[str] = []
    last = min(len(text), at + MAX_QUOTED)
    while at < last and text[at] != '"':
        after = text[at + 1 : at + 2]
        if text[at] == "\\" and after and after in '$`"\\\n':
            parts.append("" if after == "\n" else literal(after))
            at += 2
        elif text[at] in "$`":
            end = _computed(text, at)
            parts.append(text[at:end])
            at = end
        else:
            parts.append(text[at])
            at += 1
    if at >= last:
        raise ValueError('a " is not closed')
    return "".join(parts), at + 1


def _computed(text: str, at: int) -> int:
    """The end of what begins with a $ or a `: a command or a variable in brackets, or itself."""
    if text[at] == "`":
        return _find(text, "`", at + 1) + 1
    pair = {"(": ")", "{": "}"}.get(text[at + 1 : at + 2])
    if pair is None:
        return at + 1
    opening, depth = text[at + 1], 0
    last = min(len(text), at + MAX_QUOTED)
    here = at + 1
    while here < last:
        char = text[here]
        if char in "'\"" and opening == "(":
            here = _find(text, char, here + 1)
        elif char == "\\":
            here += 1
        elif char == opening:
            depth += 1
        elif char == pair:
            depth -= 1
            if not depth:
                return here + 1
        here += 1
    raise ValueError(f"a {opening} is not closed")


def _find(text: str, char: str, at: int) -> int:
    end = text.find(char, at, at + MAX_QUOTED)
    if end < 0:
        raise ValueError(f"a {char} is not closed")
    return end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _after(text: str, at: int, mark: str) -> int:
    """Where the line after the one that is `mark` begins."""
    while at < len(text):
        end = _line_end(text, at)
        if text[at:end].strip() == mark:
            return end + 1
        at = end + 1
    return at
