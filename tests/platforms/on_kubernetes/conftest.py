"""Manifests, schemas and ports for the tests of Kubernetes' platforms."""

from __future__ import annotations

import copy
import itertools
import json
from functools import cache
from pathlib import Path

import pytest

from drumbeat.platforms.jobfile import Job
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.platform import Manifest

SCHEMAS = Path(__file__).parents[1] / "schemas"
FILES = {
    "TFJob": "tfjob.kubeflow.org_v1",
    "TrainJob": "trainjob.trainer.kubeflow.org_v1alpha1",
    "TrainingRuntime": "trainingruntime.trainer.kubeflow.org_v1alpha1",
    "JobSet": "jobset.x-k8s.io_v1alpha2",
}


@cache
def _validator(kind: str):
    import jsonschema

    schema = json.loads((SCHEMAS / f"{FILES[kind]}.openapi.json").read_text())
    found = _closed(schema)
    found["properties"]["metadata"] = {
        "type": "object",
        "properties": {
            key: {"type": "string"} if key in ("name", "namespace") else {"type": "object"}
            for key in ("name", "namespace", "labels", "annotations")
        },
        "additionalProperties": False,
    }
    return jsonschema.Draft202012Validator(found)


@pytest.fixture(autouse=True, scope="session")
def _schemas_are_read_once():
    """kubernetes-validate reads megabytes for each object."""
    from kubernetes_validate import utils

    usual = utils.schema_contents
    utils.schema_contents = cache(usual)
    yield
    utils.schema_contents = usual


def _closed(schema):
    """The same schema, which allows no keys but those that are listed."""
    if isinstance(schema, list):
        for each in schema:
            _closed(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            _closed(each)
    return schema


class Checks:
    """What a rendered manifest is held against."""

    def conforms(self, document: dict) -> None:
        """Against the schema of its kind, and its pods against Kubernetes' own."""
        _validator(document["kind"]).validate(document)
        templates = self.templates(document)
        for template in templates[:1] + [each for each in templates[1:] if each != templates[0]]:
            self.is_pod(template)

    def is_pod(self, template: dict) -> None:
        import kubernetes_validate

        pod = copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **template})
        pod["metadata"] = {**pod.get("metadata", {}), "name": "pod"}
        kubernetes_validate.validate(pod, "1.34", strict=True)

    def is_job(self, spec: dict) -> None:
        import kubernetes_validate

        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
        kubernetes_validate.validate(job, "1.34", strict=True)

    def templates(self, document: dict) -> list[dict]:
        """The PodTemplateSpecs in a document."""
        found = []

        def walk(value):
            if isinstance(value, dict):
                if "containers" in value.get("spec", {}) and isinstance(value["spec"], dict):
                    found.append({k: value[k] for k in ("metadata", "spec") if k in value})
                    return
                for each in value.values():
                    walk(each)
            elif isinstance(value, list):
                for each in value:
                    walk(each)

        walk({k: v for k, v in document.get("spec", {}).items() if k != "runtimePatches"})
        return found


@pytest.fixture
def checks() -> Checks:
    return Checks()


@pytest.fixture
def job():
    """Makes a job with some of its keys changed."""

    def make(**changes) -> Job:
        usual = {"name": "digits", "script": "train.py", "image": "team/digits:1", "workers": 2}
        return Job.model_validate({**usual, **changes})

    return make


@pytest.fixture
def everything() -> dict:
    """Every key of a job file that Kubernetes' platforms have something for."""
    return {
        "workers": 4,
        "devices": {"type": "gpu", "count": 2},
        "machine_type": "a2-highgpu-2g",
        "resources": {"cpu": 3.5, "memory": "8Gi", "shm": "2Gi"},
        "environment": {"A": "1", "B": "x y"},
        "mounts": [
            {"name": "data", "path": "/data", "read_only": True},
            {"name": "nfs", "path": "/nfs", "source": "server:/export"},
            {"name": "host", "path": "/host", "source": "/mnt/disk"},
        ],
        "secrets": [
            {"name": "gcp-key", "key": "sa.json", "path": "/gcp", "env": "GOOGLE_CREDENTIALS"},
            {"name": "wandb", "env": "WANDB_API_KEY"},
        ],
        "data": "gs://b/data",
        "output": "gs://b/out",
        "args": ["--data", "{data}"],
        "restarts": 5,
        "timeouts": {"total": "24h", "start": "10m"},
        "run": {"grace": 100, "compress": "int8"},
        "kubernetes": {
            "namespace": "team",
            "context": "prod",
            "service_account": "trainer",
            "image_pull_secrets": ["registry"],
            "node_selector": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
            "priority_class": "low",
            "queue": "ml",
            "labels": {"owner": "me"},
            "annotations": {"note": "x"},
            "keep": "1d",
        },
    }


@pytest.fixture
def manifest():
    """A manifest from YAML or from what was rendered."""

    def make(text: str) -> Manifest:
        documents = tuple(parse_yaml(text, "job.yaml"))
        return Manifest(path=Path("job.yaml"), text=text, documents=documents)

    return make


class Ports:
    def __init__(self) -> None:
        self._next = itertools.count(4001)

    def port(self) -> int:
        return next(self._next)


@pytest.fixture
def places() -> Ports:
    return Ports()
