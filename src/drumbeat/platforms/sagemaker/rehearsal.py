"""A training job's hosts as processes of this machine, each with what says which one it is.

Source: as `drumbeat.cluster.launched_by.sagemaker` says.
"""

from __future__ import annotations

import json
from typing import Any

from drumbeat.errors import ConfigError
from drumbeat.platforms.platform import Manifest, NoCommand, Places, Process, Rehearsal
from drumbeat.platforms.sagemaker import rules as sagemaker_rules

ACCOUNT = "arn:aws:sagemaker:us-east-1:000000000000:training-job"


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The hosts of a CreateTrainingJob request.

    Raises:
        ConfigError: The file is none that SageMaker would run, or says no command.
    """
    document = sagemaker_rules.request_in(manifest)
    if document is None:
        raise ConfigError(f"{manifest.path.name} is no CreateTrainingJob request of SageMaker.")
    request = document.value
    if wrong := sagemaker_rules.errors(request):
        raise ConfigError("\n".join(wrong))
    hosts = hosts_of(sagemaker_rules.host_count(request))
    rendezvous = f"127.0.0.1:{places.port()}"
    words = _command(request["AlgorithmSpecification"])
    processes = [
        Process(name=host, command=words, env=_env(request, hosts, host, rendezvous))
        for host in hosts
    ]
    return Rehearsal(
        platform="sagemaker",
        processes=tuple(processes),
        differences=tuple(_differences(request, len(hosts))),
    )


def hosts_of(count: int) -> list[str]:
    """The hosts in SageMaker's order, which is that of text: algo-1, algo-10, algo-2."""
    return sorted(f"algo-{number}" for number in range(1, count + 1))


def _command(algorithm: dict[str, Any]) -> tuple[str, ...]:
    if not algorithm.get("ContainerEntrypoint"):
        raise NoCommand(
            "AlgorithmSpecification has no ContainerEntrypoint: the image's ENTRYPOINT runs, with "
            'the argument `train`, which can\'t be known here. Write it as "ContainerEntrypoint": '
            '["drumbeat", "run"] and "ContainerArguments": ["train.py"].'
        )
    return (*algorithm["ContainerEntrypoint"], *(algorithm.get("ContainerArguments") or ()))


def _env(request: dict[str, Any], hosts: list[str], host: str, rendezvous: str) -> dict[str, str]:
    name = request["TrainingJobName"]
    resources = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0"}
    env = {
        "TRAINING_JOB_NAME": name,
        "TRAINING_JOB_ARN": f"{ACCOUNT}/{name}",
        "SM_HOSTS": json.dumps(hosts, separators=(",", ":")),
        "SM_CURRENT_HOST": host,
        "SM_RESOURCE_CONFIG": json.dumps(resources, separators=(",", ":")),
        **(request.get("Environment") or {}),
    }
    # algo-1 is a name of the job's own network.
    return env | ({"DRUMBEAT_RENDEZVOUS": rendezvous} if len(hosts) > 1 else {})


def _differences(request: dict[str, Any], count: int) -> list[str]:
    image = request["AlgorithmSpecification"].get("TrainingImage")
    kind = request["ResourceConfig"].get("InstanceType", "machines of several types")
    found = [
        f"There, the program runs in {image}; here, in this folder and this Python.",
        f"There, each host is one {kind}; here, all share this machine.",
        "There, SM_* are set in AWS's own images alone; in others drumbeat reads the same from "
        "/opt/ml/input/config/resourceconfig.json.",
        f"There, the job is the role {request['RoleArn']}; here, it has your credentials.",
        "There, /opt/ml/model is uploaded to S3OutputPath at the end; here, nothing is.",
    ]
    if count > 1:
        found.append("There, the hosts meet at algo-1:2222; here, at DRUMBEAT_RENDEZVOUS.")
    if request.get("InputDataConfig"):
        found.append("There, channels lie under /opt/ml/input/data; here, nothing is downloaded.")
    if request.get("EnableManagedSpotTraining"):
        found.append("There, hosts are Spot: they may be taken away at any time.")
    return found
