"""What a collective call is, so that workers can agree on it before they move data.

Pure: no sockets, no TensorFlow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

TEXT_BYTES = 1024
"""Size of a call's description on the wire."""

_SHOWN_TENSORS = 12


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Dtype and shape of one tensor; None stands for a dimension that may differ."""

    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        dims = ",".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"

    @property
    def num_elements(self) -> int:
        """How many elements the tensor has; 0 if a dimension is unknown."""
        count = 1
        for dim in self.shape:
            count *= dim or 0
        return count

    @property
    def any_rows(self) -> TensorSpec:
        """The same with the first dimension left open, as a gather allows."""
        return TensorSpec(dtype=self.dtype, shape=(None, *self.shape[1:]))


def digest_of(kind: str, specs: Sequence[TensorSpec], detail: str, name: str) -> bytes:
    """A hash of all that calls from one place have in common; it need not be made each time."""
    parts = [kind, detail, name, *map(str, specs)]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective call of one worker.

    Attributes:
        kind: "all_reduce", "broadcast", "all_gather", "all_to_all" or "barrier".
        sequence: How many collectives the worker has called, this one included.
        specs: The tensors it brought.
        detail: What else must agree, such as "op=max" or "root=1".
        name: The caller's label, may be empty.
        digest: What `digest_of` says of all but `sequence`, where the caller knows it.
    """

    kind: str
    sequence: int
    specs: tuple[TensorSpec, ...] = ()
    detail: str = ""
    name: str = ""
    digest: bytes = field(default=b"", compare=False, repr=False)

    def fingerprint(self) -> int:
        """A hash of 62 bits of everything that must agree among workers."""
        digest = self.digest or digest_of(self.kind, self.specs, self.detail, self.name)
        number = self.sequence.to_bytes(8, "big")
        return int.from_bytes(hashlib.blake2b(digest + number, digest_size=8).digest(), "big") >> 2

    def __str__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        shown = [str(spec) for spec in self.specs[:_SHOWN_TENSORS]]
        if len(self.specs) > _SHOWN_TENSORS:
            elements = sum(spec.num_elements for spec in self.specs)
            shown.append(
                f"and {len(self.specs) - _SHOWN_TENSORS} more; {len(self.specs)} tensors, "
                f"{elements} elements, fingerprint {self.fingerprint():x}"
            )
        if self.detail:
            shown.append(self.detail)
        return f"{self.kind}{label} #{self.sequence} ({', '.join(shown)})"

    def to_bytes(self) -> bytes:
        """The description, cut and padded to exactly `TEXT_BYTES` bytes."""
        return str(self).encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


def text_from_bytes(data: bytes) -> str:
    """Inverse of `Call.to_bytes`."""
    return data.rstrip(b"\0").decode(errors="replace")


def workers(ranks: Sequence[int]) -> str:
    """'worker 3', or 'workers 0, 2, 5 and 4 more'."""
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"workers {shown}{more}"


def mismatch_message(texts: Sequence[str]) -> str:
    """Says who called what.

    Args:
        texts: Each rank's description of its call, in rank order.
    """
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    said = [f"{workers(ranks)} called {text}" for text, ranks in groups.items()]
    if len(said) == 1:
        said.append("the calls differ beyond what this description shows")
    return (
        " while ".join(said) + ". Every worker must run the same collectives in the same order, "
        "with the same shapes and dtypes: look for code that depends on the rank, on the worker's "
        "own data or on its clock."
    )
