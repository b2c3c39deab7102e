"""What authors of job files mean by keys of other tools, and how each key is written."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from drumbeat.cluster.wording import listed
from drumbeat.platforms.jobfile.model import Job

_GPUS = "devices: {type: gpu, count: 4}"
MEANT = {
    "args": ("arguments", "params", "parameters", "argv"),
    "data: gs://bucket/digits": ("data_dir", "dataset", "input", "inputs", "train_data"),
    "devices: {accelerator: NVIDIA_L4}": ("accelerator", "accelerators", "accelerator_type"),
    "environment": ("env", "envs", "env_vars", "environ", "variables", "vars"),
    "image": ("container", "container_image", "docker_image", "image_uri", "base_image"),
    "machine_type": ("instance_type", "machine", "instance", "vm", "vm_type"),
    "mounts": ("volumes", "volume", "volume_mounts", "pvc", "storage"),
    "name": ("title", "job_name", "job", "display_name", "id"),
    "output: gs://bucket/runs/digits": (
        "output_dir", "output_path", "job_dir", "model_dir", "log_dir", "results", "out",
    ),
    "ps": ("parameter_servers", "parameter_server", "num_ps", "ps_count"),
    "resources: {cpu: 4, memory: 8Gi, shm: 2Gi}": (
        "cpu", "cpus", "memory", "mem", "ram", "shm", "shm_size", "limits", "requests",
    ),
    "restarts": ("retries", "max_retries", "max_restarts", "backoff_limit", "restart"),
    "script": (
        "cmd", "command", "entrypoint", "entry_point", "program", "main", "file", "python_file",
    ),
    "timeouts: {total: 24h}": (
        "timeout", "time", "time_limit", "walltime", "max_time", "max_runtime", "deadline",
    ),
    "workers": (
        "nodes", "nnodes", "num_nodes", "replicas", "num_workers", "world_size", "instances",
        "instance_count", "n", "tasks", "ntasks", "processes", "parallelism",
    ),
    _GPUS: ("gpu", "gpus", "num_gpus", "gpu_count", "device", "gpus_per_node", "gpus_per_worker"),
}  # fmt: skip
"""What to write, by what is written instead of it."""
_WRITTEN = {word: key for key, words in MEANT.items() for word in words}

EXAMPLES = {
    "args": '[--epochs, "3"]',
    "compose": "{build: true}",
    "devices": "{type: gpu, count: 4}",
    "docker": "{packages: [git]}",
    "environment": '{TF_CPP_MIN_LOG_LEVEL: "1"}',
    "kubernetes": "{namespace: team}",
    "mounts": "[{name: data, path: /data}]",
    "ray": "{address: 'http://head:8265'}",
    "resources": "{cpu: 4, memory: 8Gi}",
    "run": "{compress: int8}",
    "runai": "{project: team}",
    "sagemaker": "{region: eu-west-1}",
    "secrets": "[{name: aws-key, env: AWS_SECRET_ACCESS_KEY}]",
    "slurm": "{partition: gpu}",
    "tfjob": "{chief: true}",
    "timeouts": "{total: 24h}",
    "trainjob": "{runtime: tensorflow}",
    "vertex": "{project: my-project, region: us-central1}",
}
"""How the values of keys are written that hold lists or other keys."""


def meant(path: Sequence[str | int]) -> str | None:
    """What to write in place of a job file's unknown key, or None where only its letters tell."""
    word = _plain(path[-1])
    if len(path) == 2:
        if path[0] == "resources" and _WRITTEN.get(word) == _GPUS:
            return f"did you mean {_GPUS}, at the top of the file?"
        is_top = word in Job.model_fields
        return f"expected it at the top of the file, not in {path[0]}." if is_top else None
    if len(path) != 1:
        return None
    if (key := _WRITTEN.get(word)) is not None:
        return f"did you mean {key}?"
    within = [
        name
        for name, field in Job.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and word in field.annotation.model_fields
    ]
    if not within:
        return None
    return f"expected it in {listed(within)}, as in {within[0]}: {{{word}: …}}."


def example(path: Sequence[str | int]) -> str | None:
    """How the value at `path` of a job file is written; None where there is no example."""
    if len(path) == 1:
        return EXAMPLES.get(str(path[0]))
    if len(path) == 2 and path[0] in ("mounts", "secrets"):
        return EXAMPLES[str(path[0])][1:-1]
    return None


def _plain(word: str | int) -> str:
    return str(word).lower().replace("-", "_")
