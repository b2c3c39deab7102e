"""Addresses of a job's pods, turned into addresses of this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drumbeat.platforms.kubernetes.manifests.pod import Pod
from drumbeat.platforms.platform import Places

HERE = "127.0.0.1"


class Hosts:
    """Replaces the pods' addresses in text; the same address always becomes the same one.

    Args:
        pods: All pods of the job.
        places: Where ports come from.
    """

    def __init__(self, pods: Sequence[Pod], places: Places) -> None:
        self._places = places
        self._ports: dict[tuple[str, str], int] = {}
        self._owner = {host: pod.pod_name for pod in pods for host in pod.hosts}
        names = "|".join(re.escape(name) for name in sorted(self._owner, key=len, reverse=True))
        # A host's name may have the namespace and the cluster's domain behind it. A bare name is
        # one only where a port follows: it may be anything else, a folder of an output.
        spaces = "|".join({re.escape(pod.namespace) for pod in pods})
        domain = rf"(?:\.(?:{spaces})(?:\.svc(?:\.[a-z0-9.-]*[a-z0-9])?)?)?"
        self._pattern = re.compile(rf"(?<![\w.-])({names}){domain}(:\d{{1,5}})?(?![\w.-])")

    def here(self, written: str) -> str:
        """`written` with the addresses of this machine."""
        return self._pattern.sub(self._replaced, written) if self._owner else written

    def address(self, pod: Pod, port: int) -> str:
        """HOST:PORT of a pod's port on this machine."""
        return f"{HERE}:{self._port(pod.pod_name, str(port))}"

    def _replaced(self, found: re.Match[str]) -> str:
        name, port = found[1], found[2]
        if port is not None:
            return f"{HERE}:{self._port(self._owner[name], port[1:])}"
        return HERE if found[0] != name or "." in name else found[0]

    def _port(self, owner: str, port: str) -> int:
        if (owner, port) not in self._ports:
            self._ports[owner, port] = self._places.port()
        return self._ports[owner, port]
