"""What a platform needs and the job file lacks is told at once, in the file's own words."""

from __future__ import annotations

import pytest

from drumbeat.errors import ConfigError
from drumbeat.platforms import needed, registry
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job

BASE = {"name": "digits", "script": "train.py"}


def missing(platform: str, **keys) -> set[str]:
    """What a platform says that a job lacks, before it is submitted."""
    chosen, job = registry.get(platform), Job.model_validate({**BASE, **keys})
    connect, render = chosen.connect, chosen.render
    assert connect is not None
    assert render is not None
    with pytest.raises(needed.Missing) as refused:
        needed.both(lambda: connect(job), lambda: render(job))
    return set(refused.value.keys)


@pytest.mark.parametrize(
    ("platform", "keys", "lacks"),
    [
        ("vertex", {}, {"vertex.project", "vertex.region", "image", "machine_type", "output"}),
        ("vertex", {"workers": 1, "image": "i"}, {"vertex.project", "vertex.region",
                                                  "machine_type"}),
        ("vertex", {"devices": {"type": "gpu"}, "vertex": {"project": "p", "region": "r"},
                    "image": "i", "output": "gs://b/x"}, {"machine_type", "devices.accelerator"}),
        ("sagemaker", {}, {"image", "output", "machine_type", "sagemaker.role"}),
        ("sagemaker", {"workers": 1, "image": "i"}, {"output", "machine_type", "sagemaker.role"}),
        ("runai", {}, {"image"}),
        ("compose", {}, {"image"}),
        ("tfjob", {}, {"image"}),
    ],
)  # fmt: skip
def test_all_is_told_at_once(monkeypatch, platform, keys, lacks):
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    assert missing(platform, **keys) == lacks


def test_what_is_told_is_a_piece_of_the_job_file():
    keys = {"output": "gs://b/x", "vertex.project": "p-1", "vertex.region": "us-central1"}
    first, *lines = str(needed.Missing(keys)).splitlines()
    assert first.startswith("The job file has no output, vertex.project and vertex.region. Write ")
    assert all(line.startswith("  ") for line in lines)
    piece = parse_yaml("\n".join(line.strip() for line in lines), "piece")[0].value
    job = Job.model_validate({**BASE, **piece})
    assert (job.output, job.vertex.project, job.vertex.region) == tuple(keys.values())


def test_the_first_mistake_is_told_first():
    def refuse() -> None:
        raise ConfigError("no")

    def lacks() -> None:
        raise needed.Missing({"image": "i"})

    with pytest.raises(ConfigError, match="^no$"):
        needed.both(refuse, lacks)
    assert needed.both(lambda: 1, lambda: "a") == (1, "a")
    with pytest.raises(needed.Missing, match="has no image"):
        needed.both(lacks, refuse)


@pytest.mark.parametrize("name", ["tfjob", "trainjob", "jobset", "runai", "slurm"])
def test_a_folder_beside_the_job_file_is_none_of_the_nodes(name):
    """Where there are several machines, they have another one or none."""
    mount = {"name": "out", "path": "/out", "source": "./out"}
    keys = {"name": "a", "script": "t.py", "image": "i:1", "slurm": {"container": "i:1"}}
    render = registry.get(name).render
    assert render is not None
    with pytest.raises(ConfigError, match=r"The mount out has the source '\./out'.* /mnt/out"):
        render(Job.model_validate({**keys, "mounts": [mount]}))
    rendered = render(Job.model_validate({**keys, "mounts": [{**mount, "source": "/mnt/out"}]}))
    assert "/mnt/out" in rendered.main
    compose = registry.get("compose").render
    assert compose is not None
    assert "source: ./out" in compose(Job.model_validate({**keys, "mounts": [mount]})).main


def test_what_slurms_container_does_not_mount_is_told():
    keys = {"name": "a", "script": "t.py", "slurm": {"container": "i:1"}}
    mounts = [{"name": "nas", "path": "/n", "source": "nas:/x"}, {"name": "claim", "path": "/c"}]
    render = registry.get("slurm").render
    assert render is not None
    notes = " ".join(render(Job.model_validate({**keys, "mounts": mounts})).notes)
    assert "and nas, claim are none: give source" in notes
    mounts = [{"name": "out", "path": "/out", "source": "/mnt/out"}]
    notes = " ".join(render(Job.model_validate({**keys, "mounts": mounts})).notes)
    assert "Only folders" not in notes
