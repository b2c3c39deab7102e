"""`drumbeat doctor` on files as the platforms' own tutorials have them: what works is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumbeat.control.doctor.result import ERROR, OK, WARNING
from drumbeat.platforms import registry
from drumbeat.platforms.doctor import manifest as manifests

FILES = sorted((Path(__file__).parent / "tutorials").iterdir())
REFUSED = "AI Platform Training was shut down on 2025-01-31."
# What has to be warned of in them, as it may be meant.
WARNED = {
    "ai-platform-config.yaml": ["gcloud took them from --master-image-uri"],
    "compose-tf-config.yaml": ["service worker0, service worker1 have no shm_size"],
    "compose-one-machine-each.yaml": ["no service is worker 1", "DATA_DIR", "/etc/keys/sa.json"],
    "docker-base.Dockerfile": ["neither CMD nor ENTRYPOINT"],
    "job-indexed.yaml": ["the Service tf-mw, which is not in the file"],
    "job-queue.yaml": ["completions is 8 and parallelism 2", "completionMode is 'NonIndexed'"],
    "ray-job.yaml": ["runtime_env has no working_dir"],
    "runai-v1.sh": ["--large-shm is missing", "There is no --command"],
    "runai-v2.sh": ["-e NAME=VALUE", "Without --no-master"],
    "runai-workload.json": ["largeShmRequest is not true", "spec.command is missing"],
    "sagemaker-request.json": ["sagemaker_parameter_server_enabled", "no ContainerEntrypoint"],
    "slurm-gpu.sbatch": ["All jobs of this script write to mnist.log"],
    "slurm-multinode.sbatch": ["empties its output", "no trap", "laid out in blocks", "1 CPU"],
    "slurm-one-node.sbatch": ["is not started by srun: it runs once"],
    "tfjob-dist-mnist.yaml": ["has PS but no Chief"],
    "tfjob-master.yaml": ["readinessProbe", "has LEVEL twice", "has a Master"],
    "trainjob-v2.yaml": ["podTemplateOverrides is now runtimePatches"],
    "vertex-container.json": ["has no command: the image's ENTRYPOINT runs"],
}


def checked(path: Path) -> list:
    manifest = registry.read_manifest(path)
    return manifests.check(manifest, registry.recognise(manifest))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_works_is_no_error(path):
    results = checked(path)
    errors = [each.text for each in results if each.state == ERROR]
    refused = path.name.startswith("ai-platform")
    assert len(errors) == refused, errors
    assert all(REFUSED in text for text in errors)
    texts = [each.text for each in results if each.state not in (OK, ERROR)]
    for said in WARNED.get(path.name, []):
        assert sum(said in text for text in texts) == 1, (said, texts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_remark_is_made_once_and_says_of_which_file(path):
    remarks = [each for each in checked(path) if each.state != OK]
    assert len({each.text for each in remarks}) == len(remarks)
    for each in remarks:
        for line in each.text.splitlines():
            assert line.count(path.name) <= 1 + (REFUSED in line)
            assert each.check != "manifest" or line.startswith(path.name)
            assert line.endswith((".", "…", "?")) or "such as" in line


IMAGE = "image: kubeflow/tf-dist-mnist-test:latest"
OURS = "command: [drumbeat, run, train.py]"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("tfjob-dist-mnist.yaml", (IMAGE, f"{IMAGE}\n              {OURS}"), "PS but no Chief"),
        ("job-queue.yaml", ("image: ", f"{OURS}\n          image: "), "and parallelism 2"),
        ("job-queue.yaml", ("env: [{name: BR", "env: [{name: TF_CONFIG}, {name: BR"), "ism 2"),
        ("slurm-one-node.sbatch", ("--ntasks=8", "--ntasks=8 --nodes=2"), "not started by srun"),
        ("compose-one-machine-each.yaml", ("10.1.0.5:12345", "trainer2:12345"), "no service is"),
        ("job-queue.yaml", ("amqp://", "amqp://me:5ecret@"), "the value of BROKER_URL is in the"),
        ("vertex-container.json", ("us-central1-docker.pkg.dev", "ghcr.io"), "Artifact Registry"),
        ("ai-platform-config.yaml", ("masterType: n1-highcpu-16", ""), "masterType is missing"),
    ],
)
def test_it_is_one_where_it_cannot_train(name, change, said, tmp_path):
    text = (Path(__file__).parent / "tutorials" / name).read_text()
    assert change[0] in text
    path = tmp_path / name
    path.write_text(text.replace(*change))
    errors = [each.text for each in checked(path) if each.state == ERROR]
    assert sum(said in text for text in errors) == 1, errors


def test_what_env_from_may_bring_is_not_known_to_be_missing(tmp_path):
    text = (Path(__file__).parent / "tutorials" / "jobset-mnist.yaml").read_text()
    path = tmp_path / "jobset.yaml"
    for more, state in (("envFrom: [{secretRef: {name: x}}]", WARNING), ("tty: true", ERROR)):
        path.write_text(text.replace("command: [python, ", f"{more}\n{' ' * 18}{OURS[:-1]}, "))
        remarks = [each for each in checked(path) if "would train alone" in each.text]
        assert [each.state for each in remarks] == [state]


def test_every_platform_has_one():
    names = {registry.recognise(registry.read_manifest(path)).name for path in FILES}
    assert names == set(registry.PLATFORMS)
