"""Names and keys that Kubernetes takes.

Source: RFC 1035 and 1123 as k8s.io/apimachinery validates them; the API types of each kind.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from drumbeat.cluster.wording import shown

MAX_LABEL = 63
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _keys(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


POD_SPEC = _keys(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy "
    "enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers "
    "hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead "
    "preemptionPolicy priority priorityClassName readinessGates resourceClaims resources "
    "restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup securityContext "
    "serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
    "terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)
CONTAINER = _keys(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports "
    "readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext "
    "startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty "
    "volumeDevices volumeMounts workingDir"
)
JOB_SPEC = _keys(
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy "
    "manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy "
    "selector successPolicy suspend template ttlSecondsAfterFinished"
)


def label_problem(what: str, value: object, *, starts_with_letter: bool = True) -> str | None:
    """Why a name is no DNS label; None where it is one.

    Args:
        what: As the message calls it.
        value: The name.
        starts_with_letter: As Services have it (RFC 1035), not only Pods (RFC 1123).
    """
    if not isinstance(value, str) or not value:
        return f"{what} is {shown(value)}; expected a name."
    if len(value) > MAX_LABEL:
        return f"{what} is {shown(value)}, {len(value)} characters; expected at most {MAX_LABEL}."
    form = _LABEL_1035 if starts_with_letter else _LABEL_1123
    if not form.fullmatch(value):
        first = ", a letter first" if starts_with_letter else ""
        return f"{what} is {shown(value)}; expected small letters, digits and -{first}."
    return None


def unknown_keys(where: str, value: Mapping[str, Any], known: Iterable[str]) -> Iterator[str]:
    """A sentence for each key that the API does not have, with the one that may be meant.

    The API server drops such keys without a word, unless kubectl checks them first.
    """
    names = sorted(known)
    for key in value:
        if key in names:
            continue
        lower = {name.lower(): name for name in names}
        close = difflib.get_close_matches(str(key).lower(), lower, n=1, cutoff=0.7)
        hint = f"; did you mean {lower[close[0]]}?" if close else "; it would be dropped."
        yield f"{where} has the unknown key {shown(key)}{hint}"


def no_mappings(where: str, value: Mapping[str, Any], *keys: str) -> Iterator[str]:
    """A sentence for each of `keys` that is there, and holds no keys of its own."""
    for key in keys:
        inner = value.get(key)
        if inner is not None and not isinstance(inner, dict):
            yield f"{where}: {key} is {shown(inner)}; expected keys of its own."
