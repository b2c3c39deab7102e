"""A folder of files that appear whole or not at all: on a local disk, or an object store.

Local files are written beside their place, flushed to the disk and renamed. What
fsspec reaches (gs://, s3://, …) has no rename to rely on; there a file is one upload,
and readers must tell by other means, such as a checksum, whether it is all there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from drumbeat.errors import ConfigError

TEMPORARY_PREFIX = ".drumbeat-temporary-"
_PROBE = TEMPORARY_PREFIX + "probe-"


@dataclass(frozen=True)
class Entry:
    """A file in a folder.

    Attributes:
        size_bytes: Its size.
        modified_s: When it was written, seconds since 1970; None where nobody knows.
    """

    size_bytes: int
    modified_s: float | None


class Folder(Protocol):
    """What backups need of a place. All methods but `check` raise OSError when they fail."""

    @property
    def name(self) -> str:
        """As messages call it."""
        ...

    def check(self) -> None:
        """Makes the folder where it is missing, and writes and removes a file in it.

        Raises:
            ConfigError: That is not possible.
        """
        ...

    def entries(self) -> dict[str, Entry]:
        """The files in the folder, by name; none where there is no folder."""
        ...

    def read(self, name: str) -> bytes:
        """All of a file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, durably: it is in its place and safe when this returns."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there is fine."""
        ...


def open_folder(place: str | os.PathLike[str]) -> Folder:
    """The folder that `place` names: a path, or a URL such as gs://bucket/job. Does no I/O.

    Raises:
        ConfigError: No name at all, an unknown kind of URL, or one whose driver isn't
            installed.
    """
    text = os.fspath(place)
    if not text.strip():
        raise ConfigError(
            "The folder for backups is empty; expected a path or a URL (gs://, s3://)."
        )
    kind, separator, rest = text.partition("://")
    if not separator:
        return LocalFolder(Path(text).expanduser().absolute())
    if kind in ("file", "local"):
        return LocalFolder(Path(rest).absolute())
    return RemoteFolder(*_find_driver(text, kind), text.rstrip("/"))


@dataclass(frozen=True)
class LocalFolder:
    """A folder on a disk of this machine, or one mounted into it."""

    path: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    def check(self) -> None:
        """See `Folder.check`."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(
                f"{self.path} is a file; expected a folder for backups. Name another place."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = _PROBE + secrets.token_hex(4)
            self.write(probe, b"")
            self.remove(probe)
        except OSError as error:
            raise ConfigError(_unusable(self.name, error)) from error

    def entries(self) -> dict[str, Entry]:
        """See `Folder.entries`."""
        found = {}
        try:
            with os.scandir(self.path) as scan:
                for item in scan:
                    with contextlib.suppress(FileNotFoundError):  # removed in between
                        if item.is_file(follow_symlinks=False):
                            status = item.stat(follow_symlinks=False)
                            found[item.name] = Entry(status.st_size, status.st_mtime)
        except FileNotFoundError:
            return {}
        return found

    def read(self, name: str) -> bytes:
        """See `Folder.read`."""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """See `Folder.write`."""
        beside = self.path / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            with open(beside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        self._sync()

    def remove(self, name: str) -> None:
        """See `Folder.remove`."""
        (self.path / name).unlink(missing_ok=True)

    def _sync(self) -> None:
        """Has the folder's list of names written to the disk, where the file system can."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # some network file systems refuse it
                os.fsync(fd)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class RemoteFolder:
    """A folder that fsspec reaches.

    Attributes:
        driver: fsspec's file system.
        path: The folder, as the driver calls it.
        url: The folder, as the user does.
    """

    driver: Any
    path: str
    url: str

    @property
    def name(self) -> str:
        """Its URL."""
        return self.url

    def check(self) -> None:
        """See `Folder.check`."""
        probe = _PROBE + secrets.token_hex(4)
        try:
            try:
                self.write(probe, b"probe")
            except FileNotFoundError:
                # Object stores have no folders to be made; file servers do.
                with _as_os_errors():
                    self.driver.makedirs(self.path, exist_ok=True)
                self.write(probe, b"probe")
            self.remove(probe)
        except OSError as error:
            raise ConfigError(_unusable(self.name, error)) from error

    def entries(self) -> dict[str, Entry]:
        """See `Folder.entries`."""
        with _as_os_errors():
            self.driver.invalidate_cache()
            try:
                listed = self.driver.ls(self.path, detail=True)
            except FileNotFoundError:
                return {}
        return {
            str(item["name"]).rsplit("/", 1)[-1]: Entry(int(item["size"] or 0), _modified_s(item))
            for item in listed
            if item.get("type") == "file"
        }

    def read(self, name: str) -> bytes:
        """See `Folder.read`."""
        with _as_os_errors():
            return self.driver.cat_file(f"{self.path}/{name}")

    def write(self, name: str, data: bytes) -> None:
        """See `Folder.write`."""
        with _as_os_errors():
            self.driver.pipe_file(f"{self.path}/{name}", data)

    def remove(self, name: str) -> None:
        """See `Folder.remove`."""
        with _as_os_errors(), contextlib.suppress(FileNotFoundError):
            self.driver.rm_file(f"{self.path}/{name}")


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Drivers raise errors of their own for what goes wrong on the network, or with a login."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _modified_s(item: dict[str, Any]) -> float | None:
    # Each driver has its own name for it.
    for key in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value = item.get(key)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _find_driver(url: str, kind: str) -> tuple[Any, str]:
    # Imported here: a tenth of a second that only these URLs are worth.
    import fsspec.core
    from fsspec.registry import known_implementations

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        module = str(known_implementations.get(kind, {}).get("class", "")).partition(".")[0]
        raise ConfigError(
            f"{url} needs a driver that is not installed: {error}. Install it beside drumbeat"
            f"{f': pip install {module}' if module else ''}."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{url} can't be used for backups: {error}. Expected a path, or a URL that fsspec "
            "knows, such as gs://bucket/job or s3://bucket/job."
        ) from error
    except Exception as error:  # a driver's own, such as for missing credentials
        raise ConfigError(
            f"{url} can't be used for backups: {type(error).__name__}: {error}. Check the address "
            "and the credentials."
        ) from error


def _unusable(name: str, error: OSError) -> str:
    why = error.strerror or error
    return (
        f"Backups can't be written to {name}: {why}. Expected a folder, or the permission to "
        "make one, in which this process may write and delete files."
    )
