"""The chief finds its servers, or says which one is not there."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from drumbeat.cluster import ClusterSpec, Task
from drumbeat.errors import CollectiveError
from drumbeat.strategies.reach import await_servers

pytestmark = pytest.mark.timeout(30)


def test_the_chief_waits_for_its_servers_but_not_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as here:
        late = socket.create_server(("127.0.0.1", 0))
        place = late.getsockname()
        late.close()
        open_at, closed_at = (f"127.0.0.1:{port}" for port in (here.getsockname()[1], place[1]))
        jobs = {"chief": ["127.0.0.1:1"], "worker": [open_at], "ps": [closed_at]}
        cluster = ClusterSpec(jobs, task=Task("chief", 0))
        with pytest.raises(CollectiveError, match=f"ps 0 at {closed_at} .* refused.*firewall"):
            await_servers(cluster, 0.3)

        def come() -> None:
            time.sleep(0.3)
            opened.append(socket.create_server(place))

        opened: list[socket.socket] = []
        coming = threading.Thread(target=come)
        coming.start()
        await_servers(cluster, 20.0)
        coming.join()
        opened[0].close()
