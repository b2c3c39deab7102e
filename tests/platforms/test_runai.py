"""Run:ai: both command lines, the body, anybody's scripts, and a runai that notes its calls."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.runai import body as runai_body
from drumbeat.platforms.runai import flags as runai_flags
from drumbeat.platforms.runai import render as runai
from drumbeat.platforms.runai.client import RunaiClient

SECRETS = [
    {"name": "gcp", "key": "sa.json", "path": "/s", "env": "GOOGLE_APPLICATION_CREDENTIALS"},
    {"name": "hub", "env": "HUB_TOKEN"},
]
IDS = {"project": "team", "project_id": "12", "cluster_id": "71f69d83-ba66-4822-adf5-55ce55efd210"}


class Ports:
    def __init__(self) -> None:
        self.last = 5000

    def port(self) -> int:
        self.last += 1
        return self.last


def job(**keys: object) -> Job:
    return Job.model_validate(
        {"name": "digits", "script": "train.py", "image": "team/digits:1", **keys}
    )


def manifest(text: str) -> Manifest:
    is_script = text.startswith("#!")
    documents = () if is_script else tuple(parse_yaml(text, "runai.yaml"))
    name = "runai.sh" if is_script else "runai.yaml"
    return Manifest(path=Path("/nowhere") / name, text=text, documents=documents)


def pairs(words: list[str]) -> set[tuple[str, str]]:
    return set(zip(words, words[1:], strict=False))


# ---- rendering


def test_the_command_of_v2():
    wanted = job(
        workers=4,
        devices={"type": "gpu", "count": 2},
        resources={"cpu": 8, "memory": "16Gi"},
        environment={"A": "x y"},
        runai={**IDS, "node_pools": ["a", "b"]},
        secrets=SECRETS,
    )
    words = runai.submit_words(wanted)
    assert words[:5] == ["runai", "training", "tensorflow", "submit", "digits"]
    assert {
        ("-p", "team"),
        ("-i", "team/digits:1"),
        ("--workers", "2"),
        ("-g", "2"),
        ("--cpu-core-request", "8"),
        ("--cpu-memory-request", "16Gi"),
        ("-e", "A=x y"),
        ("-e", "HUB_TOKEN=SECRET:hub,hub"),
        ("--secret-volume", "path=/s,name=gcp"),
        ("-e", "GOOGLE_APPLICATION_CREDENTIALS=/s/sa.json"),
        ("-e", "DRUMBEAT_TOKEN=SECRET:digits-drumbeat,token"),
        ("--node-pools", "a"),
        ("--node-pools", "b"),
    } <= pairs(words)
    assert {"--no-master", "--large-shm"} <= set(words)
    assert words[words.index("--command") :] == [
        *("--command", "--", "drumbeat", "run", "-n", "2", "train.py"),
    ]


def test_the_command_of_v1():
    wanted = job(
        resources={"cpu": 8, "memory": "16Gi"},
        runai={"cli": "v1", "gpu_portion": 0.5},
        secrets=SECRETS[1:],
        devices={"type": "gpu", "count": 1},
    )
    words = runai.submit_words(wanted)
    assert words[:5] == ["runai", "submit-dist", "tf", "--name", "digits"]
    assert {("-g", "0.5"), ("--cpu", "8"), ("--memory", "16Gi")} <= pairs(words)
    assert ("-e", "HUB_TOKEN=SECRET:hub,hub") in pairs(words)
    assert "-p" not in words


def test_long_names_that_changed_their_meaning_are_not_used():
    for cli in ("v1", "v2"):
        text = runai.render(job(runai={"cli": cli}, environment={"A": "1"})).main
        assert "--environment" not in text


@pytest.mark.parametrize("cli", ["v1", "v2"])
def test_bash_takes_the_script_and_all_flags_are_known(cli, tmp_path):
    mounts = [
        {"name": "out", "path": "/out"},
        {"name": "nfs", "path": "/nfs", "source": "nas:/e", "read_only": True},
        {"name": "host", "path": "/h", "source": "/srv"},
    ]
    wanted = job(
        args=["it's", 'a "b" $HOME `x`'],
        mounts=mounts,
        resources={"cpu": 1, "memory": "1Gi"},
        devices={"type": "gpu", "count": 1},
        runai={"cli": cli, **IDS},
        secrets=SECRETS[1:],
        environment={"A": "multi\nline"},
    )
    script = tmp_path / "runai.sh"
    script.write_text(runai.render(wanted).main)
    subprocess.run(["bash", "-n", str(script)], check=True)
    found = runai_flags.read(script.read_text(), "runai.sh")
    assert (found.version, found.name, found.wrong) == (cli, "digits", [])
    assert found.words == ("drumbeat", "run", "train.py", "it's", 'a "b" $HOME `x`')
    assert "A=multi\nline" in found.flags["--environment"]


def test_mounts_of_both():
    mounts = [
        {"name": "out", "path": "/out"},
        {"name": "nfs", "path": "/nfs", "source": "nas:/e", "read_only": True},
        {"name": "nfs-rw", "path": "/rw", "source": "nas:/e"},
        {"name": "host", "path": "/h", "source": "/srv"},
    ]
    found = pairs(runai.submit_words(job(mounts=mounts, runai={"cli": "v1"})))
    assert {
        ("--pvc-exists", "claimname=out,path=/out"),
        ("-v", "/e:/nfs:ro:nas"),
        ("-v", "/e:/rw::nas"),
        ("-v", "/srv:/h"),
    } <= found
    found = pairs(runai.submit_words(job(mounts=mounts)))
    assert {
        ("--existing-pvc", "claimname=out,path=/out"),
        ("--nfs", "path=/e,server=nas,mountpath=/nfs"),
        ("--nfs", "path=/e,server=nas,mountpath=/rw,readwrite"),
        ("--host-path", "path=/srv,mount=/h,readwrite"),
    } <= found


def test_v1_mounts_no_secrets():
    with pytest.raises(ConfigError, match="CLI v1 mounts no secrets"):
        runai.render(job(runai={"cli": "v1"}, secrets=SECRETS))


def test_the_body_is_the_same_job():
    wanted = job(
        workers=3,
        runai={**IDS, "gpu_portion": 0.25, "node_pools": ["a"]},
        secrets=SECRETS,
        mounts=[{"name": "d", "path": "/d", "read_only": True}],
        environment={"A": "1"},
        run={"grace": 60},
    )
    body = parse_yaml(runai.render(wanted).files["runai.yaml"], "runai.yaml")[0].value
    assert (body["name"], body["projectId"]) == ("digits", "12")
    assert body["spec"] == {
        "distributedFramework": "TF",
        "numWorkers": 3,
        "image": "team/digits:1",
        "command": "drumbeat",
        "args": "run --grace 60 train.py",
        "environmentVariables": [
            {"name": "A", "value": "1"},
            {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/s/sa.json"},
            {"name": "HUB_TOKEN", "secret": {"name": "hub", "key": "hub"}},
            {"name": "DRUMBEAT_TOKEN", "secret": {"name": "digits-drumbeat", "key": "token"}},
        ],
        "compute": {
            "largeShmRequest": True,
            "gpuDevicesRequest": 1,
            "gpuRequestType": "portion",
            "gpuPortionRequest": 0.25,
        },
        "storage": {
            "pvc": [{"claimName": "d", "path": "/d", "existingPvc": True, "readOnly": True}],
            "secretVolume": [{"secret": "gcp", "mountPath": "/s"}],
        },
        "nodePools": ["a"],
        "terminationGracePeriodSeconds": 65,
    }


def test_what_run_ai_has_not_is_said():
    wanted = job(
        machine_type="n1",
        ps=1,
        timeouts={"total": 60},
        resources={"shm": "1Gi"},
        run={"grace": 60},
        mounts=[{"name": "d", "path": "/d", "read_only": True}],
    )
    notes = " ".join(runai.render(wanted).notes)
    for text in (
        "machine_type has no equivalent",
        "no pods for parameter servers",
        "timeouts.total",
        "resources.shm",
        "Kubernetes' 30 s",
        "can't mount d read-only",
        "kubectl -n runai-PROJECT create secret generic digits-drumbeat",
        "runai.project is not set",
    ):
        assert text in notes


def test_one_pod_needs_no_secret():
    assert "DRUMBEAT_TOKEN" not in runai.render(job(workers=1)).main


# ---- anybody's jobs


def of_two(rank: int) -> dict[str, str]:
    cluster = '{"worker":["127.0.0.1:5001","127.0.0.1:5002"]}'
    task = f'{{"type":"worker","index":{rank}}}'
    return {
        "JOB_NAME": "digits",
        "JOB_UUID": "00000000-0000-4000-8000-000000000000",
        "POD_INDEX": str(rank),
        "POD_UUID": "00000000-0000-4000-8000-000000000000",
        "NODE_NAME": "node",
        "RUNAI_JOB_NAME": "digits",
        "RUNAI_PROJECT": "team",
        "RUNAI_NUM_OF_GPUS": "0",
        "TF_CONFIG": f'{{"cluster":{cluster},"task":{task},"environment":"cloud"}}',
    }


@pytest.mark.parametrize("file", ["runai.sh", "runai.yaml"])
def test_rehearsal_of_what_is_rendered(file):
    ids = IDS | {"project_id": "team"}
    rendered = runai.render(job(runai=ids, secrets=SECRETS[1:], environment={"A": "1"}))
    found = runai.PLATFORM.rehearse(manifest(rendered.files[file]), Ports())
    assert [each.name for each in found.processes] == ["worker-0", "worker-1"]
    for rank, process in enumerate(found.processes):
        env = dict(process.env)
        assert len(env.pop("DRUMBEAT_TOKEN")) == 32
        assert env.pop("HOSTNAME") == f"digits-worker-{rank}"
        env = {name: value for name, value in env.items() if not name.startswith("KUBERNETES_")}
        assert env == {"A": "1", **of_two(rank)}
        assert process.command == ("drumbeat", "run", "train.py")
        assert process.is_main
    assert any("HUB_TOKEN" in each for each in found.differences)
    assert any("made-up ids" in each for each in found.differences)


def test_a_master_is_a_pod_of_its_own():
    line = "runai submit-dist tf --name j -i a --workers=1 -g 1 --command -- drumbeat run t.py"
    text = f"#!/bin/sh\n{line}"
    found = runai.PLATFORM.rehearse(manifest(text), Ports())
    assert [each.name for each in found.processes] == ["master-0", "worker-0"]
    config = json.loads(found.processes[0].env["TF_CONFIG"])
    assert config["task"] == {"type": "master", "index": 0}
    assert found.processes[0].env["RUNAI_NUM_OF_GPUS"] == "1"
    assert any("TensorFlow refuses" in each for each in found.differences)
    cluster = ClusterSpec.from_env(found.processes[0].env)
    assert cluster is not None
    assert str(cluster.task) == "chief 0"


@pytest.mark.parametrize(
    "start",
    [
        "runai submit-tf --name j",
        "runai training tf submit j",
        "runai tensorflow submit j",
        "runai distributed submit j -f TF",
    ],
)
def test_all_ways_to_submit(start, tmp_path):
    text = (
        f"#!/bin/bash\n# runai training tf submit no\nexport A=1\n{start} \\\n"
        "  -p 'my team' -i a \\\n  --workers 2 --no-master --large-shm "
        "--command -- python train.py --x='1 2' # end\n"
    )
    (tmp_path / "job.sh").write_text(text)
    given = registry.read_manifest(tmp_path / "job.sh")
    assert registry.recognise(given).name == "runai"
    found = runai.PLATFORM.rehearse(given, Ports())
    assert len(found.processes) == 2
    assert found.processes[1].command == ("python", "train.py", "--x=1 2")
    assert found.processes[1].env["RUNAI_PROJECT"] == "my team"
    assert runai.PLATFORM.problems(given) == []


def test_nothing_is_wrong_with_what_is_rendered():
    for cli in ("v1", "v2"):
        rendered = runai.render(job(runai={**IDS, "cli": cli}, secrets=SECRETS[1:]))
        for text in rendered.files.values():
            assert runai.PLATFORM.problems(manifest(text)) == []
            assert runai.PLATFORM.recognises(manifest(text))


GOOD = "runai training tf submit j -i a --workers 2 --no-master --large-shm "
END = "--command -- drumbeat run t.py"
TOKEN = "-e DRUMBEAT_TOKEN=SECRET:a,b "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD + TOKEN + "--environment A=1 " + END, "in v3 it names an environment asset"),
        (GOOD.replace("--no-master", "") + TOKEN + END, "one pod more"),
        (GOOD.replace("--large-shm", "") + TOKEN + END, "--large-shm is missing"),
        (GOOD.replace("-i a", "") + TOKEN + END, "--image is missing"),
        (GOOD.replace("--workers 2", "") + TOKEN + END, "--workers is missing"),
        (GOOD.replace("--workers 2", "--workers 0") + TOKEN + END, "--workers is '0'"),
        (GOOD.replace("submit j", "submit") + TOKEN + END, "The job has no name"),
        (GOOD + TOKEN + "--existing-pcv a " + END, "did you mean --existing-pvc"),
        (GOOD + TOKEN + "--cpu 4 " + END, "In CLI v2, '--cpu' is unknown"),
        (GOOD + TOKEN + "second " + END, "'second' is a second name"),
        (GOOD + TOKEN + "-- python t.py", "There is no --command"),
        (GOOD + END, "No DRUMBEAT_TOKEN is set"),
        (GOOD + "-e DRUMBEAT_TOKEN=abc " + END, "The value of DRUMBEAT_TOKEN is in the file"),
        (GOOD + TOKEN + "-e WANDB_API_KEY=abc " + END, "The value of WANDB_API_KEY is in the file"),
        (GOOD + TOKEN + "-e TF_CONFIG={} " + END, "TF_CONFIG is set"),
        (GOOD + TOKEN + "-e A " + END, "expected NAME=VALUE"),
        (GOOD + "-e", "-e has no value"),
        (GOOD + TOKEN + "'" + END, "is not closed"),
        (GOOD + TOKEN + END + "\n" + GOOD + END, "has 2 commands"),
        ("runai list jobs", "has 0 commands"),
    ],
)
def test_mistakes_in_a_script(line, message):
    found = runai.PLATFORM.problems(manifest(f"#!/bin/sh\n{line}\n"))
    assert any(message in each for each in found), found


BODY = {
    "name": "j",
    "projectId": "1",
    "clusterId": "c",
    "spec": {
        "distributedFramework": "TF",
        "numWorkers": 2,
        "image": "a",
        "command": "python",
        "args": "t.py",
        "compute": {"largeShmRequest": True},
    },
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projectId": None}, "projectId is missing"),
        ({"projectId": 1}, "projectId is 1; expected text"),
        ({"clusterId": "PUT_THE_ID_HERE"}, "clusterId is missing"),
        ({"masterSpec": {}, "masterSpecSameAsWorker": True}, "can't be had together"),
        ({"projectID": "1"}, "'projectID' is unknown"),
        ({"spec.numWorkers": 0}, "numWorkers is 0"),
        ({"spec.numWorkers": "2"}, "numWorkers is '2'"),
        ({"spec.distributedFramework": "PyTorch"}, "'PyTorch'; expected TF"),
        ({"spec.distributedFramework": "tf"}, "expected one of MPI, PyTorch, TF"),
        ({"spec.cleanPodPolicy": "Never"}, "expected one of None, All, Running"),
        ({"spec.image": ""}, "spec.image is missing"),
        ({"spec.enviromentVariables": []}, "did you mean environmentVariables"),
        ({"spec.environmentVariables": [{"name": "A"}]}, "'A' has 0 sources"),
        ({"spec.environmentVariables": [{"name": "A", "value": 5}]}, "write it in quotes"),
        ({"spec.environmentVariables": [5]}, "has 5; expected {name"),
        ({"spec.environmentVariables": {"A": "1"}}, "expected a list"),
        (
            {"spec.environmentVariables": [{"name": "A_TOKEN", "value": "x"}]},
            "The value of A_TOKEN",
        ),
        ({"spec.compute": {"gpuDeviceRequest": 1}}, "did you mean gpuDevicesRequest"),
        ({"spec.compute": {}}, "largeShmRequest is not true"),
        ({"spec.storage": {"pvcs": []}}, "in spec.storage: 'pvcs' is unknown"),
        ({"spec.command": None}, "spec.command is missing"),
        ({"spec.args": "it's"}, "No closing quotation"),
        ({"spec.args": 5}, "args is 5; expected text"),
    ],
)
def test_mistakes_in_a_body(changes, message):
    body = json.loads(json.dumps(BODY))
    for key, value in changes.items():
        where, _, last = key.rpartition(".")
        (body[where] if where else body)[last] = value
    given = manifest(json.dumps(body))
    assert runai.PLATFORM.recognises(given)
    found = runai.PLATFORM.problems(given)
    assert any(message.lower() in each.lower() for each in found), found


def test_the_body_itself_is_fine():
    assert runai.PLATFORM.problems(manifest(json.dumps(BODY))) == []
    assert not runai.PLATFORM.recognises(manifest("kind: TFJob\nspec: {}"))
    assert not runai.PLATFORM.recognises(manifest("#!/bin/sh\nsrun python t.py"))
    assert set(runai_body._SPEC) >= BODY["spec"].keys()


# ---- who a pod is

TF = (
    '{"cluster": {"worker": ["j-worker-0.runai-t.svc:2222", "%s"]}, '
    '"task": {"type": "%s", "index": %s}}'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TF % ("j-worker-1.runai-t.svc:2222", "master", 0), "master"),  # no such task
        (TF % ("j-worker-1.runai-t.svc:2222", "worker", 2), "index"),
        (TF % ("j-worker-1.runai-t.svc", "worker", 1), "port"),
        (TF % ("j-worker-0.runai-t.svc:2222", "worker", 1), "j-worker-0.runai-t.svc:2222"),
        (TF % ("j-worker-1.runai-t.svc:2222", "launcher", 0), "launcher"),
        ("K=V", "JSON"),  # --environment took the rest
        (
            '{"cluster": {"worker": ["a:1"], "ps": []}, "task": {"type": "worker", "index": 0}}',
            "ps",
        ),
    ],
)
def test_broken_environments(text, message):
    with pytest.raises(ConfigError, match="TF_CONFIG") as error:
        ClusterSpec.from_env({"TF_CONFIG": text, "RUNAI_JOB_NAME": "j"})
    assert message in str(error.value)


# ---- the command

FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
[ -t 0 ] || cat > "$CALLS.stdin.$(basename "$0")"
case "$*" in
  *"get secret"*) exit ${NO_SECRET:-0};;
  *describe*) cat "$CALLS.describe";;
  *logs*) echo "one of $*"; echo two >&2;;
esac
[ -n "$FAILS" ] && { echo "noise" >&2; echo "$FAILS" >&2; exit 1; }
exit 0
"""


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment in which runai and kubectl note how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("runai", "kubectl"):
        (folder / name).write_text(FAKE)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}


def client(env: dict[str, str], **keys: object) -> tuple[RunaiClient, Job]:
    wanted = job(runai={**IDS, **keys})
    return RunaiClient(wanted, runai.submit_words(wanted), environ=env), wanted


def calls(env: dict[str, str]) -> list[str]:
    return Path(env["CALLS"]).read_text().splitlines()


def test_submit_makes_the_secret_and_runs_the_command(fake):
    found, wanted = client(fake | {"NO_SECRET": "1"})
    assert found.submit(wanted, runai.render(wanted)) == "digits"
    assert calls(fake)[:2] == [
        "kubectl -n runai-team get secret digits-drumbeat",
        "kubectl -n runai-team create -f -",
    ]
    secret = json.loads(Path(fake["CALLS"] + ".stdin.kubectl").read_text())
    token = secret["stringData"]["token"]
    assert len(token) == 64
    assert secret["metadata"] == {"name": "digits-drumbeat"}
    assert token not in Path(fake["CALLS"]).read_text()
    assert shlex.split(calls(fake)[2].replace("runai", "", 1)) == runai.submit_words(wanted)[1:]


def test_a_secret_that_is_there_stays(fake):
    found, wanted = client(fake)
    found.submit(wanted, runai.render(wanted))
    assert not any("create" in each for each in calls(fake))


def test_without_kubectl_it_is_said(fake, tmp_path, capsys):
    (tmp_path / "bin" / "kubectl").unlink()
    found, wanted = client(fake | {"PATH": f"{tmp_path / 'bin'}"})
    found.submit(wanted, runai.render(wanted))
    assert "the pods need the Secret digits-drumbeat" in capsys.readouterr().err


def test_dry_run_shows_all_calls(fake):
    found, wanted = client(fake)
    look, make, submit = found.plan(wanted, runai.render(wanted))
    assert look == "kubectl -n runai-team get secret digits-drumbeat"
    assert make.startswith("kubectl -n runai-team create -f - (unless it is there")
    assert submit.startswith("runai training tensorflow submit digits -p team")
    assert not Path(fake["CALLS"]).exists()
    found, wanted = client(fake, project=None)
    assert found.plan(wanted, runai.render(wanted)) == [
        shlex.join(["runai", *runai.submit_words(wanted)[1:]])
    ]


@pytest.mark.parametrize(
    ("said", "state", "tasks"),
    [
        ('{"general": {"phase": "Running"}}', "running", {}),
        ('{"status": "Pending"}', "pending", {}),
        (
            '{"workload": {"status": "Failed", "pods": [{"name": "digits-worker-0", '
            '"status": "Error"}]}}',
            "failed",
            {"worker-0": "Error"},
        ),
        ("Name: digits\nStatus: Completed\n", "succeeded", {}),
        ("Name: digits\nSTATUS  Suspended\n", "stopped", {}),
        ("nothing of the kind", "unknown", {}),
        ("[5]", "unknown", {}),
    ],
)
def test_status(fake, said, state, tasks):
    Path(fake["CALLS"] + ".describe").write_text(said)
    found = client(fake)[0].status("digits")
    assert (found.state, found.tasks) == (state, tasks)
    assert calls(fake) == ["runai training tensorflow describe digits -o json -p team"]


def test_logs_and_stop_of_both_versions(fake):
    v2, v1 = client(fake)[0], client(fake, cli="v1")[0]
    assert list(v2.logs("digits", task="worker-1", follow=False)) == [
        "worker-1: one of training tensorflow logs digits --pod digits-worker-1 -p team",
        "worker-1: two",
    ]
    lines = list(v1.logs("digits", task=None, follow=True))
    assert len(lines) == 4
    assert "worker-0: one of logs digits --pod digits-worker-0 -p team --follow" in lines
    v2.stop("digits")
    v1.stop("digits")
    assert calls(fake)[-2:] == [
        "runai training tensorflow delete digits -p team",
        "runai delete job digits -p team",
    ]
    with pytest.raises(ConfigError, match="expected one such as worker-0"):
        next(v2.logs("digits", task="chief", follow=False))


def test_what_runai_says_is_told(fake):
    found, wanted = client(fake | {"FAILS": "Error: you are not logged in"})
    with pytest.raises(
        ConfigError, match=r"submit failed:\n  noise\n  Error: you are not logged in$"
    ):
        found.submit(wanted, runai.render(wanted))
    with pytest.raises(ConfigError, match="not logged in"):
        found.status("digits")
    with pytest.raises(ConfigError, match="not logged in"):
        found.stop("digits")
    client(fake | {"FAILS": "workload digits not found"})[0].stop("digits")


def test_without_runai(tmp_path):
    found, wanted = client({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="runai is not on this machine"):
        found.submit(wanted, runai.render(wanted))
    with pytest.raises(ConfigError, match="runai is not on this machine"):
        found.status("digits")
    with pytest.raises(ConfigError, match="runai is not on this machine"):
        next(found.logs("digits", task=None, follow=False))


# ---- a rehearsal that trains


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_rehearsal_trains(tmp_path):
    shutil.copy(Path(__file__).parent / "train_random.py", tmp_path / "train.py")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    (tmp_path / "runai.sh").write_text(runai.render(job(environment=quiet)).main)
    words = ["rehearse", "runai.sh", "--steps", "3", "--timeout", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", *words],
        cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-1" in done.stdout
    assert "made-up ids" in done.stdout
