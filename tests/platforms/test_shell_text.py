"""Scripts as a shell reads them."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.platforms.shell_text import MAX_OPEN, commands, lines, plain, words_of


def read(text):
    return [[plain(word) for word in words] for line in lines(text) for words, _ in
            commands(line.words)]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a 'b\nc' d", [["a", "b\nc", "d"]]),
        ("a b\\\nc", [["a", "bc"]]),
        ("a 'b\\\nc'", [["a", "b\\\nc"]]),
        ("cd x && srun a || exit 1", [["cd", "x"], ["srun", "a"], ["exit", "1"]]),
        ("(a; b) & c", [["a"], ["b"], ["c"]]),
        ("a '&&' \\; b", [["a", "&&", ";", "b"]]),
        ("a 2>&1 | b", [["a", ">&", "1"], ["b"]]),
        ("a &> log; b", [["a", "&>", "log"], ["b"]]),
        ("a b#c # 'd", [["a", "b#c"]]),
        ("# don't\na", [["a"]]),
        ("a <<E x\n'b\nE\nc", [["a", "<<", "E", "x"], ["c"]]),
        ("a <<-E\nb\n\tE\nc", [["a", "<<", "-E"], ["c"]]),
        ("a '<<E'\nb", [["a", "<<E"], ["b"]]),
        ('A=$(b "c d" | e) f', [["A=$(b \"c d\" | e)", "f"]]),
        ('a "$(b ")")" `c d`', [["a", '$(b ")")', "`c d`"]]),
        ("a ${X:?b c} ''", [["a", "${X:?b c}", ""]]),
        ("a\r\nb 'c\r\nd'\r\n", [["a"], ["b", "c\nd"]]),
        ("x\na 'b\r\nc'", [["x"], ["a", "b\r\nc"]]),
        ("it's\na b", [["it's"], ["a", "b"]]),
    ],
)  # fmt: skip
def test_commands(text, found):
    assert read(text) == found


def test_a_dollar_in_quotes_is_no_variable():
    assert words_of('$A \'$A\' \\$A "$A" "\\$A"') == ["$A", "\0$A", "\0$A", "$A", "\0$A"]


@given(st.text("a '\"\\\n", max_size=12))
def test_words_are_those_of_a_real_shell(text):
    made = list(lines(text))
    if any(line.wrong for line in made) or text.endswith("\\"):
        return
    words = [plain(word) for line in made for word in line.words]
    script = "".join(f"f {line.text}\n" for line in made)
    shown = 'f() { for word in "$@"; do printf \'%s\\0\' "$word"; done; }\n'
    done = subprocess.run(["bash", "-c", shown + script], capture_output=True, timeout=60)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_what_is_no_script_takes_no_time():
    text = "$(\n" * 200_000
    made = list(lines(text))
    assert len(made) == 200_000
    assert all(line.wrong for line in made[: MAX_OPEN + 2])
