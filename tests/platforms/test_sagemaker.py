"""SageMaker: requests, what is refused, rehearsals, and the client against moto's server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from drumbeat.cluster import launched_by
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import registry, token_file
from drumbeat.platforms.jobfile import Job
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.platform import Manifest
from drumbeat.platforms.sagemaker import client as sagemaker_client
from drumbeat.platforms.sagemaker import render as sagemaker
from drumbeat.platforms.sagemaker import rules as sagemaker_rules
from drumbeat.platforms.sagemaker.client import LOG_GROUP, SageMakerClient

ROLE = "arn:aws:iam::123456789012:role/SageMakerTraining"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/digits:1"
JOB = {
    "name": "digits",
    "script": "train.py",
    "image": IMAGE,
    "workers": 3,
    "machine_type": "ml.m5.xlarge",
    "output": "s3://bucket/digits",
    "sagemaker": {"role": ROLE, "region": "eu-west-1"},
}
NET = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}


def render(**changes):
    section = {**JOB["sagemaker"], **changes.pop("sagemaker", {})}
    return sagemaker.render(Job.model_validate({**JOB, "sagemaker": section, **changes}))


def request(**changes):
    return json.loads(render(**changes).main)


def manifest(value) -> Manifest:
    text = value if isinstance(value, str) else json.dumps(value, indent=1)
    documents = tuple(parse_yaml(text, "training-job.json"))
    return Manifest(path=Path("training-job.json"), text=text, documents=documents)


def changed(**keys):
    """A sound request with other values, by their path with __; None takes one away."""
    made = request()
    for path, value in keys.items():
        *steps, last = path.split("__")
        here = made
        for step in steps:
            here = here.setdefault(step, {})
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return made


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({}, "TrainingJobName", "digits"),
        ({}, "AlgorithmSpecification.TrainingImage", IMAGE),
        ({}, "AlgorithmSpecification.ContainerEntrypoint", ["drumbeat", "run"]),
        (
            {"args": ["--epochs", "3"]},
            "AlgorithmSpecification.ContainerArguments",
            ["--backup-dir", "s3://bucket/digits/backups", "train.py", "--epochs", "3"],
        ),
        ({}, "RoleArn", ROLE),
        ({}, "ResourceConfig.InstanceCount", 3),
        ({"workers": 8, "devices": {"type": "gpu", "count": 4}}, "ResourceConfig.InstanceCount", 2),
        ({}, "ResourceConfig.VolumeSizeInGB", 50),
        ({"sagemaker": {"volume": "100Gi"}}, "ResourceConfig.VolumeSizeInGB", 100),
        ({}, "StoppingCondition", {"MaxRuntimeInSeconds": 86400}),
        (
            {"timeouts": {"total": "2h"}, "sagemaker": {"spot": True}},
            "StoppingCondition",
            {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 93600},
        ),
        ({"sagemaker": {"spot": True}}, "EnableManagedSpotTraining", True),
        ({"sagemaker": NET}, "VpcConfig.Subnets", ["subnet-1"]),
        ({"sagemaker": NET}, "VpcConfig.SecurityGroupIds", ["sg-1"]),
        ({"environment": {"A": "1"}}, "Environment.A", "1"),
        ({}, "Environment.DRUMBEAT_TOKEN_FILE", "s3://bucket/digits/drumbeat-token"),
        ({"data": "s3://bucket/d"}, "Environment.DRUMBEAT_DATA", "s3://bucket/d"),
    ],
)
def test_each_key_has_its_place(changes, path, expected):
    found = request(**changes)
    validate(found)
    for step in path.split("."):
        found = found[step]
    assert found == expected


def validate(body):
    """As boto3 does it before it sends a request."""
    import botocore.validate

    report = botocore.validate.ParamValidator().validate(body, sagemaker_rules._shape())
    assert not report.has_errors(), report.generate_report()


def test_a_single_host_has_no_secret():
    assert "DRUMBEAT_TOKEN_FILE" not in request(workers=1)["Environment"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "no image"),
        ({"machine_type": None}, "no machine_type"),
        ({"output": None}, "no output"),
        ({"output": "gs://bucket/x"}, "expected s3://BUCKET/FOLDER"),
        ({"sagemaker": {"role": None}}, "no sagemaker.role"),
        ({"sagemaker": {"role": "SageMakerTraining"}}, "expected arn:aws:iam::"),
        ({"sagemaker": {"subnets": ["subnet-1"]}}, "needs both Subnets"),
        ({"args": ["x" * 257]}, "at most 256"),
        ({"args": ["x"] * 101}, "1 to 100 words"),
        ({"environment": {"A": "x" * 513}}, "at most 512"),
        ({"environment": {f"A{n}": "x" for n in range(101)}}, "at most 100"),
        ({"mounts": [{"name": "data", "path": "/data"}]}, "Expected data on s3://"),
        ({"secrets": [{"name": "wandb", "env": "WANDB_API_KEY"}]}, "Secrets Manager"),
    ],
)
def test_what_sagemaker_has_nothing_for_is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        render(**changes)
    assert message in str(caught.value)


def test_what_is_left_out_is_said():
    key = {"name": "aws", "env": "AWS_SHARED_CREDENTIALS_FILE", "path": "/secrets"}
    notes = render(
        image="ghcr.io/team/digits:1", secrets=[key], resources={"cpu": 4}, workers=1
    ).notes
    for said in ("Amazon ECR", "the role in sagemaker.role", "resources is left out", "24 h"):
        assert any(said in note for note in notes), (said, notes)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"TrainingJobNam": "x"}, "'TrainingJobNam' is unknown; did you mean TrainingJobName?"),
        ({"ResourceConfig__InstanceCount": 0}, "InstanceCount is 0; expected at least 1"),
        ({"ResourceConfig__InstanceCount": "2"}, "expected a whole number"),
        ({"ResourceConfig__InstanceType": "ml.m5.xlrge"}, "did you mean ml.m5.xlarge?"),
        ({"ResourceConfig__InstanceType": "m5.xlarge"}, "expected one such as ml.m5.xlarge"),
        ({"TrainingJobName": "my_job"}, "expected letters, digits and -"),
        ({"TrainingJobName": "x" * 64}, "at most 63"),
        ({"RoleArn": None}, "RoleArn is missing"),
        ({"AlgorithmSpecification__TrainingImage": None}, "TrainingImage is missing"),
        ({"HyperParameters": {"epochs": 3}}, "HyperParameters.epochs is 3; expected text"),
        ({"Environment": {"A": 1}}, "Environment.A is 1; expected text"),
        ({"Environment": {"1A": "x"}}, "is no name of a variable"),
        ({"Environment": {"TF_CONFIG": "{}"}}, "none knows which it is"),
        ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds is None"),
        ({"StoppingCondition__MaxWaitTimeInSeconds": 90000}, "belongs to EnableManagedSpot"),
        (
            {"HyperParameters": {"sagemaker_mpi_enabled": "true"}},
            "sagemaker_mpi_enabled has an effect",
        ),
        ({"OutputDataConfig__S3OutputPath": "gs://b"}, "expected s3://BUCKET/FOLDER"),
        ({"AlgorithmSpecification__TrainingInputMode": "file"}, "did you mean File?"),
    ],
)
def test_problems_of_anybodys_request(keys, message):
    found = sagemaker.problems(manifest(changed(**keys)))
    assert any(message in text for text in found), found


def test_a_sound_request_has_no_problems_and_is_recognised():
    assert sagemaker.problems(manifest(request())) == []
    assert registry.recognise(manifest(request())).name == "sagemaker"


def test_problems_have_the_line():
    (text,) = sagemaker.problems(manifest(changed(ResourceConfig__InstanceKind="x")))
    assert text.startswith("training-job.json:")
    assert "in ResourceConfig: 'InstanceKind' is unknown" in text


def test_without_boto3_the_keys_are_not_checked_and_that_is_said(monkeypatch):
    import sys

    sagemaker_rules._shape.cache_clear()
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    found = sagemaker.problems(manifest(changed(ResourceConfig__InstanceCount=0)))
    assert any("drumbeat[sagemaker]" in text for text in found)
    assert any("expected at least 1" in text for text in found)


class Places:
    def port(self) -> int:
        return 5001


def test_each_host_is_told_its_place():
    found = sagemaker.rehearse(manifest(request(workers=11)), Places()).processes
    assert [each.name for each in found][:4] == ["algo-1", "algo-10", "algo-11", "algo-2"]
    hosts = [each.name for each in found]
    for rank, process in enumerate(found):
        env = process.env
        assert env["SM_HOSTS"] == json.dumps(hosts, separators=(",", ":"))
        assert env["SM_CURRENT_HOST"] == process.name
        resources = json.loads(env["SM_RESOURCE_CONFIG"])
        assert (resources["hosts"], resources["current_host"]) == (hosts, process.name)
        assert env["TRAINING_JOB_NAME"] == "digits"
        assert env["TRAINING_JOB_ARN"].endswith(":training-job/digits")
        place = launched_by.find(env)
        assert place is not None
        assert (place.node_rank, place.nodes, place.host, place.port) == (
            rank,
            11,
            "127.0.0.1",
            5001,
        )
    assert set(found[0].env) == {
        "TRAINING_JOB_NAME",
        "TRAINING_JOB_ARN",
        "SM_HOSTS",
        "SM_CURRENT_HOST",
        "SM_RESOURCE_CONFIG",
        "DRUMBEAT_OUTPUT",
        "DRUMBEAT_TOKEN_FILE",
        "DRUMBEAT_RENDEZVOUS",
    }
    assert found[0].command[:2] == ("drumbeat", "run")
    assert found[0].command[-1] == "train.py"


def test_groups_of_instances_are_counted():
    groups = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.xlarge", "InstanceCount": count}
        for name, count in (("a", 1), ("b", 2))
    ]
    body = changed(
        ResourceConfig__InstanceGroups=groups,
        ResourceConfig__InstanceCount=None,
        ResourceConfig__InstanceType=None,
    )
    assert sagemaker.problems(manifest(body)) == []
    assert len(sagemaker.rehearse(manifest(body), Places()).processes) == 3


def test_keys_that_are_null_are_absent():
    body = changed() | {"Environment": None, "HyperParameters": None, "InputDataConfig": None}
    assert len(sagemaker.rehearse(manifest(body), Places()).processes) == 3


def test_an_unknown_command_is_explained():
    body = changed(AlgorithmSpecification__ContainerEntrypoint=None)
    with pytest.raises(ConfigError, match="argument `train`"):
        sagemaker.rehearse(manifest(body), Places())


# ---- the client


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture
def aws(server, monkeypatch, tmp_path):
    """AWS at moto's server, whose bucket is made."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="bucket")
    return boto3


def job(**changes):
    return Job.model_validate({**JOB, **changes})


def test_a_job_is_submitted_watched_and_stopped(aws):
    asked = job()
    client = SageMakerClient(region="eu-west-1", now=lambda: datetime(2026, 1, 2, 3, 4, 5))
    name = client.submit(asked, sagemaker.render(asked))
    assert name == "digits-20260102-030405"
    body = aws.client("s3", region_name="us-east-1").get_object(
        Bucket="bucket", Key="digits/drumbeat-token"
    )["Body"]
    assert len(body.read()) == 64
    found = client.status(name)
    assert found.state in ("running", "pending", "succeeded")
    client.stop(name)
    with pytest.raises(ConfigError, match="AWS refuses it"):
        client.status("nothing")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("aws") is None, reason="the AWS CLI is not on PATH")
def test_the_aws_command_takes_the_file(aws, server, tmp_path):
    (tmp_path / sagemaker.FILE).write_text(render(name="by-hand").main)
    words = ["sagemaker", "create-training-job", "--cli-input-json", f"file://{sagemaker.FILE}"]
    done = subprocess.run(
        ["aws", *words, "--region", "eu-west-1", "--endpoint-url", server],
        cwd=tmp_path, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        text=True, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["TrainingJobArn"].endswith(":training-job/by-hand")
    assert SageMakerClient(region="eu-west-1").status("by-hand").state != "unknown"


def test_logs_have_their_host(aws):
    asked = job(workers=1, name="logged")
    client = SageMakerClient(region="eu-west-1", now=lambda: datetime(2026, 1, 1))
    name = client.submit(asked, sagemaker.render(asked))
    assert list(client.logs(name, task=None, follow=False)) == []
    logs = aws.client("logs", region_name="eu-west-1")
    logs.create_log_group(logGroupName=LOG_GROUP)
    now = int(datetime.now().timestamp() * 1000)
    for host in ("algo-1", "algo-10"):
        stream = {"logGroupName": LOG_GROUP, "logStreamName": f"{name}/{host}-1700000000"}
        logs.create_log_stream(**stream)
        events = [{"timestamp": now + n, "message": f"epoch {n}"} for n in range(2)]
        logs.put_log_events(**stream, logEvents=events)
    lines = list(client.logs(name, task="algo-1", follow=True))
    assert lines == ["algo-1: epoch 0", "algo-1: epoch 1"]
    with pytest.raises(ConfigError, match="has no task 'algo-2'; expected one of algo-1"):
        client.logs(name, task="algo-2", follow=True)
    assert len(list(client.logs(name, task=None, follow=False))) == 4


class Service:
    """Says of a job what it is told to."""

    def __init__(self, **said):
        self.said = said

    def describe_training_job(self, **_):
        return self.said


@pytest.mark.parametrize(
    ("word", "second", "expected"),
    [
        ("InProgress", "Starting", "pending"),
        ("InProgress", "Training", "running"),
        ("InProgress", "Interrupted", "running"),
        ("Completed", "Completed", "succeeded"),
        ("Failed", "Failed", "failed"),
        ("Stopping", "Stopping", "running"),
        ("Stopped", "MaxRuntimeExceeded", "stopped"),
        ("Odd", "", "unknown"),
    ],
)
def test_states(monkeypatch, word, second, expected):
    said = Service(TrainingJobStatus=word, SecondaryStatus=second, FailureReason="out of memory")
    monkeypatch.setattr(SageMakerClient, "_service", lambda *_: said)
    found = SageMakerClient().status("x")
    assert found.state == expected
    assert found.detail == f"{second or word}: out of memory"


@pytest.mark.parametrize(
    ("resources", "hosts"),
    [
        ({"InstanceCount": 2}, ["algo-1", "algo-2"]),
        ({"InstanceGroups": [{"InstanceCount": 1}, {"InstanceCount": 2}]},
         ["algo-1", "algo-2", "algo-3"]),
        ({}, []),
    ],
)  # fmt: skip
def test_hosts_of_a_job(resources, hosts):
    assert sagemaker_client._hosts({"ResourceConfig": resources}) == hosts


def test_a_page_of_a_proxy_is_no_answer(monkeypatch):
    nothing = Service()
    nothing.create_training_job = lambda **_: {}
    monkeypatch.setattr(SageMakerClient, "_service", lambda *_: nothing)
    monkeypatch.setattr(token_file, "put", lambda place: None)
    client = SageMakerClient()
    for call in (
        client.status,
        client.stop,
        lambda name: client.logs(name, task=None, follow=True),
    ):
        with pytest.raises(DrumbeatError, match="an answer without TrainingJobStatus"):
            call("x")
    with pytest.raises(DrumbeatError, match="an answer without TrainingJobArn"):
        client.submit(job(), sagemaker.render(job()))


def test_every_state_of_the_service_is_known():
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    assert set(model.shape_for("TrainingJobStatus").enum) == set(sagemaker_client._STATES)
    assert set(sagemaker_client._PENDING) <= set(model.shape_for("SecondaryStatus").enum)


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A machine without credentials or region."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr(token_file, "put", lambda place: None)
    return monkeypatch


def test_no_credentials_are_explained(nobody):
    with pytest.raises(ConfigError, match="There are no credentials of AWS"):
        SageMakerClient(region="eu-west-1").submit(job(), sagemaker.render(job()))


def test_no_region_is_explained(nobody):
    with pytest.raises(ConfigError, match=r"expected sagemaker\.region"):
        SageMakerClient().status("x")


def test_no_server_is_explained(nobody):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        nobody.setenv(name, "testing")
    nobody.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(DrumbeatError, match="AWS can't be reached"):
        SageMakerClient(region="eu-west-1").status("x")


def test_a_bucket_that_is_not_there_is_explained(aws):
    with pytest.raises(ConfigError, match="can't be written to s3://nowhere"):
        token_file.put("s3://nowhere/digits/drumbeat-token")


def test_a_missing_library_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"drumbeat\[sagemaker,s3\]"):
        SageMakerClient(region="r").status("x")


def test_the_plan_is_the_request_and_needs_no_credentials(nobody):
    client = SageMakerClient(region="eu-west-1", now=lambda: datetime(2026, 1, 1))
    secret, call = client.plan(job(), sagemaker.render(job()))
    assert "s3://bucket/digits/drumbeat-token" in secret
    head, _, body = call.partition("\n")
    assert head == "sagemaker:CreateTrainingJob in eu-west-1"
    assert json.loads(body)["TrainingJobName"] == "digits-20260101-000000"
