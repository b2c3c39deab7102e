"""Compose: what is rendered, anybody's files, their mistakes, and the docker commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import registry
from drumbeat.platforms.compose import render as compose
from drumbeat.platforms.compose.client import ComposeClient
from drumbeat.platforms.compose.interpolation import Interpolation
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.merged import Merged
from drumbeat.platforms.platform import Manifest

SCHEMA = jsonschema.Draft7Validator(
    json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text())
)
GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"


class Ports:
    """Places in a rehearsal: 5001, 5002, …"""

    def __init__(self) -> None:
        self.last = 5000

    def port(self) -> int:
        self.last += 1
        return self.last


def job(**keys: object) -> Job:
    return Job.model_validate(
        {"name": "digits", "script": "train.py", "image": "team/digits:1", **keys}
    )


def services(wanted: Job) -> dict:
    """What is rendered, after a look at Compose's schema."""
    document = parse_yaml(compose.render(wanted).main, "compose.yaml")[0].value
    SCHEMA.validate(document)
    return document["services"]


def manifest(text: str, folder: Path = Path("/nowhere")) -> Manifest:
    documents = tuple(parse_yaml(text, "compose.yaml"))
    return Manifest(path=folder / "compose.yaml", text=text, documents=documents)


# ---- rendering


def test_each_task_is_a_service_with_its_tf_config():
    found = services(job(workers=3))
    assert list(found) == ["chief", "worker-0", "worker-1"]
    cluster = {"chief": ["chief:2222"], "worker": ["worker-0:2222", "worker-1:2222"]}
    for name, task in (("chief", ("chief", 0)), ("worker-1", ("worker", 1))):
        text = found[name]["environment"]["TF_CONFIG"]
        assert json.loads(text) == {
            "cluster": cluster,
            "task": {"type": task[0], "index": task[1]},
        }
        assert ClusterSpec.from_tf_config(text) is not None
    assert "TF_CONFIG: '{" in compose.render(job(workers=3)).main


def test_parameter_servers_are_services_beside_a_chief_that_coordinates():
    found = services(job(workers=2, ps=1))
    assert list(found) == ["chief", "worker-0", "worker-1", "ps-0"]
    assert json.loads(found["ps-0"]["environment"]["TF_CONFIG"])["cluster"]["ps"] == ["ps-0:2222"]
    assert "--ps" not in found["chief"]["command"]


def test_no_job_of_the_cluster_is_ever_empty():
    for keys in ({"workers": 2}, {"workers": 1, "ps": 1}, {"workers": 4, "ps": 2}):
        tasks = compose.tasks_of(job(**keys))
        assert all(compose.tf_config(tasks[0], tasks)["cluster"].values())


def test_one_node_needs_neither_tf_config_nor_token():
    found = services(job(workers=2, devices={"count": 2}))["chief"]
    assert found["command"] == ["drumbeat", "run", "-n", "2", "train.py"]
    assert "environment" not in found
    assert "healthcheck" not in found
    assert services(job(workers=1, ps=0)).keys() == {"chief"}


def test_dollars_are_doubled_but_for_ours():
    found = services(job(args=["$HOME", "a${b}"], environment={"PRICE": "5$"}))["chief"]
    assert found["command"][-2:] == ["$$HOME", "a$${b}"]
    assert found["environment"]["PRICE"] == "5$$"
    assert found["environment"]["DRUMBEAT_TOKEN"].startswith("${DRUMBEAT_TOKEN:?")


def test_a_key_file_is_mounted_read_only_from_this_machine():
    secret = {"name": "gcp-key", "key": "sa.json", "path": "/secrets/gcp", "env": GOOGLE}
    found = services(job(secrets=[secret], output="gs://bucket/out"))["worker-0"]
    assert found["environment"][GOOGLE] == "/secrets/gcp/sa.json"
    [volume] = found["volumes"]
    assert volume["source"].startswith(f"${{{GOOGLE}:?")
    assert volume["target"] == "/secrets/gcp/sa.json"
    assert volume["read_only"] is True


def test_a_bucket_of_googles_asks_for_the_key_by_itself():
    found = services(job(data="gs://bucket/data"))["chief"]
    assert found["environment"][GOOGLE] == found["volumes"][0]["target"]
    assert "volumes" not in services(job(data="s3://bucket/data"))["chief"]
    assert "AWS_ACCESS_KEY_ID" in " ".join(compose.render(job(data="s3://bucket/data")).notes)


def test_other_secrets_come_by_variable_or_folder():
    secrets = [{"name": "hub", "env": "HUB_TOKEN"}, {"name": "tls", "path": "/tls"}]
    found = services(job(secrets=secrets))["chief"]
    assert found["environment"]["HUB_TOKEN"] == "${HUB_TOKEN:?the secret hub}"
    assert found["volumes"] == [
        {"type": "bind", "source": "./secrets/tls", "target": "/tls", "read_only": True}
    ]


def test_mounts_are_volumes_folders_or_nfs():
    mounts = [
        {"name": "out", "path": "/out"},
        {"name": "data", "path": "/data", "source": "./data", "read_only": True},
        {"name": "share", "path": "/share", "source": "nas:/export"},
    ]
    text = compose.render(job(mounts=mounts)).main
    document = parse_yaml(text, "compose.yaml")[0].value
    SCHEMA.validate(document)
    kinds = [(each["type"], each["source"]) for each in document["services"]["chief"]["volumes"]]
    assert kinds == [("volume", "out"), ("bind", "./data"), ("volume", "share")]
    assert document["volumes"]["share"]["driver_opts"]["o"] == "addr=nas,rw"


def test_gpus_are_each_containers_own_or_all():
    gpus = {"type": "gpu", "count": 2}
    found = services(job(workers=4, devices=gpus))
    ids = [
        each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for each in found.values()
    ]
    assert ids == [["0", "1"], ["2", "3"]]
    shared = services(job(workers=4, devices=gpus, compose={"gpus": True}))["chief"]
    assert shared["deploy"]["resources"]["reservations"]["devices"][0]["count"] == "all"


def test_the_grace_has_room_to_end_and_shm_is_given():
    chief = services(job())["chief"]
    assert (chief["stop_grace_period"], chief["shm_size"]) == ("30s", "2048m")
    chief = services(job(run={"grace": 90}, resources={"shm": "1Gi", "memory": "3Gi"}))["chief"]
    assert (chief["stop_grace_period"], chief["shm_size"]) == ("95s", "1024m")
    assert chief["mem_limit"] == "3072m"
    assert chief["init"] is True
    assert chief["restart"] == "on-failure:3"


def test_nobody_waits_for_anothers_health():
    for service in services(job(workers=3)).values():
        assert "depends_on" not in service
        assert "('chief', 2222)" in service["healthcheck"]["test"][-1]


def test_what_compose_has_not_is_said():
    notes = " ".join(compose.render(job(machine_type="n1", timeouts={"total": "2h"})).notes)
    assert "machine_type has no equivalent" in notes
    assert "timeouts.total has no equivalent" in notes
    [note] = compose.render(job(output="/out/run")).notes
    assert "output is /out/run, which is in no mount" in note
    assert (
        compose.render(job(output="/out/run", mounts=[{"name": "o", "path": "/out"}])).notes == ()
    )


def test_without_an_image_there_is_a_message():
    with pytest.raises(ConfigError, match="no image"):
        compose.render(Job.model_validate({"name": "digits", "script": "train.py"}))


def test_build_is_asked_for():
    assert services(job(compose={"build": True}))["worker-0"]["build"] == "."


# ---- variables in a file


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$$HOME", "$HOME"),
        ("$A-$B_", "a-"),
        ("${A}x${EMPTY}", "ax"),
        ("${EMPTY:-d}${EMPTY-d}", "d"),
        ("${NONE:-d}${NONE-e}", "de"),
        ("${NONE:-${A}}", "a"),
        ("${A:+yes}${EMPTY:+no}${EMPTY+set}", "yesset"),
        ("${A:?needed}", "a"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
    ],
)
def test_interpolation(text, value):
    assert Interpolation({"A": "a", "EMPTY": ""}).text(text) == value


@pytest.mark.parametrize("text", ["$", "a$ b", "${", "${A", "${}", "${A b}", "$(A)", "${1}"])
def test_a_dollar_that_begins_nothing(text):
    with pytest.raises(ConfigError, match=r"write \$\$ for a dollar sign"):
        Interpolation({"A": "a"}).text(text)


def test_endless_nesting_is_a_message():
    with pytest.raises(ConfigError, match=r"write \$\$"):
        Interpolation({}).text("${A:-" * 40 + "x" + "}" * 40)


def test_missing_variables_are_noted():
    found = Interpolation({"E": ""})
    found.of({"a": ["${X:?say X}", "${E:?say E}", "$Y"]})
    assert found.required == {"X": "say X", "E": "say E"}
    assert found.unset == {"Y"}


# ---- rehearsal

THEIRS = """
x-task: &task
  image: example/train:1
  entrypoint: drumbeat run
  command: "--grace 5 train.py --name 'a b'"
  volumes: ["./data:/data:ro"]
services:
  db: {image: postgres}
  second:
    <<: *task
    hostname: w1
    environment:
      - TF_CONFIG={"cluster":{"worker":["first:2222","w1:2222"]},"task":{"type":"worker","index":1}}
      - DRUMBEAT_TOKEN=${DRUMBEAT_TOKEN:?}
      - LEVEL=${LEVEL:-3}
      - SHELLS_OWN
  first:
    <<: *task
    environment:
      TF_CONFIG: >-
        {"cluster":{"worker":["first:2222","w1:2222"]},"task":{"type":"worker","index":0}}
      DRUMBEAT_TOKEN: ${DRUMBEAT_TOKEN:?}
      FLAG: true
      PRICE: 5$$
      WHERE: first:2222, db:5432
"""


def test_rehearsal_of_somebodys_file(monkeypatch):
    monkeypatch.delenv("LEVEL", raising=False)
    monkeypatch.delenv("SHELLS_OWN", raising=False)
    monkeypatch.delenv("DRUMBEAT_TOKEN", raising=False)
    found = compose.PLATFORM.rehearse(manifest(THEIRS), Ports())
    assert [each.name for each in found.processes] == ["first", "second"]
    first, second = found.processes
    assert first.command == (*("drumbeat", "run", "--grace", "5", "train.py", "--name", "a b"),)
    workers = '{"cluster":{"worker":["127.0.0.1:5001","127.0.0.1:5002"]}'
    assert second.env == {
        "TF_CONFIG": workers + ',"task":{"type":"worker","index":1}}',
        "DRUMBEAT_TOKEN": "rehearsed",
        "LEVEL": "3",
    }
    assert first.env == {
        "TF_CONFIG": workers + ',"task":{"type":"worker","index":0}}',
        "DRUMBEAT_TOKEN": "rehearsed",
        "FLAG": "true",
        "PRICE": "5$",
        "WHERE": "127.0.0.1:5001, db:5432",
    }
    said = " ".join(found.differences)
    assert "example/train:1" in said
    assert "Nothing is mounted here: ./data:/data:ro" in said
    assert "don't train: db" in said


def test_rehearsal_of_what_is_rendered(tmp_path):
    secret = {"name": "gcp-key", "key": "sa.json", "path": "/secrets/gcp", "env": GOOGLE}
    wanted = job(workers=2, ps=1, secrets=[secret], environment={"A": "$x"}, output="gs://b/o")
    text = compose.render(wanted).main
    found = compose.PLATFORM.rehearse(manifest(text, tmp_path), Ports())
    assert [(each.name, each.is_main) for each in found.processes] == [
        ("chief", True),
        ("worker-0", True),
        ("worker-1", True),
        ("ps-0", False),
    ]
    chief = found.processes[0]
    assert chief.env.keys() == {"A", "DRUMBEAT_OUTPUT", GOOGLE, "DRUMBEAT_TOKEN", "TF_CONFIG"}
    assert chief.env["A"] == "$x"
    cluster = json.loads(chief.env["TF_CONFIG"])["cluster"]
    assert cluster["worker"] == ["127.0.0.1:5002", "127.0.0.1:5003"]
    assert chief.command[:2] == ("drumbeat", "run")
    assert any(GOOGLE in each for each in found.differences) is (GOOGLE not in os.environ)


def test_env_files_and_dot_env(tmp_path):
    (tmp_path / ".env").write_text("# a comment\nTAG='v2' \nexport UNUSED=1\n")
    (tmp_path / "train.env").write_text('DRUMBEAT_DATA="/d"\nA=1 # one\n')
    text = (
        "services: {t: {image: 'train:$TAG', command: drumbeat run train.py, "
        "env_file: [train.env, {path: none.env, required: false}], environment: {A: 2}}}"
    )
    found = compose.PLATFORM.rehearse(manifest(text, tmp_path), Ports())
    assert found.processes[0].env == {"DRUMBEAT_DATA": "/d", "A": "2"}
    assert "train:v2" in found.differences[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {}", "no services"),
        ("services: {db: {image: postgres}}", "No service of compose.yaml has TF_CONFIG"),
        ("services: {t: 5}", "service t is 5"),
        ("services: {t: {environment: {TF_CONFIG: {cluster: {}}}}}", "as JSON in single quotes"),
        ("services: {t: {environment: 5}}", "expected a mapping or a list"),
        ('services: {t: {command: "drumbeat \'run"}}', "No closing quotation"),
        ("services: {t: {command: {a: 1}}}", "expected text or a list of words"),
        ("services: {t: {extends: {service: a}}}", "docker compose -f compose.yaml config"),
        ("services: {t: {image: 'a$'}}", "write $$"),
        ("services: {t: {environment: {TF_CONFIG: '{}'}}}", "Write command: into the file"),
        ("services: {t: {environment: ['=5']}}", "can't be a variable"),
        ("services: {t: {env_file: none.env}}", "none.env does not exist"),
        ("services: {t: {env_file: bad.env}}", "'A' can't be a variable"),
    ],
)
def test_what_cant_be_rehearsed(text, message, tmp_path):
    (tmp_path / "bad.env").write_text("A=\0")
    with pytest.raises(ConfigError) as error:
        compose.PLATFORM.rehearse(manifest(text, tmp_path), Ports())
    assert message in str(error.value)


# ---- doctor


def two(**changes: str) -> str:
    """A file with two workers, with changes to the first."""
    own = {"image": "train:1", "shm_size": "2g", "more": "", "tf": "", **changes}
    cluster = '{"cluster":{"worker":["a:2222","b:2222"]},"task":{"type":"worker","index":%d}}'
    first = own["tf"] or "'" + cluster % 0 + "'"
    return f"""
services:
  a:
    image: {own["image"]}
    shm_size: {own["shm_size"]}
    environment: {{TF_CONFIG: {first}}}
    {own["more"]}
  b:
    image: train:1
    shm_size: 2g
    environment: {{TF_CONFIG: '{cluster % 1}'}}
"""


def test_nothing_is_wrong_with_what_is_rendered(tmp_path, monkeypatch):
    for name in ("DRUMBEAT_TOKEN", GOOGLE):
        monkeypatch.setenv(name, "x")
    for keys in ({"workers": 3}, {"ps": 2}, {"output": "gs://b/o"}, {"devices": {"count": 2}}):
        text = compose.render(job(**keys)).main
        assert compose.PLATFORM.problems(manifest(text, tmp_path)) == []
    assert compose.PLATFORM.problems(manifest(two(), tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (two(tf="{cluster: {worker: [a:2222]}}"), "TF_CONFIG is a mapping"),
        (two(tf='\'{"cluster":{"worker":["a:2222"],"ps":[]},"task":{}}\''), "service a: TF_CONFIG"),
        (two(tf="\"{'cluster': {'worker': ['a:2222']}}\""), "service a: TF_CONFIG"),
        (
            two(
                tf='\'{"cluster":{"worker":["a:2222","b:2222"]},'
                '"task":{"type":"worker","index":2}}\''
            ),
            "service a: TF_CONFIG",
        ),
        (
            two(
                tf='\'{"cluster":{"worker":["a:2222","b:2222"]},'
                '"task":{"type":"worker","index":1}}\''
            ),
            "services a and b are both worker 1",
        ),
        (
            two(
                tf='\'{"cluster":{"worker":["a:2222","c:2222"]},'
                '"task":{"type":"worker","index":0}}\''
            ),
            "different clusters",
        ),
        (two(more="ports: ['6006:6006', '6006:6007']"), "publishes the port 6006 twice"),
        (two(more="scale: 2"), "scale: 2, but all of its containers would have the same"),
        (two(more="deploy: {replicas: 3}"), "deploy.replicas: 3"),
        (
            "services: {t: {image: i, command: drumbeat run t.py, deploy: {replicas: 2}}}",
            "deploy.replicas: 2, but nothing tells its containers",
        ),
        (two(more="depends_on: {b: {condition: service_healthy}}"), "waits until b is healthy"),
        (two(more="network_mode: none"), "can't reach the others"),
        (two(image="''"), "neither image nor build"),
        (two(more="restart: '$NOT_SET_ANYWHERE'"), "NOT_SET_ANYWHERE of the file is not set"),
        (
            two().replace("shm_size: 2g\n    environment: {TF", "environment: {TF", 1),
            "service a has no shm_size",
        ),
        (
            two().replace("{TF_CONFIG", f"{{{GOOGLE}: /k/sa.json, TF_CONFIG", 1),
            "no volume or secret that would put it there",
        ),
        (
            two().replace("{TF_CONFIG", "{DRUMBEAT_TOKEN: abc, TF_CONFIG", 1),
            "has the value of DRUMBEAT_TOKEN in the file",
        ),
        (two().replace("a:2222", "localhost:2222").replace("b:2222", "localhost:2223"), "itself"),
        (two().replace("b:2222", "bee:2222"), "bee for worker 1, which is no service"),
        (
            "services: {a: {image: t, shm_size: 1g, environment: {TF_CONFIG: "
            '\'{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":0}}\'}}}',
            "no service is worker 1",
        ),
        ("services: [a]", "no services"),
        ("5", "no services"),
        ("services: {t: {image: '${'}}", "write $$"),
    ],
)
def test_mistakes_in_a_file(text, message, tmp_path):
    found = compose.PLATFORM.problems(manifest(text, tmp_path))
    assert any(message in each for each in found), found


def test_it_is_recognised(tmp_path):
    (tmp_path / "compose.yaml").write_text(THEIRS)
    assert registry.recognise(registry.read_manifest(tmp_path / "compose.yaml")).name == "compose"
    assert not compose.PLATFORM.recognises(manifest("kind: JobSet\nservices: {}"))


# ---- who a container is, by the TF_CONFIG that a Compose file gives it

OF_TWO = '{"cluster": {"chief": ["chief:2222"], "worker": ["worker-0:2222"]}, "task": %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{'cluster': {'worker': ['worker-0:2222']}}",
            "JSON wants double quotes",
        ),  # a mapping, printed
        (OF_TWO % '{"type": "worker", "index": 1}', "index"),  # scaled, not written out
        (OF_TWO % '{"type": "worker-0", "index": 0}', "worker-0"),  # the service's name
        (OF_TWO.replace("2222", "") % '{"type": "chief", "index": 0}', "port"),
        (
            OF_TWO.replace('"chief:2222"', '"localhost:2222"') % '{"type": "chief", "index": 0}',
            "localhost",
        ),
        ('{"cluster": {"worker": ["w:2222"], "ps": []}, "task": {"type": "worker"}}', "ps"),
        (OF_TWO.replace("worker-0:2222", "chief:2222") % '{"type": "chief", "index": 0}', "chief"),
        ("", "empty"),  # ${TF_CONFIG} of a shell that has none
    ],
)
def test_broken_environments(text, message):
    with pytest.raises(ConfigError, match="TF_CONFIG") as error:
        ClusterSpec.from_env({"TF_CONFIG": text})
    assert message in str(error.value)


# ---- the docker commands

DOCKER = """#!/bin/sh
echo "docker $*" >> "$CALLS"
[ -n "$NO_DAEMON" ] && { echo "Cannot connect to the Docker daemon at $DOCKER_HOST" >&2; exit 1; }
case "$1 $2" in
  "compose version") exit ${NO_PLUGIN:-0};;
  "compose -p") cat > "$CALLS.stdin"; echo "$DRUMBEAT_TOKEN" > "$CALLS.token"; exit ${UP:-0};;
  "ps --all") cat "$CALLS.ids" 2>/dev/null; exit 0;;
  "inspect --format") echo exited;;
  "inspect "*) cat "$CALLS.inspect";;
  "network ls") echo net1;;
  "logs --timestamps")
    [ -n "$NO_LOGS" ] && { echo "2026-01-01T00:00:00Z odd"; exit 1; }
    echo "2026-01-01T00:00:00Z one"; echo "2026-01-01T00:00:01Z two" >&2;;
esac
"""


def container(name: str, status: str, code: int = 0, **more: object) -> dict:
    return {
        "Id": f"id-{name}",
        "Name": f"/digits-{name}-1",
        "Config": {"Labels": {"com.docker.compose.service": name}, "StopTimeout": 30},
        "State": {"Status": status, "ExitCode": code, **more},
    }


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment in which docker is a script that notes how it is called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}


def calls(env: dict[str, str]) -> list[str]:
    return Path(env["CALLS"]).read_text().splitlines()


def have(env: dict[str, str], *containers: dict) -> None:
    Path(env["CALLS"] + ".ids").write_text("\n".join(each["Id"] for each in containers))
    Path(env["CALLS"] + ".inspect").write_text(json.dumps(containers))


def test_dry_run_shows_the_call_and_no_token():
    client = ComposeClient(job(), folder=Path("/w"), environ={"PATH": "/nowhere"})
    [line] = client.plan(job(), compose.render(job()))
    assert line == (
        "DRUMBEAT_TOKEN=(made anew) docker compose -p digits --project-directory /w -f - up -d "
        "< compose.yaml"
    )


def test_plan_has_the_compose_that_is_here(tmp_path):
    for name, code in (("docker", 1), ("docker-compose", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    client = ComposeClient(job(), folder=tmp_path, environ={"PATH": str(tmp_path)})
    [line] = client.plan(job(), compose.render(job()))
    assert line.startswith("DRUMBEAT_TOKEN=(made anew) docker-compose -p digits ")


def test_submit_gives_the_file_and_a_token(fake, tmp_path):
    rendered = compose.render(job())
    assert ComposeClient(job(), environ=fake, folder=tmp_path).submit(job(), rendered) == "digits"
    assert calls(fake)[-1].endswith("-f - up -d")
    assert Path(fake["CALLS"] + ".stdin").read_text() == rendered.main
    token = Path(fake["CALLS"] + ".token").read_text().strip()
    assert len(token) == 64
    assert token not in Path(fake["CALLS"]).read_text()


def test_a_token_of_the_users_is_kept(fake, tmp_path):
    env = fake | {"DRUMBEAT_TOKEN": "mine"}
    ComposeClient(job(), environ=env, folder=tmp_path).submit(job(), compose.render(job()))
    assert Path(fake["CALLS"] + ".token").read_text().strip() == "mine"


def test_the_older_program_does_too(fake, tmp_path):
    script = "#!/bin/sh\necho older $* >> $CALLS\ncat > /dev/null\n"
    old = tmp_path / "bin" / "docker-compose"
    old.write_text(script)
    old.chmod(0o755)
    env = fake | {"NO_PLUGIN": "1"}
    ComposeClient(job(), environ=env, folder=tmp_path).submit(job(), compose.render(job()))
    assert calls(fake)[-1].startswith("older -p digits")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PATH": "/nowhere"}, "docker is not on this machine"),
        ({"NO_PLUGIN": "1", "PATH_ONLY": "1"}, "Docker Compose is not on this machine"),
        ({"NO_DAEMON": "1"}, "Cannot connect to the Docker daemon"),
        ({"UP": "17"}, "ended with code 17"),
    ],
)
def test_what_keeps_a_job_from_being_submitted(fake, tmp_path, changes, message):
    env = fake | changes
    if env.pop("PATH_ONLY", None):
        env["PATH"] = fake["PATH"].partition(":")[0]
    with pytest.raises(ConfigError, match=message):
        ComposeClient(job(), environ=env, folder=tmp_path).submit(job(), compose.render(job()))


def test_what_the_file_requires_is_asked_for_first(fake, tmp_path):
    wanted = job(output="gs://b/o", secrets=[{"name": "hub", "env": "HUB_TOKEN"}])
    client, rendered = ComposeClient(wanted, environ=fake), compose.render(wanted)
    with pytest.raises(ConfigError, match="HUB_TOKEN is not set; expected the secret hub"):
        client.submit(wanted, rendered)
    env = fake | {"HUB_TOKEN": "x", GOOGLE: str(tmp_path / "none.json")}
    with pytest.raises(ConfigError, match=r"none\.json, which is no file"):
        ComposeClient(wanted, environ=env).submit(wanted, rendered)
    assert not Path(fake["CALLS"]).exists()


@pytest.mark.parametrize(
    ("containers", "state", "words"),
    [
        ([("a", "running", 0), ("b", "exited", 1)], "running", "exited with code 1"),
        ([("a", "created", 0), ("b", "exited", 0)], "pending", "exited with code 0"),
        ([("a", "exited", 0), ("b", "exited", 0)], "succeeded", "exited with code 0"),
        ([("a", "exited", 0), ("b", "exited", 3)], "failed", "exited with code 3"),
        ([("a", "exited", 75), ("b", "exited", 143)], "stopped", "exited with code 143"),
    ],
)
def test_status(fake, containers, state, words):
    have(fake, *(container(*each) for each in containers))
    found = ComposeClient(job(), environ=fake).status("digits")
    assert found.state == state
    assert found.tasks["b"] == words


def test_status_tells_health_memory_and_restarts(fake):
    healthy = container("a", "running", Health={"Status": "unhealthy"})
    have(fake, healthy | {"RestartCount": 2}, container("b", "exited", 137, OOMKilled=True))
    found = ComposeClient(job(), environ=fake).status("digits")
    assert found.tasks == {
        "a": "running, unhealthy, restarted 2 times",
        "b": "exited with code 137, out of memory",
    }


def test_no_such_job(fake):
    client = ComposeClient(job(), environ=fake)
    for call in (
        client.status,
        client.stop,
        lambda name: list(client.logs(name, task=None, follow=False)),
    ):
        with pytest.raises(ConfigError, match="no containers of a project digits"):
            call("digits")


def test_logs_of_all_or_one(fake):
    have(fake, container("a", "exited"), container("b", "exited"))
    client = ComposeClient(job(), environ=fake)
    lines = list(client.logs("digits", task=None, follow=True))
    assert sorted(lines) == ["a: one", "a: two", "b: one", "b: two"]
    assert list(client.logs("digits", task="b", follow=False)) == ["b: one", "b: two"]
    with pytest.raises(ConfigError, match="digits has no task 'c'; expected one of a, b"):
        next(client.logs("digits", task="c", follow=False))


def test_logs_that_cant_be_read_are_a_failure(fake):
    have(fake, container("a", "exited"), container("b", "exited"))
    lines = ComposeClient(job(), environ=fake | {"NO_LOGS": "1"}).logs(
        "digits", task=None, follow=False
    )
    assert sorted([next(lines), next(lines)]) == ["a: odd", "b: odd"]
    with pytest.raises(DrumbeatError, match="docker ended with code 1; what it says is above"):
        next(lines)


def test_a_program_that_is_gone_meanwhile_is_a_failure():
    merged = Merged()
    merged.start(lambda: merged.run(["/no/such/program"], {}))
    with pytest.raises(ConfigError, match="/no/such/program can't be started: No such file"):
        next(merged.lines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_programs_that_follow_end_with_the_command(fake, tmp_path, number):
    have(fake, container("a", "running"))
    docker = tmp_path / "bin" / "docker"
    waiting = '"logs --timestamps") echo "now $$"; exec sleep 100;;\n  x)'
    docker.write_text(DOCKER.replace('"logs --timestamps")', waiting))
    (tmp_path / "drumbeat.yaml").write_text("name: digits\nscript: train.py\n")
    words = [sys.executable, "-m", "drumbeat", "logs", "compose", "digits", "--follow"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=os.environ | fake, stdout=subprocess.PIPE, text=True
    ) as drumbeat:
        assert drumbeat.stdout is not None
        program = int(drumbeat.stdout.readline().split()[-1])
        drumbeat.send_signal(number)
        assert drumbeat.wait(30) == 128 + number
    deadline = time.monotonic() + 10
    while Path(f"/proc/{program}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{program}").exists()


@pytest.mark.parametrize(
    "said",
    ["", "<html>", "5", "[5]", "[{}]", '[{"Id": "a"}]', '[{"Id": 1, "Config": {"Labels": null}}]',
     '[{"Id": "a", "Name": "a", "Config": {"Labels": {}}, "State": "up"}]'],
)  # fmt: skip
def test_answers_that_are_none(fake, said):
    have(fake, container("a", "running"))
    Path(fake["CALLS"] + ".inspect").write_text(said)
    client = ComposeClient(job(), environ=fake)
    for call in (client.status, client.stop):
        with pytest.raises(ConfigError, match="docker inspect gave an answer that can't be read"):
            call("digits")


def test_answers_in_other_encodings(fake):
    one = container("caf\xe9", "running")
    have(fake, one)
    text = json.dumps([one], ensure_ascii=False)
    Path(fake["CALLS"] + ".inspect").write_bytes(text.encode("latin-1"))
    assert ComposeClient(job(), environ=fake).status("digits").state == "running"


@pytest.mark.parametrize("status", ["running", "restarting", "paused"])
def test_a_job_that_runs_is_not_begun_again(fake, tmp_path, status):
    have(fake, container("chief", "exited"), container("worker-0", status))
    client = ComposeClient(job(), environ=fake, folder=tmp_path)
    with pytest.raises(ConfigError, match="digits runs here already.*drumbeat stop compose digits"):
        client.submit(job(), compose.render(job()))
    assert not any(" up " in line for line in calls(fake))
    have(fake, container("chief", "exited"), container("worker-0", "exited", 1))
    assert client.submit(job(), compose.render(job())) == "digits"


def test_stop_takes_containers_and_networks_away(fake):
    have(fake, container("a", "running"), container("b", "exited"))
    ComposeClient(job(), environ=fake).stop("digits")
    assert calls(fake)[-4:] == [
        "docker stop id-a id-b",
        "docker rm --force id-a id-b",
        "docker network ls -q --filter label=com.docker.compose.project=digits",
        "docker network rm net1",
    ]


def test_more_containers_than_a_machine_has_room_for():
    assert len(services(job(workers=128))) == 128
    with pytest.raises(ConfigError, match=r"129 containers.*at most 128"):
        compose.render(job(workers=129))


# ---- a rehearsal that trains


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_rehearsal_trains(tmp_path):
    """The services of what is rendered find each other as processes and take steps together."""
    shutil.copy(Path(__file__).parent / "train_random.py", tmp_path / "train.py")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    (tmp_path / "compose.yaml").write_text(compose.render(job(environment=quiet)).main)
    words = ["rehearse", "compose.yaml", "--steps", "3", "--timeout", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", *words],
        cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chief" in done.stdout
    assert "worker-0" in done.stdout
    assert "Containers have the Python and the packages of the image team/digits:1" in done.stdout
