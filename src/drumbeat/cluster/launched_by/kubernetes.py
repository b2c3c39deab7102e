"""Indexed Jobs and JobSets: JOB_COMPLETION_INDEX, and a pod's name among its like.

Kubernetes tells a pod its index and not how many there are: the manifest must set DRUMBEAT_NODES.
Pods of an Indexed Job are called <job>-<index>, those of a JobSet <jobset>-<name>-<job>-<index>,
and found as that by <pod>.<subdomain>.

Source: Kubernetes' documentation of Jobs with pod-to-pod communication; JobSet v1alpha2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from drumbeat.cluster.launched_by.drumbeat import NODES, RENDEZVOUS
from drumbeat.cluster.launched_by.found import Found, host_in, place_in, rank_of, whole
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

INDEX = "JOB_COMPLETION_INDEX"
SUBDOMAIN = "DRUMBEAT_SUBDOMAIN"
"""The headless service of the pods; a JobSet's is called as the JobSet where nobody says."""
_ALONE = (
    "It trains alone: a pod of an Indexed Job or a JobSet is not told how many there are. To have "
    f"them train together, set {NODES} to that number in the manifest, or TF_CONFIG."
)
_POD = re.compile(r"(.+)-(\d{1,9})(?:-[a-z0-9]{5})?")


def find(env: Mapping[str, str]) -> Found | None:
    """The pod among those of its job.

    Raises:
        ConfigError: The variables contradict each other.
    """
    if INDEX not in env:
        return None
    if NODES not in env:
        return Found(
            platform="Kubernetes", nodes=1, node_rank=0, host="", source=INDEX, note=_ALONE
        )
    nodes = whole(env, NODES, least=1)
    rank = rank_of(env, INDEX, nodes, NODES)
    source = f"{INDEX}, {NODES}"
    if nodes == 1:
        return Found(platform="Kubernetes", nodes=1, node_rank=0, host="", source=source)
    if RENDEZVOUS in env:
        host, port = place_in(env[RENDEZVOUS], RENDEZVOUS)
        return Found(
            platform="Kubernetes",
            nodes=nodes,
            node_rank=rank,
            host=host,
            port=port,
            source=f"{source}, {RENDEZVOUS}",
        )
    host = _first_pod(env, rank)
    return Found(
        platform="Kubernetes", nodes=nodes, node_rank=rank, host=host, source=f"{source}, HOSTNAME"
    )


def _first_pod(env: Mapping[str, str], rank: int) -> str:
    pod = _POD.fullmatch(env.get("HOSTNAME", "").partition(".")[0])
    if pod is None or int(pod[2]) != rank:
        raise ConfigError(
            f"HOSTNAME is {shown(env.get('HOSTNAME', ''))}, but {INDEX} is {rank}; expected a pod "
            f"whose name ends in -{rank}, as Indexed Jobs have them. Set {RENDEZVOUS} to "
            "HOST:PORT of the pod with index 0."
        )
    subdomain = env.get(SUBDOMAIN, "").strip()
    if not subdomain:
        raise ConfigError(
            f"{SUBDOMAIN} is not set; expected the name of the pods' headless service (of a "
            "JobSet: the JobSet's own name), by which they find each other. Or set "
            f"{RENDEZVOUS} to HOST:PORT."
        )
    return host_in(f"{pod[1]}-0.{subdomain}", f"HOSTNAME with {SUBDOMAIN}")
