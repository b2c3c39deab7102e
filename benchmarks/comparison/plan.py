"""Which cases there are: workloads and peers, emulated networks, and growth."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from workers.workloads import WORKLOADS

from .launchers import Case
from .network import Link
from .peers import PEERS, Peer

LETTERS = {
    "a": "cnn",
    "b": "dense",
    "c": "resnet",
    "d": "transformer",
    "e": "recommender",
    "f": "images",
    "g": "network",
    "h": "growth",
}
SIDE_BY_SIDE = tuple(LETTERS.values())[:6]
# Peers of --quick, and its workloads.
QUICK_PEERS = ("drumbeat", "drumbeat-1", "tensorflow", "tensorflow-tuned", "torch")
# Of which the first run on a machine measures what is best there.
TUNES = ("drumbeat", "drumbeat-1")
QUICK = ("cnn", "dense", "images", "growth")
# Long enough for a figure where a step is ten times as slow, or only a first look is taken.
EPOCHS_SLOW, EPOCHS_QUICK = 3, 3
SLOW = ("tensorflow", "keras", "ray")
COMPRESSIONS = {
    1.0: ("bf16", "int8", "powersgd:4", "topk:0.01", "auto"),
    10.0: ("bf16", "int8", "auto"),
}
RATES_GBIT = tuple(COMPRESSIONS)
NETWORK_EPOCHS, NETWORK_STEPS = 3, 4
# Of local SGD, and so the steps of its epochs: each ends with an average.
SYNC_EVERY = 8
LOCAL_SGD = "drumbeat --sync-every"
SIZES, QUICK_SIZES = (1, 2, 4, 8, 16), (1, 2, 4)
GROWTH_EPOCHS, GROWTH_STEPS, SLEEP_MS = 3, 20, 100
GROWTH_PEERS = ("drumbeat", "tensorflow-tuned")


def named(text: str, known: Sequence[str]) -> list[str]:
    """The workloads or peers of a comma-separated list; letters stand for workloads.

    Raises:
        ValueError: One isn't known; with those that are.
    """
    names = [LETTERS.get(part, part) for part in text.split(",") if part]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return [name for name in known if name in names]


def side_by_side(workload: str, peers: Sequence[str], number: int, quick: bool) -> list[Case]:
    """The cases of a workload in round `number`."""
    size = WORKLOADS[workload]
    chosen = [
        (name, peer)
        for name, peer in ((name, PEERS[name]) for name in peers)
        if peer.workloads is None or workload in peer.workloads
        if number == 0 or peer.in_all_rounds is None or workload in peer.in_all_rounds
    ]
    return [
        Case(
            workload=workload,
            name=name,
            peer=peer,
            epochs=EPOCHS_QUICK if quick else EPOCHS_SLOW if name in SLOW else size.epochs,
            steps=max(3, size.steps // 2) if quick else None,
            group=workload,
        )
        for name, peer in chosen
    ]


def networked(cable: Link, peers: Sequence[str]) -> list[Case]:
    """The dense network over a cable, with and without compression, and with local SGD."""
    ways: dict[str, Peer] = {}
    if "drumbeat" in peers:
        ours = PEERS["drumbeat"]
        ways["drumbeat"] = ours
        for kind in COMPRESSIONS[cable.rate_gbit]:
            title = f"drumbeat --compress {kind}"
            ways[title] = dataclasses.replace(ours, title=title, options=("--compress", kind))
        title = f"{LOCAL_SGD} {SYNC_EVERY}, its epochs of {SYNC_EVERY} steps, not {NETWORK_STEPS}"
        ways[title] = dataclasses.replace(
            ours, title=title, options=("--sync-every", str(SYNC_EVERY))
        )
    ways |= {name: PEERS[name] for name in peers if name == "tensorflow-tuned"}
    return [
        Case(
            workload="dense",
            name=name,
            peer=peer,
            epochs=NETWORK_EPOCHS,
            steps=SYNC_EVERY if name.startswith(LOCAL_SGD) else NETWORK_STEPS,
            group=network_group(cable.rate_gbit),
            link=cable,
        )
        for name, peer in ways.items()
    ]


def network_group(rate_gbit: float) -> str:
    return f"network {rate_gbit:g} Gbit/s"


def growing(peers: Sequence[str], quick: bool) -> list[Case]:
    """A sleep in place of the computation, on more and more workers."""
    return [
        Case(
            workload="sleep",
            name=name,
            peer=_sized(PEERS[name], size),
            epochs=GROWTH_EPOCHS,
            steps=GROWTH_STEPS,
            group=growth_group(size),
        )
        for size in (QUICK_SIZES if quick else SIZES)
        for name in GROWTH_PEERS
        if name in peers
    ]


def _sized(peer: Peer, workers: int) -> Peer:
    arguments = (*peer.arguments, "--sleep-ms", str(SLEEP_MS))
    return dataclasses.replace(peer, workers=workers, arguments=arguments)


def growth_group(size: int) -> str:
    return f"growth {size}"
