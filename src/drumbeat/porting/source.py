"""Scripts as files: what is in them, as a diff, and replaced in one step."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import shutil
import tokenize
from dataclasses import dataclass
from pathlib import Path

from drumbeat.errors import ConfigError
from drumbeat.porting.engine import Ported, port

_CRLF = "\r\n"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A script's text, and how it is written in its file.

    Attributes:
        path: As the user gave it.
        text: With the file's own line endings.
        encoding: That of the file, a byte order mark included.
    """

    path: str
    text: str
    encoding: str

    def ported(self) -> Ported:
        """The script in Keras 3's names, with the same line endings.

        Raises:
            ConfigError: It is not Python.
        """
        # Lines that are added must end as the others do.
        is_crlf = _CRLF in self.text and "\n" not in self.text.replace(_CRLF, "")
        try:
            ported = port(self.text.replace(_CRLF, "\n") if is_crlf else self.text)
        except ConfigError as error:
            raise ConfigError(
                f"{self.path}: {error}; expected a script that Python 3 runs. Nothing was changed."
            ) from None
        text = ported.text.replace("\n", _CRLF) if is_crlf else ported.text
        return Ported(text, ported.notes, ported.notes_after)

    def diff(self, text: str) -> str:
        """What changes for the script to become `text`, for `patch`; "" if nothing does."""
        lines = difflib.unified_diff(
            self.text.splitlines(keepends=True),
            text.splitlines(keepends=True),
            self.path,
            self.path,
        )
        ended = (
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )
        return "".join(ended)

    def replace(self, text: str) -> None:
        """Writes `text` in place of the script, whole or not at all; the file keeps its mode.

        Raises:
            ConfigError: The file or its folder can't be written.
        """
        place = Path(os.path.realpath(self.path))  # a link goes on leading to it
        new = place.with_name(f".{place.name}.{os.getpid()}.new")
        try:
            try:
                new.write_bytes(text.encode(self.encoding))
                shutil.copymode(place, new)
                new.replace(place)
            except OSError:
                with contextlib.suppress(OSError):
                    new.unlink()
                raise
        except OSError as error:
            raise ConfigError(
                f"{self.path} can't be written: {error.strerror or error}. It is as it was."
            ) from None


def read(path: str) -> Source:
    """The script at `path`.

    Raises:
        ConfigError: There is none, or it is not text in the encoding that it declares.
    """
    if path.endswith(".ipynb"):
        raise ConfigError(
            f"{path} is a notebook; expected a script. Make it one: "
            f"jupyter nbconvert --to script {path}"
        )
    try:
        content = Path(path).read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; expected Python scripts.") from None
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; expected a Python script.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Source(path=path, text=content.decode(encoding), encoding=encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        said = error.msg if isinstance(error, SyntaxError) else _place(content, error)
        raise ConfigError(
            f"{path} is not UTF-8, nor text in another encoding that it declares ({said}). "
            "Save it as UTF-8."
        ) from None


def _place(content: bytes, error: UnicodeDecodeError) -> str:
    line = content.count(b"\n", 0, error.start) + 1
    return f"byte 0x{content[error.start]:02x} in line {line}"
