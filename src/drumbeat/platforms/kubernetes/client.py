"""Jobs on Kubernetes: TFJob, TrainJob and JobSet are submitted, watched and ended alike.

A job's id is NAMESPACE/NAME. Beside the job's object there is a Secret with the token of its
agents, which belongs to the object and goes with it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drumbeat.errors import ConfigError
from drumbeat.platforms.command import shell
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.kubernetes import pods
from drumbeat.platforms.kubernetes.api import Refused, Server
from drumbeat.platforms.kubernetes.logs import Reader
from drumbeat.platforms.kubernetes.status import SELECTORS, Task, newest, state_of
from drumbeat.platforms.platform import Rendered, Status, check_task

MANAGED_BY = "app.kubernetes.io/managed-by"
OWN_LABELS = {MANAGED_BY: "drumbeat"}
POLL_S = 2.0
_PLURALS = {"TrainingRuntime": "trainingruntimes"}
_FINAL = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of object that stands for a job.

    Attributes:
        platform: The platform's name.
        api: Group and version.
        kind: As in manifests.
        plural: As in paths of the API.
        operator: What has to be installed for it, and where that is told.
    """

    platform: str
    api: str
    kind: str
    plural: str
    operator: str


def connector(target: Target) -> Callable[[Job], KubernetesClient]:
    """`Platform.connect` for a kind of object."""
    return lambda job: KubernetesClient(
        target, Server(job.kubernetes.context, job.kubernetes.namespace), job
    )


class KubernetesClient:
    """`drumbeat.platforms.platform.Client` for one kind of object."""

    def __init__(self, target: Target, server: Server, job: Job) -> None:
        self._target = target
        self._server = server
        self._job = job

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """As commands of kubectl; no cluster is asked."""
        words = ["kubectl"]
        for option, value in (
            ("--context", job.kubernetes.context),
            ("--namespace", job.kubernetes.namespace),
        ):
            words += [option, value] if value is not None else []
        kubectl = shell(words)
        lines = [f"{kubectl} create -f - <<'EOF'\n{rendered.main}EOF"]
        if _has_token(job, rendered):
            lines.append(
                f"{kubectl} create secret generic {pods.token_secret(job)} "
                f"--from-literal={pods.TOKEN_KEY}=$(openssl rand -hex 32)"
                f"  # deleted with the {self._target.kind}"
            )
        return lines

    def submit(self, job: Job, rendered: Rendered) -> str:
        """Creates the objects, then the token's Secret; all or none of them.

        Raises:
            ConfigError: There are no credentials, or the server refuses.
        """
        space = self._server.namespace
        made: list[tuple[str, str]] = []
        owner: Mapping[str, Any] = {}
        try:
            for document in parse_yaml(rendered.main, "the manifest"):
                owner = self._create(space, document.value)
                made.append((document.value["kind"], document.value["metadata"]["name"]))
            if _has_token(job, rendered):
                self._create_token(space, job, owner)
        except BaseException:
            for kind, name in reversed(made):
                self._delete(space, kind, name)
            raise
        return f"{space}/{job.name}"

    def status(self, job_id: str) -> Status:
        """How the job is, by its conditions and its pods.

        Raises:
            ConfigError: There is no such job, or no credentials.
        """
        space, name = self._split(job_id)
        item, tasks = self._get(space, name), self._tasks(space, name)
        state, detail = self._state(item, tasks)
        return Status(
            job_id=f"{space}/{name}",
            state=state,
            detail=detail,
            tasks={task: each.state for task, each in tasks.items()},
        )

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """Lines of the pods' output, each after its task's name in brackets.

        Raises:
            ConfigError: There is no such job or task, or no credentials.
        """
        space, name = self._split(job_id)
        reader = Reader(self._server, space)
        while True:
            item, tasks = self._get(space, name), self._tasks(space, name)
            state, detail = self._state(item, tasks)
            is_final = state in _FINAL
            if task is not None and (is_final or not follow or tasks):
                check_task(name, task, tasks)
            if not tasks and not follow:
                raise ConfigError(f"{name} has no pods: it is {state} ({detail or 'no reason'}).")
            for key, each in tasks.items():
                if task in (None, key):
                    for line in reader.new_lines(each):
                        yield f"[{key}] {line}"
            if is_final or not follow:
                return
            time.sleep(POLL_S)

    def stop(self, job_id: str) -> None:
        """Deletes the job's object, with all that belongs to it.

        Raises:
            ConfigError: There is no such job, or no credentials.
        """
        space, name = self._split(job_id)
        item = self._get(space, name)
        self._delete(space, self._target.kind, name)
        kind = self._server.understood(f"read {self._target.kind} {name}", _runtime, item, name)
        if kind in _PLURALS:
            self._delete_own_runtime(space, kind, name)
        self._delete_token(space, f"{name}-drumbeat")

    def _create(self, space: str, document: dict[str, Any]) -> dict[str, Any]:
        kind, name = document["kind"], document["metadata"]["name"]
        try:
            self._server.call(
                f"create the {kind} {name}",
                self._server.objects().create_namespaced_custom_object,
                **self._place(kind),
                body=document,
                namespace=space,
            )
        except Refused as error:
            if error.status == 409:
                raise ConfigError(
                    f"The {kind} {name} exists in the namespace {space}. Give the job another "
                    f"name, or end that one: drumbeat stop {self._target.platform} {space}/{name}"
                ) from None
            if error.status == 404:
                self._check_installed(kind)
            raise
        return self._read(space, kind, name)

    def _create_token(self, space: str, job: Job, owner: Mapping[str, Any]) -> None:
        from kubernetes import client

        name = pods.token_secret(job)
        reference = client.V1OwnerReference(
            api_version=owner["apiVersion"],
            kind=owner["kind"],
            name=owner["metadata"]["name"],
            uid=owner["metadata"]["uid"],
        )
        metadata = client.V1ObjectMeta(
            name=name,
            labels={**OWN_LABELS, "app.kubernetes.io/instance": job.name},
            owner_references=[reference],
        )
        body = client.V1Secret(
            metadata=metadata,
            type="Opaque",
            string_data={pods.TOKEN_KEY: secrets.token_hex(32)},
        )
        try:
            self._server.call(
                f"create the Secret {name}",
                self._server.core().create_namespaced_secret,
                space,
                body,
            )
        except Refused as error:
            # One that the user has made, or that is left of the job's last life, does as well.
            if error.status != 409:
                raise

    def _get(self, space: str, name: str) -> dict[str, Any]:
        kind = self._target.kind
        try:
            return self._read(space, kind, name)
        except Refused as error:
            if error.status != 404:
                raise
            self._check_installed(kind)
            raise ConfigError(f"There is no {kind} {name} in the namespace {space}.") from None

    def _read(self, space: str, kind: str, name: str) -> dict[str, Any]:
        return self._server.custom(
            f"read the {kind} {name}",
            self._server.objects().get_namespaced_custom_object,
            **self._place(kind),
            namespace=space,
            name=name,
        )

    def _tasks(self, space: str, name: str) -> dict[str, Task]:
        what = f"list the pods of {name}"
        found = self._server.call(
            what,
            self._server.core().list_namespaced_pod,
            space,
            label_selector=SELECTORS[self._target.kind].format(name=name),
        )
        return self._server.understood(what, newest, found.items)

    def _state(self, item: Mapping[str, Any], tasks: Mapping[str, Task]) -> tuple[str, str]:
        what = f"read the {self._target.kind}"
        return self._server.understood(what, state_of, item, tasks.values())

    def _check_installed(self, kind: str) -> None:
        """Says what is missing where the server knows no such kind.

        Raises:
            ConfigError: It doesn't.
        """
        place = self._place(kind)
        try:
            known = self._server.call(
                f"list what {place['group']} has",
                self._server.objects().get_api_resources,
                place["group"],
                place["version"],
            )
            if any(each.name == place["plural"] for each in known.resources or ()):
                return
        except Refused as error:
            if error.status != 404:
                return
        raise ConfigError(
            f"The cluster does not know {kind} ({self._target.api}). Expected "
            f"{self._target.operator} to be installed."
        )

    def _delete(self, space: str, kind: str, name: str) -> None:
        try:
            self._server.call(
                f"delete the {kind} {name}",
                self._server.objects().delete_namespaced_custom_object,
                **self._place(kind),
                namespace=space,
                name=name,
                propagation_policy="Background",
            )
        except Refused as error:
            if error.status != 404:
                raise

    def _delete_own_runtime(self, space: str, kind: str, name: str) -> None:
        try:
            item = self._read(space, kind, name)
        except Refused as error:
            if error.status != 404:
                raise
            return
        if item["metadata"].get("labels", {}).get(MANAGED_BY) == OWN_LABELS[MANAGED_BY]:
            self._delete(space, kind, name)

    def _delete_token(self, space: str, name: str) -> None:
        """Deletes the Secret that `submit` has made; one of the user's stays."""
        core = self._server.core()
        try:
            found = self._server.call(
                f"read the Secret {name}", core.read_namespaced_secret, name, space
            )
            if (found.metadata.labels or {}).get(MANAGED_BY) == OWN_LABELS[MANAGED_BY]:
                self._server.call(
                    f"delete the Secret {name}", core.delete_namespaced_secret, name, space
                )
        except Refused as error:
            # It is gone with its owner already, or only the garbage collector may touch it.
            if error.status not in (403, 404):
                raise

    def _place(self, kind: str) -> dict[str, str]:
        group, _, version = self._target.api.partition("/")
        plural = _PLURALS.get(kind, self._target.plural)
        return {"group": group, "version": version, "plural": plural}

    def _split(self, job_id: str) -> tuple[str, str]:
        space, slash, name = job_id.rpartition("/")
        return (space if slash else self._server.namespace), name


def _runtime(item: Mapping[str, Any], name: str) -> str | None:
    """The kind of the job's own runtime, if it has one."""
    runtime = item.get("spec", {}).get("runtimeRef", {})
    return runtime.get("kind") if runtime.get("name") == name else None


def _has_token(job: Job, rendered: Rendered) -> bool:
    return f"name: {pods.token_secret(job)}\n" in rendered.main
