"""What `drumbeat doctor` looks at: sockets, files, other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.control.doctor.places import NO_NAME, NO_WAY, OPEN, OTHER, REFUSED, TIMEOUT
from drumbeat.launch.doctor import facts
from drumbeat.launch.doctor.reach import Beacon, is_here, probe, probe_all, why_busy

HERE = "127.0.0.1"


def free_port() -> int:
    with socket.create_server((HERE, 0)) as server:
        return server.getsockname()[1]


class TestProbe:
    def test_of_a_beacon(self):
        async def try_it():
            beacon = Beacon("mine")
            await beacon.start([free_port()])
            try:
                tries = [await probe((HERE, port), mark="mine") for port in beacon.ports]
                other = await probe((HERE, beacon.ports[0]), mark="another")
                plain = await probe((HERE, beacon.ports[0]))
                return tries, other, plain
            finally:
                beacon.close()

        tries, other, plain = asyncio.run(try_it())
        assert [reach.state for reach in tries] == [OPEN, OPEN]
        assert all(reach.ahead_s is not None and abs(reach.ahead_s) < 5 for reach in tries)
        assert tries[0].ips == (HERE,)
        assert (other.state, plain.state) == (OTHER, OPEN)

    def test_a_busy_port_is_left_out(self):
        async def try_it(port: int):
            beacon = Beacon("mine")
            await beacon.start([port])
            beacon.close()
            return beacon.ports

        with socket.create_server(("", 0)) as busy:
            ports = asyncio.run(try_it(busy.getsockname()[1]))
        assert len(ports) == 1

    def test_of_nobody(self):
        reach = asyncio.run(probe((HERE, free_port())))
        assert reach.state == REFUSED

    @pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "..", "\udcff"])
    def test_of_a_name_that_is_none(self, host):
        assert asyncio.run(probe((host, 1))).state == NO_NAME

    def test_of_one_that_does_not_answer(self):
        """A queue that is full drops what comes, as a firewall does."""
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.socket())
            server.bind((HERE, 0))
            server.listen(0)
            for _ in range(3):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            reach = asyncio.run(probe(server.getsockname(), timeout_s=0.3))
        assert reach.state == TIMEOUT
        assert reach.wait_ms == 300

    def test_of_one_that_accepts_and_says_nothing(self):
        with socket.create_server((HERE, 0)) as server:
            reach = asyncio.run(probe(server.getsockname(), timeout_s=0.3, mark="x"))
            assert reach.state == OTHER
            assert asyncio.run(probe(server.getsockname(), timeout_s=0.3)).state == OPEN

    @pytest.mark.parametrize(
        "said",
        [b"", b"\n", b"[]\n", b"HTTP/1.1 400\n", b'{"mark": "x", "time": "y"}\n', b"x" * 9999],
    )
    def test_of_one_that_says_something_else(self, said):
        def answer() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                client.sendall(said)
                client.close()

        with socket.create_server((HERE, 0)) as server:
            thread = threading.Thread(target=answer)
            thread.start()
            reach = asyncio.run(probe(server.getsockname(), timeout_s=2, mark="x"))
            thread.join(10)
        assert reach.state == OTHER

    def test_of_many(self):
        with socket.create_server((HERE, 0)) as server:
            opened = f"{HERE}:{server.getsockname()[1]}"
            closed = f"{HERE}:{free_port()}"
            found = asyncio.run(probe_all([opened, closed, opened], timeout_s=2))
        assert {name: reach.state for name, reach in found.items()} == {
            opened: OPEN,
            closed: REFUSED,
        }


def test_this_machine_knows_its_addresses():
    assert is_here(HERE) is True
    assert is_here("localhost") is True
    assert is_here("192.0.2.1") is False  # of documentation, RFC 5737
    assert is_here("no.such.host.invalid") is None


def test_a_port_in_use_is_noticed():
    with socket.create_server(("", 0)) as server:
        assert "is in use by another process" in why_busy(server.getsockname()[1])
    assert why_busy(free_port()) == ""


class TestFacts:
    def test_of_this_machine(self, tmp_path):
        (tmp_path / "t.py").write_text("x = 1")
        found = facts.of_this_machine(
            {}, folder=tmp_path, script="t.py", data=str(tmp_path), output="out/deep"
        )
        assert found.cpus > 0
        assert found.memory_bytes > 0
        assert found.versions["python"].startswith(f"{sys.version_info[0]}.")
        assert found.versions["tensorflow"].startswith("2.")
        assert found.data is not None
        assert (found.data.seen, found.data.files) == (True, 1)
        assert found.output is not None
        assert found.output.seen
        assert list((tmp_path / "out" / "deep").iterdir()) == []
        assert json.dumps(found.to_json())

    def test_digests_tell_scripts_apart(self, tmp_path):
        def digests():
            found = facts.of_this_machine({}, folder=tmp_path, script="t.py")
            return found.script, found.sources

        assert digests() == ("", "")
        (tmp_path / "t.py").write_text("x = 1")
        first = digests()
        (tmp_path / "notes.txt").write_text("x")
        for folder in (".venv", "runs", "env"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.py").write_text("x")
        (tmp_path / "env" / "pyvenv.cfg").write_text("")
        assert digests() == first
        (tmp_path / "helpers.py").write_text("x")
        second = digests()
        assert (second[0] == first[0], second[1] == first[1]) == (True, False)
        (tmp_path / "t.py").write_text("x = 2")
        assert digests()[0] != first[0]

    @pytest.mark.parametrize(
        ("place", "seen", "files", "problem"),
        [
            (".", True, 2, ""),
            ("one", True, 1, ""),
            ("missing", False, None, "missing does not exist here. Mount the data there"),
            ("memory://doctor/data", True, 2, ""),
            ("memory://doctor/data/a", True, 1, ""),
            ("memory://nobody", None, None, ""),
            ("nope://x/y", False, None, "nope://x/y can't be read"),
            ("a\0b", False, None, "does not exist here"),
        ],
    )
    def test_data(self, tmp_path, place, seen, files, problem):
        import fsspec

        (tmp_path / "one").write_text("1")
        (tmp_path / "two").write_text("2")
        (tmp_path / ".hidden").write_text("3")
        memory = fsspec.filesystem("memory")
        memory.pipe_file("/doctor/data/a", b"1")
        memory.pipe_file("/doctor/data/b", b"2")
        found = facts.look_at(place, tmp_path)
        assert (found.seen, found.files) == (seen, files)
        assert problem in found.problem
        assert bool(problem) == bool(found.problem)

    def test_output(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert facts.try_output("new", tmp_path).seen
        assert "is a file" in facts.try_output("file", tmp_path).problem
        assert "can't be written" in facts.try_output("/proc/nowhere", tmp_path).problem
        assert facts.try_output("memory://doctor-out", tmp_path).seen

    def test_what_hangs_has_a_deadline(self, tmp_path, monkeypatch):
        release = threading.Event()
        monkeypatch.setattr(facts, "FILES_TIMEOUT_S", 0.2)
        monkeypatch.setattr(facts, "_look_at", lambda place, folder: release.wait(20))
        assert "did not answer within 0.2 s" in facts.look_at("/nfs", tmp_path).problem
        release.set()

    def test_a_marker_is_seen_by_who_shares_the_folder(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        marker = facts.Marker("out", tmp_path / "a", "job")
        assert marker.write() != ""  # a job makes the folder first
        assert facts.try_output("out", tmp_path / "a").seen
        assert marker.write() == ""
        assert facts.Marker(str(tmp_path / "a" / "out"), tmp_path, "job").read() == ""
        assert "No such file" in facts.Marker("out", tmp_path / "b", "job").read()
        marker.remove()
        assert list((tmp_path / "a" / "out").iterdir()) == []


class Answer(threading.Thread):
    """A metadata server that says `header` once."""

    def __init__(self, header: bytes) -> None:
        super().__init__()
        self.server = socket.create_server((HERE, 0))
        self.header = header
        self.asked = b""

    def run(self) -> None:
        client, _ = self.server.accept()
        self.asked = client.recv(4096)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + self.header + b"\r\n\r\n")
        client.close()
        self.server.close()


@pytest.mark.parametrize(
    ("header", "known"), [(b"Metadata-Flavor: Google", True), (b"Server: nginx", False)]
)
def test_a_metadata_server_is_known_by_its_header(header, known):
    answer = Answer(header)
    answer.start()
    env = {"GCE_METADATA_HOST": f"{HERE}:{answer.server.getsockname()[1]}"}
    assert facts.credential_facts(env).has_metadata("gs") is known
    answer.join(10)
    assert answer.asked.startswith(b"GET / HTTP")  # nothing that would hand out a login


SOURCE = Path(__file__).parents[2] / "src"
TOKEN = "0123456789abcdef" * 2
COMMAND = "from drumbeat.cli.main import main; main()"


class Nodes:
    """Starts `drumbeat doctor --together` in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: list[subprocess.Popen[str]] = []

    def start(self, rank: int, *words: str, prefix=(), env=None, nodes: int = 2) -> None:
        folder = self.folder / f"node{rank}"
        folder.mkdir(exist_ok=True)
        options = ["--nodes", str(nodes), "--node-rank", str(rank)]
        options += ["--rendezvous", f"{HERE}:{self.port}"]
        names = ("PATH", "HOME")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        self.running.append(
            subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-c",
                    COMMAND,
                    *words,
                    *(options * (not env)),
                ],
                cwd=folder,
                env={**kept, "PYTHONPATH": str(SOURCE), "DRUMBEAT_TOKEN": TOKEN, **(env or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def ended(self, timeout_s: float = 60) -> list[tuple[int, str]]:
        """Code and output of each, in the order of their starts."""
        texts = [process.communicate(timeout=timeout_s)[0] for process in self.running]
        return [(p.returncode, t) for p, t in zip(self.running, texts, strict=True)]


@pytest.fixture
def nodes(tmp_path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


DOCTOR = ("doctor", "--together", "--timeout", "40")


def checks(text: str) -> dict[str, set[str]]:
    """States of each check in JSON output."""
    line = next(line for line in text.splitlines() if line.startswith("{"))
    found: dict[str, set[str]] = {}
    for each in json.loads(line)["checks"]:
        found.setdefault(each["check"], set()).add(each["state"])
    return found


def test_nodes_that_are_alike(nodes, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "data").mkdir()
    places = ("--data", str(tmp_path / "data"), "--output", str(tmp_path / "shared" / "out"))
    for rank in (1, 0):
        nodes.start(rank, *DOCTOR, *places)
    (code1, text1), (code0, text0) = nodes.ended()
    assert (code0, code1) == (0, 0), text0 + text1
    assert "Node 1 of 2; node 0 shows the table." in text1
    assert "from \\ to" in text0
    assert "Every node reaches every other one" in text0
    assert f"'{tmp_path}/data' is seen on nodes 0, 1." in text0
    assert "/shared/out' can be written, and is one folder, on nodes 0, 1." in text0
    assert list((tmp_path / "shared" / "out").iterdir()) == []


def test_nodes_that_are_not(nodes, tmp_path):
    for rank in (0, 1):
        folder = tmp_path / f"node{rank}"
        folder.mkdir()
        (folder / "train.py").write_text(f"x = {rank}")
        (folder / "drumbeat.yaml").write_text("name: a\nscript: train.py\noutput: out\ndata: d\n")
    (tmp_path / "node0" / "d").mkdir()
    for rank in (1, 0):
        nodes.start(rank, *DOCTOR, "--json")
    (code1, text1), (code0, text0) = nodes.ended()
    assert (code0, code1) == (1, 1)
    wrong = {"script": {"error"}, "sources": {"warning"}, "data": {"error"}, "output": {"error"}}
    right = {name: {"ok"} for name in ("reach", "clocks", "versions", "machines")}
    assert checks(text0) == wrong | right
    assert checks(text1) == checks(text0)
    assert "a file that node 0 has written to out is not seen here" in text0
    assert "They differ in train.py." in text0


def test_a_rendezvous_at_localhost_is_looked_through(nodes):
    nodes.start(1, "doctor", "--together", "--timeout", "1")
    ((code, text),) = nodes.ended()
    assert code == 1
    assert "127.0.0.1 is each machine itself: if node 0 is on another one" in text


@pytest.mark.slow
def test_a_node_that_never_comes(nodes):
    for rank in (1, 0):
        nodes.start(rank, "doctor", "--together", "--timeout", "10", nodes=3)
    (code1, text1), (code0, text0) = nodes.ended()
    assert (code0, code1) == (1, 1)
    assert "Node 2 did not come within 10 s." in text0
    assert "from \\ to" in text0  # of those that came


@pytest.mark.netns
def test_a_direction_that_is_blocked(nodes, namespaces, tmp_path):
    """Node 1 is told a wrong address of its own, which node 0 has no way to."""
    (first, address), (second, _) = namespaces
    for command in (
        f"ip -n {second} addr add 10.203.9.2/32 dev lo",
        f"ip -n {first} route add blackhole 10.203.9.2/32",
    ):
        subprocess.run(command.split(), check=True, timeout=20)
    for rank, name in ((1, second), (0, first)):
        config = {
            "cluster": {"worker": [f"{address}:2222", "10.203.9.2:2222"]},
            "task": {"type": "worker", "index": rank},
        }
        nodes.start(
            rank,
            *DOCTOR,
            prefix=("ip", "netns", "exec", name),
            env={"TF_CONFIG": json.dumps(config)},
        )
    (code1, _), (code0, text) = nodes.ended()
    assert (code0, code1) == (1, 1), text
    assert "Node 0 can't reach node 1 at 10.203.9.2: " in text
    assert "The other direction works." in text
    table = [line.split() for line in text.splitlines()[:3]]
    assert NO_WAY in " ".join(table[1])
    assert "ms" in table[2]


@pytest.mark.netns
def test_both_directions_work_between_namespaces(nodes, namespaces):
    (first, address), (second, other) = namespaces
    for rank, name in ((1, second), (0, first)):
        config = {
            "cluster": {"worker": [f"{address}:2222", f"{other}:2222"]},
            "task": {"type": "worker", "index": rank},
        }
        nodes.start(
            rank,
            *DOCTOR,
            prefix=("ip", "netns", "exec", name),
            env={"TF_CONFIG": json.dumps(config)},
        )
    (code1, _), (code0, text) = nodes.ended()
    assert (code0, code1) == (0, 0), text
    assert "Every node reaches every other one" in text
