"""Amazon SageMaker: a CreateTrainingJob request, whose hosts find each other by name.

Source: the service's model in botocore 1.43 (CreateTrainingJob); SageMaker's Developer Guide, "How
Amazon SageMaker Runs Your Training Image".
"""

from __future__ import annotations

import json
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms import command, token_file
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.needed import needs, needs_all
from drumbeat.platforms.platform import (
    Client,
    Manifest,
    Places,
    Platform,
    Rehearsal,
    Rendered,
)
from drumbeat.platforms.sagemaker import rules as sagemaker_rules

FILE = "training-job.json"
DAY_S = 86_400
LONGEST_S = 28 * DAY_S
ROLE = "arn:aws:iam::123456789012:role/SageMakerTraining"
NEEDS = {
    "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/digits:1",
    "output": "s3://bucket/runs/digits",
    "machine_type": "ml.m5.xlarge",
    "sagemaker.role": ROLE,
}
"""What the job file has to say, with an example each."""
_CREDENTIALS = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")


def render(job: Job) -> Rendered:
    """The request of a job."""
    needs_all(job, NEEDS)
    notes = _check(job)
    wrong = sagemaker_rules.errors(request := request_of(job))
    if wrong:
        raise ConfigError("\n".join(wrong))
    notes += sagemaker_rules.advice(request)
    return Rendered(files={FILE: json.dumps(request, indent=2) + "\n"}, notes=tuple(notes))


def request_of(job: Job) -> dict[str, Any]:
    """The request, as JSON has it."""
    section = job.sagemaker
    image = needs(job.image, "image", NEEDS["image"])
    words = command.drumbeat_run(job)
    request: dict[str, Any] = {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": words[:2],
            "ContainerArguments": words[2:],
        },
        "RoleArn": needs(section.role, "sagemaker.role", NEEDS["sagemaker.role"]),
        "OutputDataConfig": {"S3OutputPath": _output(job)},
        "ResourceConfig": {
            "InstanceType": needs(job.machine_type, "machine_type", NEEDS["machine_type"]),
            "InstanceCount": job.nodes,
            "VolumeSizeInGB": -(-section.volume // 1024**3),
        },
        "StoppingCondition": _limits(job),
        "Environment": token_file.environment(job, token_place(job)),
    }
    if section.spot:
        request["EnableManagedSpotTraining"] = True
    if section.subnets or section.security_groups:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(section.security_groups),
            "Subnets": list(section.subnets),
        }
    return request


def token_place(job: Job) -> str | None:
    """Where `submit` writes the agents' secret; None where there is one agent."""
    return token_file.url(_output(job)) if token_file.is_needed(job) else None


def recognises(manifest: Manifest) -> bool:
    """Whether it is a CreateTrainingJob request."""
    return sagemaker_rules.request_in(manifest) is not None


def problems(manifest: Manifest) -> list[str]:
    """What SageMaker would refuse in the request, or do otherwise than its author means."""
    document = sagemaker_rules.request_in(manifest)
    if document is None:
        return []
    found = sagemaker_rules.shape_errors(document, manifest.path.name)
    found += sagemaker_rules.errors(document.value)
    return list(dict.fromkeys(found + sagemaker_rules.advice(document.value)))


def _check(job: Job) -> list[str]:
    """Refuses what SageMaker has nothing for, and says what it leaves out or chooses."""
    notes = [
        f"It is submitted by `aws sagemaker create-training-job --cli-input-json file://{FILE}`; a "
        "name can be had once, so drumbeat submit adds the time to it."
    ]
    for secret in job.secrets:
        if secret.env not in _CREDENTIALS:
            raise ConfigError(
                f"The secret {secret.name} can't be had on SageMaker, which shows a job's "
                "variables to everyone who sees the job. Have the script read it from AWS Secrets "
                "Manager, as the role in sagemaker.role may, and leave it out here: --set "
                "secrets=[]"
            )
        notes.append(
            f"The secret {secret.name} ({secret.env}) is left out: the job is the role in "
            "sagemaker.role."
        )
    if job.mounts:
        raise ConfigError(
            f"The mount {job.mounts[0].name} can't be had on SageMaker, whose jobs mount EFS and "
            "FSx by their ids alone, as input channels. Expected data on s3://, which the script "
            "finds in DRUMBEAT_DATA."
        )
    if job.resources.cpu is not None or job.resources.memory is not None:
        notes.append("resources is left out: on SageMaker machine_type says how much there is.")
    if job.devices.accelerator is not None:
        notes.append("devices.accelerator is left out: machine_type brings its GPUs.")
    if token_file.is_needed(job):
        notes.append(
            f"The agents' secret is made once: openssl rand -hex 32 | aws s3 cp - "
            f"{token_place(job)}; drumbeat submit does it itself."
        )
    if job.timeouts.total is None:
        notes.append("MaxRuntimeInSeconds is 24 h, as SageMaker has it by default: timeouts.total.")
    return notes


def _output(job: Job) -> str:
    output = needs(job.output, "output", NEEDS["output"])
    if not output.startswith("s3://"):
        raise ConfigError(f"output is {shown(output)}; expected s3://BUCKET/FOLDER.")
    return output


def _limits(job: Job) -> dict[str, int]:
    longest = int(job.timeouts.total) if job.timeouts.total is not None else DAY_S
    limits = {"MaxRuntimeInSeconds": longest}
    if job.sagemaker.spot:
        limits["MaxWaitTimeInSeconds"] = min(longest + DAY_S, max(longest, LONGEST_S))
    return limits


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The hosts as processes of this machine."""
    from drumbeat.platforms.sagemaker import rehearsal as sagemaker_rehearsal

    return sagemaker_rehearsal.rehearse(manifest, places)


def connect(job: Job) -> Client:
    """The client for a job's region."""
    from drumbeat.platforms.sagemaker.client import SageMakerClient

    return SageMakerClient(region=job.sagemaker.region)


PLATFORM = Platform(
    name="sagemaker",
    title="Amazon SageMaker",
    render=render,
    recognises=recognises,
    problems=problems,
    rehearse=rehearse,
    connect=connect,
)
