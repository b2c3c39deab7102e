"""What SageMaker refuses in a CreateTrainingJob request, and what it takes but may surprise.

Source: the service's model in botocore, and the API reference of CreateTrainingJob.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.platforms.jobfile.documents import Document, KeyPath
from drumbeat.platforms.jobfile.problems import meant, unknown
from drumbeat.platforms.platform import Advice, Manifest

LONGEST_NAME, LONGEST_WORD, LONGEST_VALUE, MOST = 63, 256, 512, 100
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/\S+")
_ECR = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/.+")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "structure": ((dict,), "keys"),
    "map": ((dict,), "keys"),
    "list": ((list,), "a list"),
}


def request_in(manifest: Manifest) -> Document | None:
    """The document that is a CreateTrainingJob request; None where there is none.

    What is null in it is not given, as AWS's protocols for JSON have it.
    """
    for each in manifest.documents:
        if isinstance(each.value, dict) and {"TrainingJobName", "AlgorithmSpecification"} & set(
            each.value
        ):
            return Document(value=_given(each.value), lines=each.lines)
    return None


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return value


def host_count(request: dict[str, Any]) -> int:
    """How many hosts the job has; 0 where that can't be told."""
    config = _part(request, "ResourceConfig")
    groups = config.get("InstanceGroups")
    counts = [config.get("InstanceCount")]
    if isinstance(groups, list) and groups:
        counts = [each.get("InstanceCount") if isinstance(each, dict) else 0 for each in groups]
    return sum(count for count in counts if isinstance(count, int) and count > 0)


def errors(request: dict[str, Any]) -> list[str]:
    """What is refused, a sentence each."""
    return [
        *_of_job(request),
        *_of_algorithm(_part(request, "AlgorithmSpecification")),
        *_of_texts("HyperParameters", request.get("HyperParameters"), 2500),
        *_of_texts("Environment", request.get("Environment"), LONGEST_VALUE),
    ]


def advice(request: dict[str, Any]) -> list[str]:
    """What is taken, but may not be what its author means; a sentence each."""
    found: list[str] = []
    image = _part(request, "AlgorithmSpecification").get("TrainingImage")
    if isinstance(image, str) and not _ECR.fullmatch(image):
        found.append(
            Advice(
                f"TrainingImage is {shown(image)}, and not in Amazon ECR: other registries need "
                "TrainingImageConfig and a VPC."
            )
        )
    if "TF_CONFIG" in _part(request, "Environment"):
        found.append("Environment sets TF_CONFIG, the same on all hosts: none knows which it is.")
    kind = _part(request, "ResourceConfig").get("InstanceType")
    if isinstance(kind, str) and not kind.startswith("ml."):
        found.append(f"InstanceType is {shown(kind)}; expected one such as ml.m5.xlarge.")
    switches = [
        name
        for name in _part(request, "HyperParameters")
        if isinstance(name, str) and re.fullmatch(r"sagemaker_\w+_enabled", name)
    ]
    if switches:
        found.append(
            Advice(
                f"{listed(switches)} has an effect in AWS's own images alone, and drumbeat needs "
                "none of it."
            )
        )
    return found


def shape_errors(document: Document, name: str) -> list[str]:
    """What does not fit the service's model, with lines; one remark where botocore is missing.

    Args:
        document: The request.
        name: As messages call the file.
    """
    try:
        shape = _shape()
    except ImportError:
        return [
            Advice(
                f'{name}: its keys are not checked without boto3: pip install "drumbeat[sagemaker]"'
            )
        ]
    found = []
    for path, text in _fits(document.value, shape, ()):
        line = document.line(path)
        found.append(f"{name}:{line}: {text}" if line else f"{name}: {text}")
    return found


@functools.cache
def _shape() -> Any:
    import botocore.session

    model: Any = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape


def _fits(value: Any, shape: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    dotted = ".".join(map(str, path)) or "the request"
    kinds, expected = _TYPES.get(shape.type_name, ((object,), ""))
    if not _is_one_of(kinds, value):
        yield path, f"{dotted} is {shown(value)}; expected {expected}."
    elif shape.type_name == "structure":
        for key, item in value.items():
            if key in shape.members:
                yield from _fits(item, shape.members[key], (*path, key))
            else:
                where = f"in {dotted}: " if path else ""
                yield (*path, key), unknown(key, shape.members, where)
        for key in shape.required_members:
            if key not in value:
                yield path, f"{'.'.join(map(str, (*path, key)))} is missing."
    elif shape.type_name == "map":
        for key, item in value.items():
            yield from _fits(item, shape.value, (*path, key))
    elif shape.type_name == "list":
        for index, item in enumerate(value):
            yield from _fits(item, shape.member, (*path, index))
    elif getattr(shape, "enum", None) and value not in shape.enum:
        yield path, f"{dotted} is {shown(value)}; {meant(value, shape.enum)}"


def _is_one_of(kinds: tuple[type, ...], value: Any) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _part(request: dict[str, Any], key: str) -> dict[str, Any]:
    found = request.get(key)
    return found if isinstance(found, dict) else {}


def _of_job(request: dict[str, Any]) -> Iterator[str]:
    name = request.get("TrainingJobName")
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        yield (
            f"TrainingJobName is {shown(name)}; expected letters, digits and -, at most "
            f"{LONGEST_NAME}."
        )
    role = request.get("RoleArn")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        yield f"RoleArn is {shown(role)}; expected arn:aws:iam::123456789012:role/NAME."
    if host_count(request) < 1:
        count = _part(request, "ResourceConfig").get("InstanceCount")
        yield f"ResourceConfig.InstanceCount is {shown(count)}; expected at least 1."
    path = _part(request, "OutputDataConfig").get("S3OutputPath")
    if not isinstance(path, str) or not path.startswith(("s3://", "https://")):
        yield f"OutputDataConfig.S3OutputPath is {shown(path)}; expected s3://BUCKET/FOLDER."
    limits = _part(request, "StoppingCondition")
    longest, wait = limits.get("MaxRuntimeInSeconds"), limits.get("MaxWaitTimeInSeconds")
    if request.get("EnableManagedSpotTraining"):
        if not isinstance(wait, int) or (isinstance(longest, int) and wait < longest):
            yield (
                f"MaxWaitTimeInSeconds is {shown(wait)}; expected, with EnableManagedSpotTraining, "
                f"at least MaxRuntimeInSeconds, {shown(longest)}."
            )
    elif wait is not None:
        yield "MaxWaitTimeInSeconds belongs to EnableManagedSpotTraining."
    vpc = request.get("VpcConfig")
    if vpc is not None and not (
        _part(request, "VpcConfig").get("Subnets")
        and _part(request, "VpcConfig").get("SecurityGroupIds")
    ):
        yield "VpcConfig needs both Subnets (sagemaker.subnets) and SecurityGroupIds."


def _of_algorithm(algorithm: dict[str, Any]) -> Iterator[str]:
    if not algorithm.get("TrainingImage") and not algorithm.get("AlgorithmName"):
        yield "AlgorithmSpecification.TrainingImage is missing; expected an image of Amazon ECR."
    for key in ("ContainerEntrypoint", "ContainerArguments"):
        words = algorithm.get(key)
        if words is None:
            continue
        if not isinstance(words, list) or not 1 <= len(words) <= MOST:
            yield f"{key} is {shown(words)}; expected a list of 1 to {MOST} words."
            continue
        for word in words:
            if not isinstance(word, str) or len(word) > LONGEST_WORD:
                yield f"{key} has {shown(word)}; expected text of at most {LONGEST_WORD}."


def _of_texts(key: str, given: Any, longest: int) -> Iterator[str]:
    if given is None:
        return
    if not isinstance(given, dict):
        yield f"{key} is {shown(given)}; expected names and texts."
        return
    if len(given) > MOST:
        yield f"{key} has {len(given)} entries; expected at most {MOST}."
    for name, value in given.items():
        if not isinstance(value, str):
            yield f"{key}.{name} is {shown(value)}; expected text, in quotes."
        elif len(value) > longest:
            yield f"{key}.{name} has {len(value)} characters; expected at most {longest}."
        if key == "Environment" and not _VARIABLE.fullmatch(name):
            yield f"Environment: {shown(name)} is no name of a variable."
