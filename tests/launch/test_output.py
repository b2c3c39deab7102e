"""What is shown of the workers' output: lines, bars, prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.launch.output import Line, LineAssembler, Screen, clip, printable

BAR = "\x1b[1m2/3\x1b[0m \x1b[32m━━━━\x1b[0m 0s - loss: 1.0"


def assemble(*chunks: bytes) -> list[Line]:
    assembler = LineAssembler()
    lines = [line for chunk in chunks for line in assembler.feed(chunk)]
    return lines + assembler.close()


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo", ["one", "two"]),
        (b"\n\n", ["", ""]),
        (b"", []),
        (b"1/3\r2/3\r3/3\n", ["3/3"]),
        (b"10%\b\b\b20%\n", ["20%"]),
        (b"\b\b\b\r done\n", [" done"]),
        (b"\xff\xfebin\n", ["\\xff\\xfebin"]),
        ("größe\n".encode(), ["größe"]),
    ],
)
def test_lines_are_what_a_terminal_shows_at_their_end(data, texts):
    assert [line.text for line in assemble(data)] == texts


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_lines_do_not_depend_on_how_the_bytes_arrive(data, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert [line.text for line in assemble(*pieces)] == [line.text for line in assemble(data)]


def test_a_line_without_end_comes_in_pieces_and_loses_nothing():
    assembler = LineAssembler(limit_bytes=100)
    lines = []
    for _ in range(50):
        lines += assembler.feed("é1234567".encode() * 10)
        rest = assembler.unfinished()
        assert rest is None or len(rest.text.encode()) <= 100
    text = "".join(line.text for line in lines + assembler.close())
    assert text == "é1234567" * 500


def test_a_bar_that_is_redrawn_for_hours_takes_no_memory():
    assembler = LineAssembler()
    for step in range(100_000):
        assert assembler.feed(f"\b\b\b\b\r{step}/100000 ".encode()) == []
    line = assembler.unfinished()
    assert line is not None
    assert line.text == "99999/100000 "
    assert line.redrawn


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        ("Epoch 1/3", True),
        (BAR, True),
        ("60/60 - 1s - 20ms/step - loss: 0.3", True),
        (" 12/60 [=====>....] - ETA: 1s", True),
        ("      5/Unknown 1s", True),
        ("\x1b[1m 1/60\x1b[0m", True),
        ("12/60 files were read", False),
        ("2024/05 report", False),
        ("Epoch 3 was the best", False),
        ("loss 0.5", False),
        ("┏━━━━━━━━━━━┳━━━━━━━━━┓", False),
        ("┡━━━━━━━━━━━╇━━━━━━━━━┩", False),
        ("", False),
    ],
)
def test_progress_is_recognized(text, progress):
    assert Line(text=text).is_progress is progress


def test_only_the_chiefs_progress_is_shown():
    screen = Screen(color=False, live=False, chief="worker 0")
    lines = [Line(text="Epoch 1/3"), Line(text="3/3 done", redrawn=True), Line(text="saved")]
    assert screen.lines("worker 1", lines) == "[worker 1] saved\n"
    assert screen.lines("worker 0", lines) == (
        "[worker 0] Epoch 1/3\n[worker 0] 3/3 done\n[worker 0] saved\n"
    )


def test_a_bar_is_drawn_in_place_and_others_lines_go_above_it():
    terminal = Terminal()
    screen = Screen(color=True, live=True, chief="worker 0", width=lambda: 60)
    terminal.write(screen.draw("worker 0", Line(text="1/3 ━")))
    terminal.write(screen.lines("worker 1", [Line(text="message")]))
    terminal.write(screen.draw("worker 0", Line(text="2/3 ━━")))
    terminal.write(screen.note("careful"))
    terminal.write(screen.lines("worker 0", [Line(text="3/3 ━━━")]))
    terminal.write(screen.lines("worker 1", [Line(text="end")]))
    assert terminal.lines == [
        "[worker 1] message",
        "[drumbeat] careful",
        "[worker 0] 3/3 ━━━",
        "[worker 1] end",
        "",
    ]


def test_a_report_keeps_the_bar_that_was_drawn_and_comes_last():
    terminal = Terminal()
    screen = Screen(color=True, live=True, chief="worker 0")
    terminal.write(screen.draw("worker 0", Line(text="1/3 ━")))
    terminal.write(screen.report("worker 1 failed.", "Traceback\nError\n\n"))
    assert terminal.lines == ["[worker 0] 1/3 ━", "", "worker 1 failed.", "Traceback", "Error", ""]


def test_nothing_is_drawn_for_others_or_where_nothing_can_be_redrawn():
    line = Line(text="1/3 ━")
    assert Screen(color=True, live=True, chief="worker 0").draw("worker 1", line) == ""
    assert Screen(color=False, live=False, chief="worker 0").draw("worker 0", line) == ""


def test_a_bar_wider_than_the_screen_is_cut_so_that_it_stays_on_one_line():
    screen = Screen(color=True, live=True, chief="worker 0", width=lambda: 40)
    terminal = Terminal()
    terminal.write(screen.draw("worker 0", Line(text=BAR * 9)))
    assert len(terminal.lines[0]) == 39


def test_workers_have_different_colours_and_no_colour_means_none():
    screen = Screen(color=True, live=False, chief="")
    prefixes = [screen.prefix(f"worker {rank}") for rank in range(10)]
    assert len({prefix.partition("[worker")[0] for prefix in prefixes}) == 10
    plain = Screen(color=False, live=False, chief="")
    assert plain.lines("worker 1", [Line(text="\x1b[31mred\x1b[0m")]) == "[worker 1] red\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jclear\x1b[10;1H", "clear"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("tab\tbell\x07", "tab\tbell"),
        ("plain", "plain"),
    ],
)
def test_control_codes_do_not_reach_the_screen(text, shown):
    assert printable(text) == shown


def test_clip_counts_what_is_visible():
    assert clip("abc", 3) == "abc"
    assert clip("\x1b[1mabcd\x1b[0m", 2) == "\x1b[1mab\x1b[0m"


class Terminal:
    """As much of a terminal as the screen uses: newline, return, erase to the end."""

    def __init__(self) -> None:
        self.lines = [""]

    def write(self, text: str) -> None:
        text = text.replace("\x1b[K", "\0")
        for part in _without_colors(text):
            if part == "\n":
                self.lines.append("")
            elif part == "\r":
                self._column = 0
            elif part == "\0":
                self.lines[-1] = ""  # only used at the start of a line
            else:
                self.lines[-1] += part


def _without_colors(text: str) -> str:
    plain = ""
    while "\x1b[" in text:
        before, _, text = text.partition("\x1b[")
        plain += before
        text = text.partition("m")[2]
    return plain + text
