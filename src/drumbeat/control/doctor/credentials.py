"""Whether a process can log in where its data and output are.

Source: google-auth's and botocore's documentation of where they look, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drumbeat.cluster.wording import shown
from drumbeat.control.doctor.result import Result, error, ok

GOOGLE, AMAZON = "gs", "s3"
KINDS = {"gs": GOOGLE, "gcs": GOOGLE, "s3": AMAZON, "s3a": AMAZON}
"""Kinds of URLs that need a login, and whose."""
DRIVERS = {GOOGLE: "gcsfs", AMAZON: "s3fs"}
EXTRAS = {GOOGLE: "gcs", AMAZON: "s3"}
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_KEY_KINDS = ("service_account", "authorized_user", "external_account", "impersonated")
Read = Callable[[str], "str | None"]


@dataclass(frozen=True, kw_only=True)
class MetadataServer:
    """Where machines of a cloud log in.

    Attributes:
        host: Its name or address.
        header: Name and value of the header by which it is known.
    """

    host: str
    header: tuple[str, str]


METADATA_SERVERS = {
    GOOGLE: MetadataServer(host="metadata.google.internal", header=("Metadata-Flavor", "Google")),
    AMAZON: MetadataServer(host="169.254.169.254", header=("Server", "EC2ws")),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the checks look at beside the environment.

    Attributes:
        read: The text of a file; None where it can't be read.
        has_metadata: Whether a cloud's metadata server answers.
        has_driver: Whether a Python package is installed.
    """

    read: Read
    has_metadata: Callable[[str], bool]
    has_driver: Callable[[str], bool]


def cloud_of(place: str | None) -> str | None:
    """Whose login a path or URL needs; None for none."""
    kind, separator, _ = (place or "").partition("://")
    return KINDS.get(kind.lower()) if separator else None


def check(places: Mapping[str, str], env: Mapping[str, str], machine: Machine) -> list[Result]:
    """What is missing to read and write in `places`.

    Args:
        places: Paths and URLs, by what they are: data, output, backups.
        env: The environment.
        machine: What else to look at.
    """
    found: list[Result] = []
    clouds: dict[str, list[str]] = {}
    for place in places.values():
        if (cloud := cloud_of(place)) is not None:
            clouds.setdefault(cloud, []).append(place)
    for cloud, urls in clouds.items():
        driver = DRIVERS[cloud]
        if not machine.has_driver(driver):
            found.append(
                error(
                    "driver",
                    f"{urls[0]} needs the package {driver}, which is not installed. Install it "
                    f'beside drumbeat: pip install "drumbeat[{EXTRAS[cloud]}]".',
                )
            )
        look = _google if cloud == GOOGLE else _amazon
        found.append(look(urls[0], env, machine))
    return found


def _google(url: str, env: Mapping[str, str], machine: Machine) -> Result:
    if env.get("STORAGE_EMULATOR_HOST"):
        return ok("credentials", f"{url}: STORAGE_EMULATOR_HOST stands in for Google.")
    if name := env.get(_KEY_FILE):
        return _key_file(name, machine)
    home = env.get("CLOUDSDK_CONFIG") or f"{env.get('HOME', '')}/.config/gcloud"
    default = f"{home}/application_default_credentials.json"
    if machine.read(default) is not None:
        return ok("credentials", f"{url}: as `gcloud auth application-default login` left it.")
    if machine.has_metadata(GOOGLE):
        return ok("credentials", f"{url}: as the service account of this machine.")
    return error(
        "credentials",
        f"Nothing here can log in for {url}: {_KEY_FILE} is not set, {default} is not there, and "
        "no metadata server answers. Mount a service account's key and name its file in "
        f"{_KEY_FILE} (secrets: in the job file), or run `gcloud auth application-default login`.",
    )


def _key_file(name: str, machine: Machine) -> Result:
    expected = "expected the JSON file of a service account's key, mounted where the variable says"
    text = machine.read(name)
    if text is None:
        return error(
            "credentials", f"{_KEY_FILE} is {shown(name)}, which can't be read; {expected}."
        )
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        return error("credentials", f"{_KEY_FILE} is {shown(name)}, which is no JSON; {expected}.")
    kind = key.get("type") if isinstance(key, dict) else None
    if not isinstance(kind, str) or not kind.startswith(_KEY_KINDS):
        return error(
            "credentials",
            f"{_KEY_FILE} is {shown(name)}, which is JSON, but no key: its type is {shown(kind)}; "
            f"{expected}.",
        )
    return ok("credentials", f"{_KEY_FILE} is {shown(name)}, a key ({kind}).")


def _amazon(url: str, env: Mapping[str, str], machine: Machine) -> Result:
    if bool(env.get("AWS_ACCESS_KEY_ID")) != bool(env.get("AWS_SECRET_ACCESS_KEY")):
        missing = [
            name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if not env.get(name)
        ]
        return error(
            "credentials", f"{missing[0]} is not set, but its other half is; expected both."
        )
    if env.get("AWS_ACCESS_KEY_ID"):
        return ok("credentials", f"{url}: by AWS_ACCESS_KEY_ID.")
    if name := env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        if machine.read(name) is None or not env.get("AWS_ROLE_ARN"):
            return error(
                "credentials",
                f"AWS_WEB_IDENTITY_TOKEN_FILE is {shown(name)}, and AWS_ROLE_ARN is "
                f"{shown(env.get('AWS_ROLE_ARN', ''))}; expected a file that can be read, and a "
                "role. Kubernetes sets both for a service account that has one.",
            )
        return ok("credentials", f"{url}: as {env['AWS_ROLE_ARN']}.")
    for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        if env.get(name):
            return ok("credentials", f"{url}: by {name}.")
    home = env.get("HOME", "")
    for variable, default in (
        ("AWS_SHARED_CREDENTIALS_FILE", f"{home}/.aws/credentials"),
        ("AWS_CONFIG_FILE", f"{home}/.aws/config"),
    ):
        if machine.read(env.get(variable) or default) is not None:
            return ok("credentials", f"{url}: by {env.get(variable) or default}.")
    if machine.has_metadata(AMAZON):
        return ok("credentials", f"{url}: as the role of this machine.")
    return error(
        "credentials",
        f"Nothing here can log in for {url}: AWS_ACCESS_KEY_ID is not set, ~/.aws is not there, "
        "and no metadata server answers. Give the job the two AWS_… variables as secrets (secrets: "
        "in the job file), or its service account a role.",
    )
