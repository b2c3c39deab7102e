"""What the log says when a job goes on. Pure."""

from __future__ import annotations

from drumbeat.cluster.wording import listed
from drumbeat.control.restart import Kind, restarts_without_progress
from drumbeat.launch.agreement import Agreement
from drumbeat.launch.failures import Failure


def going_on(agreed: Agreement, cause: Failure, delay_s: float, workers: int) -> str:
    """Why, how and from where.

    Args:
        agreed: What all agents know.
        cause: Why the last attempt has ended.
        delay_s: Seconds until the next.
        workers: How many it has.
    """
    if agreed.snapshot < 0:
        place = "from the start of the script"
    else:
        place = f"from the last snapshot (step {agreed.snapshot})"
    number = len(agreed.history) + 1
    size = f"with {workers} worker{'s' if workers > 1 else ''}"
    if cause.policy_kind is Kind.REGROUPED:
        who = f"{_nodes(agreed.left)} left. " if agreed.left else ""
        who += f"{_nodes(agreed.new)} joined. " if agreed.new else ""
        return f"{who}Going on {size} {place} (attempt {number})."
    moves = f" {_nodes(agreed.left)} not come back." if agreed.left else ""
    moves += f" {_nodes(agreed.new)} joined." if agreed.new else ""
    all_workers = f"the job {size}" if moves else "all workers"
    when = f" in {delay_s:g} s" if delay_s else ""
    in_vain = restarts_without_progress(agreed.history)
    vain = f" {times(in_vain, 'restart')} made no progress." if in_vain else ""
    again = f"Starting {all_workers} again{when} {place} (attempt {number})."
    return f"{cause.note}{moves}{vain} {again}"


def times(count: int, what: str) -> str:
    """How many of something, such as "2 restarts"."""
    return f"{count} {what}{'s' if count > 1 else ''}"


def _nodes(ranks: tuple[int, ...]) -> str:
    have = "has" if len(ranks) == 1 else "have"
    return f"{listed([f'node {rank}' for rank in ranks])} {have}"
