"""What the agents know of the job's attempts, and what follows for all of them. Pure.

Before every attempt each agent brings its `Standing` to a fence. All agents
compute from the same standings, so they take the same decision, and a node
that has come to replace another learns what the job has been through.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from drumbeat.control.restart import Ended, Kind
from drumbeat.errors import RendezvousError
from drumbeat.launch.failures import Failure, root_cause

# All texts together stay well below what agents accept in one message.
_TEXTS_BYTES = 2 * 1024 * 1024
_KEY = "standing:"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What one agent knows.

    Attributes:
        job_id: The job's name; "" if the agent has just been started.
        history: How the attempts have ended that all have agreed on.
        failure: Why the attempt after those has ended, as seen here; None if none has.
        furthest: Finished steps that a worker of this node reached in it.
        snapshot: Step of the newest snapshot on this node; -1 for none.
        fired: Bit i is set where fault i of `--inject` is known to have happened.
        nodes: Ranks of the nodes that took part in that attempt.
        onednn: TF_ENABLE_ONEDNN_OPTS of this node's workers, which decides how they round.
    """

    job_id: str = ""
    history: tuple[Ended, ...] = ()
    failure: Failure | None = None
    furthest: int = 0
    snapshot: int = -1
    fired: int = 0
    nodes: tuple[int, ...] = ()
    onednn: str = ""

    @property
    def attempts(self) -> int:
        """How many attempts have ended."""
        return len(self.history) + (self.failure is not None)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all agents make of their standings.

    Attributes:
        job_id: The job's name; "" if all agents have just been started.
        history: How all attempts so far have ended.
        cause: Why the last of them did; None if nobody has seen it.
        snapshot: Step of the newest snapshot on any node; -1 for none.
        fired: As in `Standing`, of all nodes.
        left: Ranks of nodes that took part in the last attempt, and are absent now.
        new: Ranks of those that did not, and are here now.
        onednn: TF_ENABLE_ONEDNN_OPTS of the job: what its workers have had so far, else that
            of the first node.
    """

    job_id: str
    history: tuple[Ended, ...]
    cause: Failure | None
    snapshot: int
    fired: int
    left: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    onednn: str = ""


_HISTORY = TypeAdapter(tuple[Ended, ...])


def to_values(standing: Standing, node_rank: int, num_nodes: int) -> dict[str, str]:
    """A standing as what a node brings to a fence."""
    content = {
        "job_id": standing.job_id,
        "history": [asdict(ended) for ended in standing.history],
        "failure": None,
        "furthest": standing.furthest,
        "snapshot": standing.snapshot,
        "fired": standing.fired,
        "nodes": list(standing.nodes),
        "onednn": standing.onednn,
    }
    if standing.failure is not None:
        event = standing.failure.to_event()
        content["failure"] = {**event, "text": event["text"][-(_TEXTS_BYTES // num_nodes) :]}
    return {f"{_KEY}{node_rank}": json.dumps(content)}


def from_values(values: Mapping[str, str]) -> list[Standing]:
    """The standings that came together in a fence, by node rank.

    Raises:
        RendezvousError: One is malformed.
    """
    ranks = sorted(int(key.removeprefix(_KEY)) for key in values if key.startswith(_KEY))
    return [_parse(values[f"{_KEY}{rank}"]) for rank in ranks]


def agree(standings: list[Standing], here: tuple[int, ...] = ()) -> Agreement:
    """What follows from what all agents know.

    Who has seen most attempts knows the job; failures of an earlier attempt than the
    last are old news. Among several failures of the last, `root_cause` decides.

    Args:
        standings: Those of all nodes, by node rank; at least one.
        here: Ranks of these nodes; needed where nodes may stay away.
    """
    attempts = max(standing.attempts for standing in standings)
    history = max((standing.history for standing in standings), key=len)
    seen = [standing for standing in standings if standing.attempts == attempts]
    failures = [standing.failure for standing in seen if standing.failure is not None]
    cause = root_cause(failures) if failures else None
    before = {rank for standing in seen for rank in standing.nodes}
    left = tuple(sorted(before - set(here))) if here else ()
    new = tuple(sorted(set(here) - before)) if before else ()
    if cause is not None and len(history) < attempts:
        furthest = max(standing.furthest for standing in seen)
        is_smaller = cause.policy_kind is Kind.NODE_LOST and left
        ended = Ended(
            kind=Kind.SHRUNK if is_smaller else cause.policy_kind,
            what=cause.policy_what,
            step=cause.step,
            furthest=max(furthest, cause.step),
        )
        history = (*history, ended)
    return Agreement(
        job_id=next((standing.job_id for standing in seen if standing.job_id), ""),
        history=history,
        cause=cause,
        snapshot=max(standing.snapshot for standing in standings),
        fired=functools.reduce(operator.or_, (standing.fired for standing in standings)),
        left=left,
        new=new,
        onednn=(next((s for s in standings if s.job_id), None) or standings[0]).onednn,
    )


def _parse(text: str) -> Standing:
    try:
        content = json.loads(text)
        failure = content["failure"]
        return Standing(
            job_id=str(content["job_id"]),
            history=_HISTORY.validate_python(content["history"]),
            failure=None if failure is None else Failure.from_event(failure),
            furthest=int(content["furthest"]),
            snapshot=int(content["snapshot"]),
            fired=int(content["fired"]),
            nodes=tuple(int(rank) for rank in content["nodes"]),
            onednn=str(content["onednn"]),
        )
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise RendezvousError(
            f"An agent told malformed things of the job ({error!r}). Install the same version of "
            "drumbeat on every machine."
        ) from None
