"""An identity survives the environment; a broken environment is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumbeat.cluster import Identity
from drumbeat.cluster.compression import Compress
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(30)

IDENTITY = Identity(
    rank=1,
    world_size=3,
    local_rank=0,
    local_world_size=2,
    collectives="mpi",
    run_dir="/runs/a b",
    name="worker 1",
    timeout_s=0.1,
    keep_tf_strategies=True,
)


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY,
        replace(IDENTITY, rank=-1, name="ps 0"),
        replace(IDENTITY, seed=7, exact=8),
        replace(IDENTITY, shares=(3, 1, 2)),
        replace(IDENTITY, shares="auto"),
        replace(IDENTITY, jit="on"),
        replace(IDENTITY, strategy="central-storage", devices_per_worker=4),
        replace(IDENTITY, compress=Compress(method="topk", ratio=0.003)),
        replace(IDENTITY, backup_dir="gs://bucket/a b", backup_every_s=1.5),
    ],
)
def test_round_trip(identity: Identity) -> None:
    assert Identity.from_env({"PATH": "/bin", **identity.to_env()}) == identity


def test_outside_drumbeat_there_is_none() -> None:
    assert Identity.from_env({"PATH": "/bin"}) is None


@pytest.mark.parametrize("rank", [-1, 0, 1])
def test_rank_0_is_the_chief(rank: int) -> None:
    assert replace(IDENTITY, rank=rank).is_chief == (rank == 0)


@pytest.mark.parametrize("name", sorted(set(IDENTITY.to_env()) - {"DRUMBEAT_RANK"}))
def test_a_missing_variable_is_named(name: str) -> None:
    env = IDENTITY.to_env()
    del env[name]
    with pytest.raises(ConfigError, match=name):
        Identity.from_env(env)


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("DRUMBEAT_RANK", "one", "'one'"),
        ("DRUMBEAT_COLLECTIVE_TIMEOUT_S", "soon", "'soon'"),
        ("DRUMBEAT_COLLECTIVES", "pigeon", "'pigeon'.*mpi"),
        ("DRUMBEAT_SHARES", "2,much", "'2,much'.*such as 2,1"),
        ("DRUMBEAT_SHARES", "2,0", "'2,0'.*from 1 to 1000000"),
        ("DRUMBEAT_EXACT", "very", "'very'"),
        ("DRUMBEAT_STRATEGY", "parameter_servers", "Did you mean parameter-server"),
    ],
)
def test_a_malformed_variable_is_quoted(name: str, value: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Identity.from_env({**IDENTITY.to_env(), name: value})
