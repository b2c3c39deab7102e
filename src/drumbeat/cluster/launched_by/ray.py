"""Ray: a process of one of its workers, or a job's entrypoint.

Ray tells a process nothing of others that it works with: a job of several nodes is put together by
an entrypoint such as drumbeat's, which sets drumbeat's own variables, or by Ray Train, which sets
TF_CONFIG. All that is to be found here is that neither has been at work.

Source: tried with Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.launched_by.drumbeat import NODES
from drumbeat.cluster.launched_by.found import Found

WORKER, ENTRYPOINT = "RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR"
# They have said who the process is, and Ray only how it came to be.
_SAID = ("TF_CONFIG", NODES, "SKYPILOT_NODE_RANK")
_NOTE = (
    "It trains alone, on this machine: Ray tells a process nothing of others. "
    "`drumbeat submit ray` starts agents on several nodes; functions of Ray Train's "
    "TensorflowTrainer have TF_CONFIG."
)


def find(env: Mapping[str, str]) -> Found | None:
    """One process, with a note; None where somebody has said more."""
    source = next((name for name in (WORKER, ENTRYPOINT) if name in env), None)
    if source is None or any(name in env for name in _SAID):
        return None
    return Found(platform="Ray", nodes=1, node_rank=0, host="", source=source, note=_NOTE)
