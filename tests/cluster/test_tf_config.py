"""Good and bad TF_CONFIGs in tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumbeat.cluster import ClusterSpec, Task
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(60)

TWO = {"worker": ["a:1", "b:2"]}
W0 = {"type": "worker", "index": 0}
C0 = {"type": "chief", "index": 0}
EVAL = {"type": "evaluator", "index": 0}


def config(cluster: Any, task: Any = W0, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **more})


def read(source: Any) -> ClusterSpec:
    spec = ClusterSpec.from_tf_config(source)
    assert spec is not None
    return spec


GOOD = {
    "workers only": (config(TWO), Task("worker", 0), 2, 0),
    "second worker": (config(TWO, {"type": "worker", "index": 1}), Task("worker", 1), 2, 1),
    "index as text": (config(TWO, {"type": "worker", "index": "1"}), Task("worker", 1), 2, 1),
    "chief first": (config({"worker": ["b:1"], "chief": ["a:1"]}), Task("worker", 0), 2, 1),
    "chief alone": (config({"chief": ["a:1"]}, C0), Task("chief", 0), 1, 0),
    "master is chief": (
        config({"master": ["a:1"], "worker": ["b:1"]}, {"type": "master", "index": 0}),
        Task("chief", 0),
        2,
        0,
    ),
    "task master, job chief": (
        config({"chief": ["a:1"], "worker": ["b:1"]}, {"type": "master", "index": 0}),
        Task("chief", 0),
        2,
        0,
    ),
    "by index": (config({"worker": {"1": "b:2", "0": "a:1"}}), Task("worker", 0), 2, 0),
    "evaluator outside": (config(TWO, EVAL), Task("evaluator", 0), 2, -1),
    "evaluator inside": (config({**TWO, "evaluator": ["e:1"]}, EVAL), Task("evaluator", 0), 2, -1),
    "ps": (config({**TWO, "ps": ["p:1"]}, {"type": "ps", "index": 0}), Task("ps", 0), 2, -1),
    "platform extras": (
        config(TWO, {**W0, "trial": "1", "cloud": "x"}, job={"a": [1]}, session_master="s"),
        Task("worker", 0),
        2,
        0,
    ),
    "IPv6": (config({"worker": ["[::1]:2222", "[::1]:2223"]}), Task("worker", 0), 2, 0),
    "one host, two ports": (config({"worker": ["a:1", "a:2"]}), Task("worker", 0), 2, 0),
    "long names": (
        config({"worker": ["tfmw-worker-0.default.svc:2222", "cmle_training-1:65535"]}),
        Task("worker", 0),
        2,
        0,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_configs(name: str) -> None:
    text, task, world_size, rank = GOOD[name]
    spec = read(text)
    assert spec.task == task
    assert spec.world_size == world_size
    assert spec.rank_of(task) == rank
    assert read(spec.to_json()) == spec


@pytest.mark.parametrize(
    "text",
    ["{}", '{"cluster": {}}', '{"cluster": {}, "task": {}}', '{"cluster": {}, "job": {"x": 1}}'],
)
def test_no_cluster_means_local(text: str) -> None:
    assert ClusterSpec.from_env({"TF_CONFIG": text}) is None


def test_from_env() -> None:
    assert ClusterSpec.from_env({"PATH": "/bin"}) is None
    assert ClusterSpec.from_env({"TF_CONFIG": config(TWO)}) == read(config(TWO))


def bad(cluster: Any, task: Any = W0) -> str:
    return config(cluster, task)


BAD: dict[str, tuple[Any, list[str]]] = {
    # The text as a whole.
    "empty text": ("", ["set but empty", "Unset it"]),
    "blank text": ("  \n", ["set but empty"]),
    "single quotes": ("{'cluster': {}}", ["not JSON", "double quotes", "json.dumps"]),
    "quotes eaten": ("{cluster: {worker: [a:1]}}", ["not JSON", "single quotes around"]),
    "cut off": ('{"cluster": {', ["not JSON", "character"]),
    "very long number": ('{"task": ' + "9" * 5000 + "}", ["TF_CONFIG"]),
    "very deep": ("[" * 100_000, ["nested too deeply"]),
    "array": ("[1]", ["[1]", "expected a JSON object"]),
    "null": ("null", ["None", "expected a JSON object"]),
    "encoded twice": (json.dumps(config(TWO)), ["encoded as JSON twice"]),
    "repeated key": ('{"cluster": {"chief": ["a:1"], "chief": ["b:1"]}}', ["'chief'", "twice"]),
    "bytes": (b"{}", ["b'{}'", "expected a JSON object"]),
    # cluster and task as a pair.
    "no cluster": (json.dumps({"task": W0}), ["task", "no cluster", "Add"]),
    "empty cluster, task": (bad({}), ["no cluster", "unset TF_CONFIG"]),
    "misspelled cluster": (json.dumps({"clusters": TWO}), ["'clusters'", "'cluster'"]),
    "job beside cluster": (json.dumps({"worker": ["a:1"]}), ["'worker'", "inside"]),
    "no task": (json.dumps({"cluster": TWO}), ["no task", '"type": "worker"']),
    "empty task": (bad(TWO, {}), ["no task"]),
    "task a string": (bad(TWO, "worker"), ["task is 'worker'", "object"]),
    "task without type": (bad(TWO, {"index": 0}), ["no type"]),
    "task without index": (bad(TWO, {"type": "worker"}), ["no index"]),
    "task type a number": (bad(TWO, {"type": 3, "index": 0}), ["task.type is 3", "chief"]),
    "task type unknown": (bad(TWO, {"type": "Worker", "index": 0}), ["task.type", "'worker'?"]),
    "task type hopeless": (bad(TWO, {"type": "zzz", "index": 0}), ["'zzz'", "ps, evaluator."]),
    "task not in cluster": (bad(TWO, {"type": "ps", "index": 0}), ["ps 0", "no ps", "worker"]),
    "chief not listed": (bad(TWO, C0), ["chief 0", "no chief", "worker 0 is the chief"]),
    "index too high": (bad(TWO, {"type": "worker", "index": 2}), ["is 2", "indices 0 to 1"]),
    "index of a single": (
        bad({"chief": ["a:1"]}, {"type": "chief", "index": 1}),
        ["task.index is 1", "one address, index 0"],
    ),
    "index negative": (bad(TWO, {"type": "worker", "index": -1}), ["task.index is -1", "negative"]),
    "index negative text": (bad(TWO, {"type": "worker", "index": "-1"}), ["'-1'", "negative"]),
    "index a word": (bad(TWO, {"type": "worker", "index": "one"}), ["'one'", "whole number"]),
    "index a float": (bad(TWO, {"type": "worker", "index": 1.0}), ["1.0", "whole number"]),
    "index a bool": (bad(TWO, {"type": "worker", "index": True}), ["True", "whole number"]),
    "index enormous": ({"cluster": TWO, "task": {"type": "worker", "index": 10**5000}}, ["whole"]),
    "second evaluator": (bad(TWO, {"type": "evaluator", "index": 1}), ["evaluator 1", "one"]),
    # Jobs.
    "cluster a list": (bad(["a:1"]), ["cluster is ['a:1']", "object"]),
    "two chiefs": (bad({"chief": ["a:1", "b:1"]}, C0), ["cluster.chief", "2 addresses", "a:1"]),
    "two evaluators": (bad({**TWO, "evaluator": ["e:1", "f:1"]}), ["cluster.evaluator", "one"]),
    "chief and master": (bad({"chief": ["a:1"], "master": ["b:1"]}, C0), ["both chief and master"]),
    "empty job": (bad({**TWO, "ps": []}), ["cluster.ps is empty", "Leave the key out"]),
    "empty job by index": (bad({**TWO, "ps": {}}), ["cluster.ps is empty"]),
    "null job": (bad({"worker": {"0": "a:1"}, "ps": None}), ["cluster.ps is None", "list"]),
    "job a string": (bad({"worker": "a:1"}), ["cluster.worker is 'a:1'", "list"]),
    "only ps": (bad({"ps": ["a:1"]}, {"type": "ps", "index": 0}), ["nobody trains", "worker"]),
    "gap": (bad({"worker": {"0": "a:1", "2": "c:1"}}), ["0, 2 but not 1", "enableDynamicWorker"]),
    "own task only": (bad({"worker": {"1": "a:1"}}, {**W0, "index": 1}), ["1 but not 0"]),
    "gap in ps": (bad({**TWO, "ps": {"1": "p:1"}}), ["cluster.ps", "not 0"]),
    "index key a word": (bad({"worker": {"first": "a:1"}}), ["cluster.worker", "'first'"]),
    "index key twice": (bad({"worker": {"0": "a:1", "00": "b:1"}}), ["index 0 twice"]),
    # Addresses.
    "no port": (bad({"worker": ["a:1", "host"]}), ["cluster.worker[1]", "'host'", "no port"]),
    "IPv6 without port": (bad({"worker": ["[::1]"]}), ["no port", "[::1]:2222"]),
    "IPv6 without brackets": (bad({"worker": ["::1:2222"]}), ["brackets"]),
    "IPv6 malformed": (bad({"worker": ["[::g]:2222"]}), ["not a valid IP"]),
    "IPv4 malformed": (bad({"worker": ["10.0.0.300:1"]}), ["not a valid IP"]),
    "port a word": (bad({"worker": ["a:http"]}), ["'http'", "not a number"]),
    "port empty": (bad({"worker": ["a:"]}), ["''", "not a number"]),
    "port negative": (bad({"worker": ["a:-1"]}), ["'-1'", "not a number"]),
    "port 0": (bad({"worker": ["a:0"]}), ["out of range", "1 to 65535"]),
    "port too high": (bad({"worker": ["a:65536"]}), ["out of range", "1 to 65535"]),
    "port enormous": (bad({"worker": ["a:" + "9" * 5000]}), ["out of range"]),
    "no host": (bad({"worker": [":2222"]}), ["no host"]),
    "host with a space": (bad({"worker": ["a b:1"]}), ["'a b'", "host name"]),
    "host with a path": (bad({"worker": ["a/b:1"]}), ["'a/b'", "host name"]),
    "empty address": (bad({"worker": [""]}), ["cluster.worker[0]", "empty"]),
    "address a number": (bad({"worker": [2222]}), ["2222", "as a string"]),
    "address null": (bad({"worker": [None]}), ["None", "as a string"]),
    "scheme": (bad({"worker": ["grpc://a:1"]}), ["without 'grpc://'", "rpc_layer"]),
    "same address": (bad({"worker": ["a:1", "A.:1"]}), ["worker 0 and worker 1", "same address"]),
    "same across jobs": (bad({"chief": ["a:1"], "worker": ["a:1"]}, C0), ["chief 0 and worker 0"]),
    "same, two spellings": (bad({"worker": ["localhost:1", "127.0.0.1:1"]}), ["same address"]),
    "some loopback": (
        bad({"worker": ["localhost:1", "10.0.0.2:1"]}),
        ["worker 0 is at localhost:1", "worker 1 is at 10.0.0.2:1", "name or IP"],
    ),
    "some loopback, IPv6": (bad({"chief": ["10.0.0.2:1"], "worker": ["[::1]:1"]}, C0), ["chief 0"]),
    "some unspecified": (bad({"worker": ["0.0.0.0:1", "b:1"]}), ["worker 0 is at 0.0.0.0:1"]),
    # The rest.
    "rpc_layer": (config(TWO, rpc_layer=3), ["rpc_layer is 3", "string"]),
    "environment": (config(TWO, environment=["cloud"]), ["environment", "string"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configs(name: str) -> None:
    source, parts = BAD[name]
    with pytest.raises(ConfigError) as caught:
        ClusterSpec.from_tf_config(source)
    message = str(caught.value)
    assert message.startswith("TF_CONFIG: ")
    assert len(message) < 600
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("worker_hosts", "worker"),
        ("ps_hosts", "ps"),
        ("Worker", "worker"),
        ("workers", "worker"),
        ("wroker", "worker"),
        ("CHIEF", "chief"),
        ("Master", "chief"),
        ("parameter_server", "ps"),
        ("parameter-servers", "ps"),
        ("PS", "ps"),
        ("eval", "evaluator"),
        ("evalutor", "evaluator"),
        ("workerpool0", "chief"),
        ("workerpool1", "worker"),
        ("workerpool3", "evaluator"),
    ],
)
def test_unknown_jobs_get_the_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'") as caught:
        ClusterSpec.from_tf_config(config({name: ["a:1"], **TWO}))
    assert repr(name) in str(caught.value)
    assert ("CLUSTER_SPEC" in str(caught.value)) == name.startswith("workerpool")


def test_a_hopeless_name_gets_the_list() -> None:
    with pytest.raises(ConfigError, match="chief, worker, ps, evaluator") as caught:
        ClusterSpec.from_tf_config(config({"xyzzy": ["a:1"]}))
    assert "Did you mean" not in str(caught.value)
