"""What `drumbeat doctor` makes of facts: each mistake is found, and what is fine is left alone."""

from __future__ import annotations

import json

import pytest

from drumbeat.cluster import ClusterSpec
from drumbeat.control.doctor import credentials, machine, places, together
from drumbeat.control.doctor.machine import MIB, Machine, Place
from drumbeat.control.doctor.places import (
    NO_NAME,
    NO_WAY,
    OPEN,
    OTHER,
    REFUSED,
    TIMEOUT,
    Own,
    Reach,
)
from drumbeat.control.doctor.result import ERROR, OK, WARNING, Result, summary

VERSIONS = {"python": "3.12.1", "drumbeat": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1"}


def cluster(*workers: str, kind: str = "worker", index: int = 0, **jobs: list[str]) -> ClusterSpec:
    config = {"cluster": {"worker": list(workers), **jobs}, "task": {"type": kind, "index": index}}
    found = ClusterSpec.from_tf_config(json.dumps(config))
    assert found is not None
    return found


def states(results: list[Result]) -> list[tuple[str, str]]:
    return [(each.check, each.state) for each in results]


def only(results: list[Result], state: str, text: str) -> None:
    """There is one result of that state, which says `text`."""
    found = [each for each in results if each.state == state]
    assert len(found) == 1, results
    assert text in found[0].text
    assert found[0].text.endswith(".")


class TestPlaces:
    @pytest.mark.parametrize(
        ("env", "state", "text"),
        [
            ({}, OK, "Not set"),
            ({"TF_CONFIG": "{}"}, OK, "Not set"),
            (
                {"TF_CONFIG": cluster("a:1", "b:1", index=1).to_json()},
                OK,
                "This is worker 1 in a cluster of 2 worker.",
            ),
            ({"TF_CONFIG": ""}, ERROR, "TF_CONFIG: "),
            ({"TF_CONFIG": "{'cluster': 1}"}, ERROR, "TF_CONFIG: "),
            (
                {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'},
                ERROR,
                "has no index",
            ),
            (
                {
                    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "a:1"]}, "task": '
                    '{"type": "worker", "index": 0}}'
                },
                ERROR,
                "have the same address",
            ),
        ],
    )
    def test_tf_config(self, env, state, text):
        result, found = places.check_tf_config(env)
        assert result.state == state
        assert text in result.text
        assert (found is None) == ("This is" not in result.text)

    def test_localhost_on_several_machines(self):
        local = cluster("localhost:1", "127.0.0.1:2")
        only(places.check_loopback(local, several="SLURM_JOB_ID is set"), ERROR, "for itself")
        only(places.check_loopback(local, several="x", is_sure=False), WARNING, "for itself")
        assert states(places.check_loopback(local, several="")) == [("localhost", OK)]
        assert places.check_loopback(cluster("a:1", "b:1"), several="x") == []
        assert places.check_loopback(cluster("localhost:1"), several="x") == []

    def test_ports_in_use(self):
        found = places.check_own(cluster("a:1", "b:1"), Own(is_here=True, busy="port 1 is in use"))
        only(found, ERROR, "worker 0 is to listen at a:1, but port 1 is in use.")
        assert states(places.check_own(cluster("a:1"), Own(is_here=True))) == [("own port", OK)]
        assert states(places.check_own(cluster("a:1"), Own(is_here=None))) == [("own port", OK)]
        evaluator = cluster("a:1", kind="evaluator")
        assert places.check_own(evaluator, Own(is_here=False)) == []

    def test_an_address_that_is_not_this_machines(self):
        found = places.check_own(cluster("a:1", "b:1", index=1), Own(is_here=False))
        only(found, WARNING, "worker 1 at b:1, which is no address of this machine")

    def test_two_roles_on_one_address(self):
        found = cluster("a:1", "b:1", ps=["c:2"])
        only(
            places.check_same_place(found, {"a": ["10.0.0.1"], "b": ["10.0.0.1"], "c": []}),
            ERROR,
            "worker 0 and worker 1 have different names, but both are 10.0.0.1 port 1",
        )
        assert places.check_same_place(found, {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}) == []
        assert places.check_same_place(found, {"a": ["10.0.0.1"], "c": ["10.0.0.1"]}) == []

    @pytest.mark.parametrize(
        ("reach", "state", "text"),
        [
            (Reach(state=OPEN), OK, "1 of 1 other addresses can be reached"),
            (Reach(state=REFUSED), OK, "something listens at 0 of them"),
            (Reach(state=NO_NAME), ERROR, "worker 1 at b:1: the name is unknown here."),
            (
                Reach(state=TIMEOUT, ips=("10.0.0.9",), wait_ms=5000),
                ERROR,
                "(10.0.0.9): no answer within 5 s.",
            ),
            (Reach(state=NO_WAY, detail="no route to host"), ERROR, "no route to host"),
        ],
    )
    def test_peers(self, reach, state, text):
        only(places.check_reach({"b:1": reach}, {"b:1": "worker 1"}), state, text)

    def test_the_token(self):
        assert places.check_token({}, 1) == []
        only(places.check_token({"DRUMBEAT_TOKEN": " "}, 2), ERROR, "the job has 2 nodes")
        for name in ("DRUMBEAT_TOKEN", "DRUMBEAT_TOKEN_FILE"):
            assert states(places.check_token({name: "x"}, 2)) == [("token", OK)]

    def test_processes_of_one_job(self):
        first, second = cluster("a:1", "b:1"), cluster("a:1", "b:1", index=1)
        names = ["worker-0", "worker-1"]
        together_ = {"worker-0": first, "worker-1": second}
        assert places.check_same_cluster(together_, names) == []
        assert places.check_same_cluster({}, names) == []
        only(
            places.check_same_cluster({"worker-0": first, "worker-1": first}, names),
            ERROR,
            "worker-0 and worker-1 are both worker 0",
        )
        only(
            places.check_same_cluster({"worker-0": first}, names[:1]),
            ERROR,
            "The cluster has worker 1, which none of worker-0 is",
        )
        other = cluster("a:1", "c:1", index=1)
        only(
            places.check_same_cluster({"worker-0": first, "worker-1": other}, names),
            ERROR,
            "worker-1 was given another cluster than worker-0",
        )


KEY = '{"type": "service_account"}'
CREDENTIALS = [
    # Google: environment, files, metadata server, state, text.
    ("gs://b/x", {}, {}, "", ERROR, "Nothing here can log in for gs://b/x"),
    ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {}, "", ERROR, "can't be read"),
    ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"/k": "{"}, "gs", ERROR, "no JSON"),
    ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"/k": "[1]"}, "", ERROR, "but no key"),
    ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"/k": '{"type": 3}'}, "", ERROR, "key"),
    ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"/k": KEY}, "", OK, "a key"),
    ("gcs://b/x", {"STORAGE_EMULATOR_HOST": "x"}, {}, "", OK, "stands in"),
    ("gs://b/x", {"HOME": "/h"}, {
        "/h/.config/gcloud/application_default_credentials.json": KEY}, "", OK, "gcloud auth"),
    ("gs://b/x", {}, {}, "gs", OK, "service account of this machine"),
    ("gs://b/x", {}, {}, "s3", ERROR, "no metadata server"),
    # Amazon.
    ("s3://b/x", {}, {}, "", ERROR, "Nothing here can log in for s3://b/x"),
    ("s3://b/x", {"AWS_ACCESS_KEY_ID": "a"}, {}, "s3", ERROR, "AWS_SECRET_ACCESS_KEY is not set"),
    ("s3://b/x", {"AWS_SECRET_ACCESS_KEY": "a"}, {}, "", ERROR, "AWS_ACCESS_KEY_ID is not set"),
    ("s3://b/x", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, {}, "", OK, "by AWS_"),
    ("s3://b/x", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "r"}, {}, "", ERROR, "'/t'"),
    ("s3://b/x", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, {"/t": "x"}, "", ERROR, "AWS_ROLE_ARN"),
    ("s3://b/x", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "r"}, {"/t": "x"}, "", OK,
     "as r"),
    ("s3://b/x", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "u"}, {}, "", OK, "FULL_URI"),
    ("s3://b/x", {"HOME": "/h"}, {"/h/.aws/credentials": "x"}, "", OK, "/h/.aws/credentials"),
    ("s3://b/x", {"AWS_CONFIG_FILE": "/c"}, {"/c": "x"}, "", OK, "/c"),
    ("s3://b/x", {}, {}, "s3", OK, "role of this machine"),
]  # fmt: skip


class TestCredentials:
    @pytest.mark.parametrize(("url", "env", "files", "metadata", "state", "text"), CREDENTIALS)
    def test_where_they_are_looked_for(self, url, env, files, metadata, state, text):
        facts = credentials.Machine(
            read=files.get,
            has_metadata=lambda cloud: cloud == metadata,
            has_driver=lambda name: True,
        )
        found = credentials.check({"data": url, "output": "/local"}, env, facts)
        assert states(found) == [("credentials", state)]
        assert text in found[0].text

    def test_nothing_secret_is_said(self):
        env = {"AWS_ACCESS_KEY_ID": "AKIASECRET", "AWS_SECRET_ACCESS_KEY": "verysecret"}
        env["GOOGLE_APPLICATION_CREDENTIALS"] = "/k"
        facts = credentials.Machine(
            read={"/k": '{"type": "service_account", "private_key": "verysecret"}'}.get,
            has_metadata=lambda cloud: False,
            has_driver=lambda name: False,
        )
        found = credentials.check({"data": "s3://b/x", "output": "gs://c/y"}, env, facts)
        said = " ".join(each.text for each in found)
        assert "verysecret" not in said
        assert "AKIASECRET" not in said
        assert states(found).count(("driver", ERROR)) == 2
        assert 'pip install "drumbeat[gcs]"' in said
        assert 'pip install "drumbeat[s3]"' in said

    @pytest.mark.parametrize("place", ["/data", "data", "hdfs://x", "", "gs:/x"])
    def test_other_places_need_none(self, place):
        def never(name: str) -> bool:
            raise AssertionError(name)

        facts = credentials.Machine(read=lambda name: None, has_metadata=never, has_driver=never)
        assert credentials.check({"data": place}, {}, facts) == []


def a_machine(**more) -> Machine:
    return Machine(
        **{
            "hostname": "a",
            "versions": VERSIONS,
            "cpus": 4,
            "shm_bytes": 64 * MIB,
            "shm_free_bytes": 64 * MIB,
            **more,
        }
    )


class TestMachine:
    @pytest.mark.parametrize(
        ("versions", "state", "text"),
        [
            ({}, OK, "tensorflow 2.21.0"),
            ({"tensorflow": ""}, ERROR, "tensorflow is not installed"),
            ({"tensorflow": "2.15.1"}, WARNING, "tensorflow is 2.15.1; drumbeat is made for 2.21."),
            ({"tensorflow": "2.22.0rc1"}, WARNING, "made for 2.21"),
            ({"keras": "2.15.0"}, WARNING, "made for 3.12 or later"),
            ({"keras": "3.13.0.dev1"}, OK, "keras 3.13.0.dev1"),
            ({"keras": "x"}, WARNING, "keras is x"),
        ],
    )
    def test_versions(self, versions, state, text):
        only(machine.check_versions({**VERSIONS, **versions}), state, text)

    @pytest.mark.parametrize(
        ("size", "free", "workers", "gpus", "state", "text"),
        [
            (64, 64, 2, 0, OK, "64 MiB, enough for 2 workers"),
            (64, 64, 1, 1, OK, "enough for one worker"),
            (64, 3, 2, 0, ERROR, "64 MiB, 3 of them free; 2 workers of one machine take 4"),
            (64, 64, 40, 0, ERROR, "take 80"),
            (64, 64, 4, 4, WARNING, "NCCL between 4 GPUs"),
            (1024, 1024, 4, 4, OK, "1024 MiB"),
            (0, 0, 1, 0, WARNING, "There is no /dev/shm"),
        ],
    )
    def test_dev_shm(self, size, free, workers, gpus, state, text):
        one = a_machine(shm_bytes=size * MIB, shm_free_bytes=free * MIB, gpus=gpus)
        only(machine.check_shm(one, workers, gpus), state, text)

    def test_data_and_output(self):
        good = a_machine(
            data=Place(name="/d", seen=True, files=3), output=Place(name="/o", seen=True)
        )
        assert {each.state for each in machine.check(good, workers=1)} == {OK}
        bad = a_machine(
            data=Place(name="/d", problem="/d does not exist here."),
            output=Place(name="/o", problem="/o is read-only."),
        )
        found = machine.check(bad, workers=1)
        assert [each.text for each in found if each.state == ERROR] == [
            "/d does not exist here.",
            "/o is read-only.",
        ]

    def test_it_travels_as_json(self):
        one = a_machine(data=Place(name="/d", seen=True), problems={"credentials": "x"}, gpus=2)
        sent = json.loads(json.dumps(one.to_json()))
        assert Machine.from_json(sent | {"of a later version": 1}) == one


def reached(nodes: int, **states: Reach) -> dict[tuple[int, int], Reach]:
    """All reach all, but for the pairs as "a01": 0 to 1."""
    found = {
        (who, whom): Reach(state=OPEN, wait_ms=0.3, ips=("10.0.0.1",))
        for who in range(nodes)
        for whom in range(nodes)
        if who != whom
    }
    return found | {(int(key[1]), int(key[2])): reach for key, reach in states.items()}


class TestTogether:
    def test_all_is_well(self):
        same = {rank: a_machine(script="ab", sources="cd") for rank in range(3)}
        found = together.check(same, reached(3))
        assert {each.state for each in found} == {OK}
        assert ("reach", OK) in states(found)

    @pytest.mark.parametrize(
        ("state", "text"),
        [
            (TIMEOUT, "firewall or network policy drops"),
            (REFUSED, "refuses the connection"),
            (NO_NAME, "its name is unknown there"),
            (NO_WAY, "no way to its address"),
            (OTHER, "something else answers"),
        ],
    )
    def test_one_direction_is_blocked(self, state, text):
        found = together.check_reach(reached(2, a01=Reach(state=state, ips=("10.0.0.2",))))
        only(found, ERROR, "Node 0 can't reach node 1 at 10.0.0.2: ")
        only(found, ERROR, text)
        only(found, ERROR, "The other direction works.")

    def test_both_directions_are_blocked(self):
        bad = Reach(state=TIMEOUT)
        found = together.check_reach(reached(2, a01=bad, a10=bad))
        assert states(found) == [("reach", ERROR), ("reach", ERROR)]
        assert not any("other direction" in each.text for each in found)

    @pytest.mark.parametrize(
        ("ahead_s", "state", "text"),
        [
            (0.1, OK, "at most 0.10 s"),
            (-3.0, WARNING, "node 1 is 3.0 s ahead of that of node 0"),
            (300.0, ERROR, "node 1 is 300.0 s behind that of node 0"),
        ],
    )
    def test_clocks(self, ahead_s, state, text):
        found = reached(2, a10=Reach(state=OPEN, ahead_s=ahead_s), a01=Reach(state=OPEN, ahead_s=9))
        only(together.check_clocks(found), state, text)

    @pytest.mark.parametrize(
        ("check", "other", "state", "text"),
        [
            ("versions", {"versions": {**VERSIONS, "keras": "3.12.0"}}, ERROR, "Versions differ"),
            ("script", {"script": "other"}, ERROR, "ab on nodes 0, 1; other on node 2"),
            ("sources", {"sources": "other"}, WARNING, "Python files are not the same"),
            ("sources", {"sources": "other", "files": {"a.py": "1", "b.py": "3"}}, WARNING,
             "They differ in b.py, c.py."),
            ("shm", {"shm_free_bytes": 1}, ERROR, "Node 2: /dev/shm has 64 MiB, 0 of them free"),
            ("machines", {"cpus": 2}, WARNING, "The machines differ: 4 CPUs, 0 GPUs on nodes 0, 1"),
            ("machines", {"gpus": 1}, WARNING, "4 CPUs, 1 GPUs on node 2"),
            ("machines", {"memory_bytes": 2**34}, WARNING, "16 GiB of memory on node 2"),
            ("data", {"data": Place(name="/d", seen=False, problem="/d does not exist here.")},
             ERROR, "'/d' can't be used on node 2: /d does not exist here. Expected the same"),
            ("data", {"data": Place(name="/d", seen=True, files=2)}, ERROR, "not as many files"),
            ("data", {"data": None}, WARNING, "Node 2 was not told of it"),
            ("output", {"output": Place(name="/o", problem="not seen here.")}, ERROR,
             "'/o' can't be used on node 2"),
            ("credentials", {"problems": {"credentials": "no key."}}, ERROR, "Node 2: no key."),
        ],
    )  # fmt: skip
    def test_a_node_differs(self, check, other, state, text):
        same = {
            "script": "ab",
            "sources": "cd",
            "files": {"a.py": "1", "b.py": "2", "c.py": "9"},
            "data": Place(name="/d", seen=True, files=3),
            "output": Place(name="/o", seen=True),
        }
        machines = {rank: a_machine(**same) for rank in range(3)}
        assert {each.state for each in together.check(machines, reached(3))} == {OK}
        machines[2] = a_machine(**{**same, **other})
        found = together.check(machines, reached(3))
        assert {each.check for each in found if each.state != OK} == {check}
        only(found, state, text)

    def test_what_is_missing_everywhere_is_said_of_each(self):
        found = together.check({0: a_machine(versions={}), 1: a_machine(versions={})}, reached(2))
        missing = [each.text for each in found if each.state == ERROR]
        assert len(missing) == 4
        assert missing[0].startswith("Node 0: tensorflow is not installed")

    def test_the_table(self):
        found = reached(3, a02=Reach(state=TIMEOUT))
        assert together.table({0: "a", 1: "b", 2: "c"}, found) == [
            "from \\ to       0       1        2",
            "0 a             -  0.3 ms  timeout",
            "1 b        0.3 ms       -   0.3 ms",
            "2 c        0.3 ms  0.3 ms        -",
        ]

    def test_the_table_of_many_nodes_has_those_with_problems(self):
        found = reached(9)
        found |= {(who, whom): Reach(state=OPEN) for who in range(40) for whom in range(40)}
        found |= {(7, 33): Reach(state=NO_NAME)}
        lines = together.table({rank: f"n{rank}" for rank in range(40)}, found)
        assert [line.split()[0] for line in lines] == ["from", "7", "33", "38"]
        assert lines[-1] == "38 more nodes reach all others."
        assert "name unknown" in lines[1]


def test_the_summary():
    def result(state):
        return Result(check="a", state=state, text="b")

    assert summary([result(OK)] * 3) == "All 3 checks are ok."
    assert summary([result(OK), result(ERROR)]) == "1 error in 2 checks."
    assert summary([result(WARNING), result(ERROR), result(ERROR)]) == (
        "2 errors and 1 warning in 3 checks."
    )
