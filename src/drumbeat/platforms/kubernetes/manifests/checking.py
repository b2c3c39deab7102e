"""What Kubernetes refuses in a job's pods, and what keeps them from finding each other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from drumbeat.cluster import launched_by
from drumbeat.cluster.launched_by.drumbeat import NODES
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import PREEMPTED_CODE, ConfigError
from drumbeat.platforms import command
from drumbeat.platforms.kubernetes.manifests.names import (
    CONTAINER,
    POD_SPEC,
    label_problem,
    unknown_keys,
)
from drumbeat.platforms.kubernetes.manifests.pod import Pod, variables
from drumbeat.platforms.kubernetes.manifests.reading import (
    inside,
    mapping,
    sequence,
    text,
    texts,
    whole,
)
from drumbeat.platforms.platform import Advice, Manifest
from drumbeat.platforms.secret_names import is_secret, names_secret

USUAL_GRACE_S = 25
_KILLED_AFTER_S = 30
_RESOURCES = ["cpu", "memory", "ephemeral-storage"]
_DEVICES = ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"]
_NVIDIA = r"gpu(\.shared)?|mig-[\w.+-]+|[A-Z]\w*|.*(rdma|hostdev|ib|vgpu|shared).*|pgpu"
_GRACE = re.compile(r"\s--grace[\s=](\d{1,6})")


def collected(of: Callable[[Manifest], Iterator[str]], manifest: Manifest) -> list[str]:
    """The problems that `of` finds, each once; what can't be looked at any further is the last."""
    found: dict[str, None] = {}
    try:
        for problem in of(manifest):
            found[problem] = None
    except ConfigError as error:
        found[str(error)] = None
    return list(found)


def api_problems(where: str, item: Mapping[str, Any], expected: str) -> Iterator[str]:
    """Whether it is of the version of its API that is known here."""
    if (version := item.get("apiVersion")) != expected:
        yield f"{where}: apiVersion is {shown(version)}; expected {expected}."


def name_problems(where: str, item: Mapping[str, Any]) -> Iterator[str]:
    """Whether its name is one that Services can have, too."""
    name = inside(item, "metadata", "name")
    if name is None and text(inside(item, "metadata", "generateName")):
        return
    if problem := label_problem(f"{where}: metadata.name", name):
        yield problem


def words_of(container: Mapping[str, Any]) -> str:
    """What a container runs, as one line."""
    words = (*sequence(container.get("command")), *sequence(container.get("args")))
    return " ".join(map(str, words))


def runs_drumbeat(container: Mapping[str, Any]) -> bool:
    """Whether it runs `drumbeat run`."""
    return command.starts_agent([words_of(container)])


def trains_together(container: Mapping[str, Any]) -> bool:
    """Whether it runs `drumbeat run` or is given a TF_CONFIG, so that its pods need each other."""
    names = [mapping(each).get("name") for each in sequence(container.get("env"))]
    return runs_drumbeat(container) or "TF_CONFIG" in names


def template_problems(where: str, template: object, container: str | None) -> Iterator[str]:
    """What is wrong in a PodTemplateSpec.

    Args:
        where: As messages call it.
        template: What stands there.
        container: The name that one of its containers must have.
    """
    spec = inside(template, "spec")
    containers = [mapping(each) for each in sequence(inside(spec, "containers"))]
    if not containers:
        yield f"{where} has no containers; expected template.spec.containers with one of them."
        return
    yield from unknown_keys(f"{where}, template.spec", mapping(spec), POD_SPEC)
    names = [text(each.get("name")) for each in containers]
    if container is not None and container not in names:
        yield (
            f"{where} has the containers {listed(map(shown, names))}; expected one called "
            f"{container}, as only that one is set up for training."
        )
    volumes = {text(mapping(each).get("name")) for each in sequence(inside(spec, "volumes"))}
    for each in containers:
        yield from _container_problems(where, each, volumes)
        yield from _grace_problems(where, mapping(spec), each)


def _container_problems(
    where: str, container: Mapping[str, Any], volumes: set[str]
) -> Iterator[str]:
    name = text(container.get("name"))
    place = f"{where}, container {name or '?'}"
    if problem := label_problem(
        f"{where}: a container's name", container.get("name"), starts_with_letter=False
    ):
        yield problem
    if not text(container.get("image")):
        yield f"{place} has no image; expected one such as ghcr.io/team/train:1."
    yield from unknown_keys(place, container, CONTAINER)
    for key in ("command", "args"):
        words = container.get(key)
        if words is None or (isinstance(words, list) and all(isinstance(w, str) for w in words)):
            continue
        yield f"{place}: {key} is {shown(words)}; expected a list of text, with numbers in quotes."
    yield from _env_problems(place, container.get("env"))
    yield from _resource_problems(place, mapping(container.get("resources")))
    for mount in map(mapping, sequence(container.get("volumeMounts"))):
        if text(mount.get("name")) not in volumes:
            yield f"{place} mounts the volume {shown(mount.get('name'))}, which is not in volumes."


def _resource_problems(place: str, resources: Mapping[str, Any]) -> Iterator[str]:
    asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    for name in asked:
        maker, _, rest = str(name).rpartition("/")
        if not maker and name not in _RESOURCES and not str(name).startswith("hugepages-"):
            close = difflib.get_close_matches(str(name).lower(), _RESOURCES + _DEVICES, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            yield f"{place}: Kubernetes has no resource {shown(name)}{hint}"
        elif maker == "nvidia.com" and not re.fullmatch(_NVIDIA, rest):
            yield Advice(
                f"{place}: NVIDIA's device plugin has no {shown(name)}, unless it was renamed "
                "there: pods would wait for ever. Expected nvidia.com/gpu."
            )


def _env_problems(place: str, env: object) -> Iterator[str]:
    if env is not None and not isinstance(env, list):
        yield f"{place}: env is {shown(env)}; expected a list of entries with name and value."
    seen: set[str] = set()
    for entry in map(mapping, sequence(env)):
        name = text(entry.get("name"))
        if not name:
            yield f"{place}: env has the entry {shown(dict(entry))} without a name."
        elif set("=\0") & set(name):
            yield f"{place}: env has {shown(name)}, which can't be the name of a variable."
        elif name in seen:
            yield Advice(f"{place}: env has {name} twice; the last one holds.")
        seen.add(name)
        value = entry.get("value")
        if value and (names_secret(name) or is_secret(str(value))):
            yield (
                f"{place}: the value of {name} is in the file; expected a Secret's, by valueFrom: "
                "{secretKeyRef: {name: …, key: …}}."
            )
        elif value is not None and not isinstance(value, str):
            yield f"{place}: {name} is {shown(value)}; expected text, as in quotes."
        if value and entry.get("valueFrom") is not None:
            yield f"{place}: {name} has a value and a valueFrom; expected one of them."


def _grace_problems(
    where: str, spec: Mapping[str, Any], container: Mapping[str, Any]
) -> Iterator[str]:
    """The kubelet kills after a time in which the state has to be saved."""
    if not runs_drumbeat(container):
        return
    given = _GRACE.search(words_of(container))
    grace_s = int(given[1]) if given else USUAL_GRACE_S
    killed_s = whole(spec.get("terminationGracePeriodSeconds"), _KILLED_AFTER_S)
    if killed_s <= grace_s:
        yield Advice(
            f"{where}: pods are killed {killed_s} s after SIGTERM (terminationGracePeriodSeconds), "
            f"and drumbeat run --grace takes up to {grace_s} s to save the state; expected at "
            f"least {grace_s + 5}."
        )


def restart_problems(where: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """Of the pods of a Job, whose template says how its containers are restarted."""
    policy = spec.get("restartPolicy")
    if policy not in ("Never", "OnFailure"):
        yield (
            f"{where}: the pods' restartPolicy is {shown(policy or 'Always')}; expected Never or "
            "OnFailure."
        )


def failure_policy_problems(where: str, job: Mapping[str, Any]) -> Iterator[str]:
    """Of a Job's podFailurePolicy, or of where it would help."""
    spec = mapping(inside(job, "template", "spec"))
    if job.get("podFailurePolicy") is not None and spec.get("restartPolicy") != "Never":
        yield f"{where}: podFailurePolicy needs restartPolicy: Never in the pods."
    container = mapping(next(iter(sequence(spec.get("containers"))), None))
    saves = runs_drumbeat(container) and "--backup-dir" in words_of(container)
    if saves and job.get("backoffLimit") == 0 and job.get("podFailurePolicy") is None:
        yield Advice(
            f"{where}: backoffLimit is 0, so the job fails when it was preempted and has saved its "
            f"state (exit code {PREEMPTED_CODE}); expected a podFailurePolicy that ignores "
            f"{PREEMPTED_CODE}."
        )


def identity_problems(pods: Sequence[Pod]) -> Iterator[str]:
    """What the pods' variables get wrong about who they are.

    Only of the first pod with a problem: those of the others are the same.
    """
    known = {host for pod in pods for host in pod.hosts}
    agents = sum(pod.meets for pod in pods)
    for pod in (*pods[:4], *pods[4:][-1:]):
        found = list(_pod_problems(pod, agents, known))
        yield from found
        if found:
            return


def _pod_problems(pod: Pod, agents: int, known: set[str]) -> Iterator[str]:
    found = variables(pod)
    for name, missing in found.literal:
        yield (
            f"{pod.name}: in {name}, $({missing}) stays as it is: no variable before it in env is "
            f"called {missing}.{_index_hint(missing)}"
        )
    if found.literal:
        return
    has_agent = runs_drumbeat(pod.container) and pod.meets and agents > 1
    env = dict(found.values)
    try:
        if "TF_CONFIG" in env:
            cluster = ClusterSpec.from_env(env)
            yield from _unknown_hosts(pod, cluster.addresses if cluster else (), known)
        elif has_agent:
            yield from _place_problems(pod, agents, launched_by.find(env), known)
    except ConfigError as error:
        yield f"{pod.name}: {error}"
    if has_agent and not {command.TOKEN, command.TOKEN_FILE} & {*env, *found.absent}:
        yield _unless_elsewhere(pod)(
            f"{pod.name}: neither {command.TOKEN} nor {command.TOKEN_FILE} is set, with which the "
            f"agents of {agents} pods prove that they belong together; expected it from a Secret."
        )


def _index_hint(name: str) -> str:
    if name != "JOB_COMPLETION_INDEX":
        return ""
    return (
        " Kubernetes puts it behind the others. Set a variable of yours first, from the fieldRef "
        "metadata.annotations['batch.kubernetes.io/job-completion-index']."
    )


def _place_problems(
    pod: Pod, agents: int, found: launched_by.Found | None, known: set[str]
) -> Iterator[str]:
    if found is None or (found.nodes == 1 and found.note):
        yield _unless_elsewhere(pod)(
            f"{pod.name}: each of the {agents} pods would train alone: nothing tells how many "
            f"there are. Set {NODES} to {agents}, or TF_CONFIG."
        )
    elif found.nodes != agents:
        yield f"{pod.name}: {NODES} says {found.nodes}, but the job has {agents} pods."
    elif found.nodes > 1:
        yield from _unknown_hosts(pod, [f"{found.host}:{found.port}"], known)


def _unless_elsewhere(pod: Pod) -> type[str]:
    """What is missing in `env` may come from a ConfigMap or Secret as a whole."""
    return Advice if sequence(pod.container.get("envFrom")) else str


def _unknown_hosts(pod: Pod, addresses: Sequence[str], known: set[str]) -> Iterator[str]:
    end = rf"(?:\.{re.escape(pod.namespace)}(?:\.svc(?:\..+)?)?)?"
    strange = [
        address
        for address in addresses
        if not _is_number(host := address.rpartition(":")[0])
        and not any(re.fullmatch(re.escape(each) + end, host) for each in _close(host, known))
    ]
    if strange:
        pods = (
            f"expected names such as {listed(sorted(known), 2)}"
            if known
            else ("expected a subdomain in the pods' template and a headless Service of that name")
        )
        yield f"{pod.name}: no pod of the job is found as {listed(strange, 3)}; {pods}."


def _close(host: str, known: set[str]) -> Iterator[str]:
    """The known names that `host` begins with."""
    parts = host.split(".")
    for end in range(1, len(parts) + 1):
        if (name := ".".join(parts[:end])) in known:
            yield name


def _is_number(host: str) -> bool:
    return re.fullmatch(r"[0-9.]+|\[.*\]", host) is not None


def metadata_problems(where: str, item: Mapping[str, Any]) -> Iterator[str]:
    """Of an object's labels and annotations, which are text."""
    for key in ("labels", "annotations"):
        given = inside(item, "metadata", key)
        bad = [name for name in mapping(given) if name not in texts(given)]
        if bad:
            yield f"{where}: the {key} {listed(bad)} are no text; expected it in quotes."
