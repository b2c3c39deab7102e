"""What pods print, a part at a time, over restarts of their containers.

Each part is asked for anew: a connection that follows a pod's output has no deadline that a
training which prints nothing for an hour would not pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drumbeat.platforms.kubernetes.api import Refused, Server
from drumbeat.platforms.kubernetes.status import Task

_OVERLAP_S = 10
_CHUNK_BYTES = 65536


@dataclass(kw_only=True)
class _Mark:
    """How far a pod's output was read.

    Attributes:
        uid: Of the pod.
        restarts: Of its container then.
        stamp: Time of the last line, as the kubelet wrote it.
        asked: When it was asked for, by this machine's steady clock.
    """

    uid: str
    restarts: int
    stamp: str = ""
    asked: float = 0.0


class Reader:
    """Gives each line of the pods of a namespace once.

    Args:
        server: Of the pods.
        space: Their namespace.
    """

    def __init__(self, server: Server, space: str) -> None:
        self._server = server
        self._space = space
        self._marks: dict[str, _Mark] = {}

    def new_lines(self, task: Task) -> Iterator[str]:
        """The lines since the last call; of a pod that is new to this reader, all.

        Raises:
            ConfigError: The server can't be reached, or refuses.
        """
        if not task.started:
            return
        mark = self._marks.get(task.uid)
        if mark is None:
            mark = self._marks[task.uid] = _Mark(uid=task.uid, restarts=task.restarts)
        elif mark.restarts < task.restarts:
            mark.restarts = task.restarts
            yield from self._read(task, mark, previous=True)
        yield from self._read(task, mark, previous=False)

    def _read(self, task: Task, mark: _Mark, *, previous: bool) -> Iterator[str]:
        more: dict[str, Any] = {"previous": True} if previous else {}
        now = time.monotonic()
        if mark.stamp:
            # The clocks of the machines may differ: what is asked for is a length of time.
            more["since_seconds"] = math.ceil(now - mark.asked) + _OVERLAP_S
        try:
            response = self._server.call(
                f"read the log of {task.pod}",
                self._server.core().read_namespaced_pod_log,
                task.pod,
                self._space,
                container=task.container,
                timestamps=True,
                _preload_content=False,
                **more,
            )
        except Refused as error:
            if error.status in (400, 404):  # it waits to start, or is gone
                return
            raise
        mark.asked = now
        last = mark.stamp
        for line in self._lines(response):
            stamp, _, text = line.partition(" ")
            if stamp > last:
                mark.stamp = max(mark.stamp, stamp)
                yield text

    def _lines(self, response: Any) -> Iterator[str]:
        from urllib3.exceptions import HTTPError

        rest = b""
        try:
            for chunk in response.stream(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        except (HTTPError, OSError) as error:
            raise self._server.unreachable(error) from None
        finally:
            response.release_conn()
        if rest:
            yield rest.decode(errors="replace")
