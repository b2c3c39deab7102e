"""Reading of `host:port`, without looking anything up."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

_EXPECTED = "expected host:port, such as 10.0.0.7:2222 or [::1]:2222"
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_HERE = "localhost"


@dataclass(frozen=True)
class Address:
    """A checked address.

    Attributes:
        host: Name or IP in one spelling (lower case, no brackets, the usual
            spellings of this machine as "localhost"), so that equal places
            compare equal.
        port: 1 to 65535.
        loopback: Only processes on the same machine can reach it.
    """

    host: str
    port: int
    loopback: bool


def parse_address(value: object, where: str) -> Address:
    """Reads `host:port`.

    Args:
        value: What was received, of any type.
        where: The key it came from, for messages, such as "cluster.worker[0]".

    Raises:
        ConfigError: `value` is not a usable address.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {shown(value)}; {_EXPECTED}, as a string.")
    received = f"{where} is {shown(value)}"
    if not value.strip():
        raise ConfigError(f"{received}, which is empty; {_EXPECTED}.")
    if "://" in value:
        scheme = value.partition("://")[0]
        raise ConfigError(
            f"{received}; {_EXPECTED}, without {shown(scheme + '://')}. "
            "The protocol belongs in the key rpc_layer."
        )
    host, colon, port = value.rpartition(":")
    if value.endswith("]") or not colon:
        raise ConfigError(f"{received}, which has no port; {_EXPECTED}. Add the port to it.")
    name, loopback = _read_host(host, received)
    return Address(host=name, port=_read_port(port, received), loopback=loopback)


def _read_port(text: str, received: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise ConfigError(
            f"{received}; its port {shown(text)} is not a number. Expected 1 to 65535."
        )
    # Digits are counted before int() sees them: int() refuses very long strings.
    port = int(text) if len(text.lstrip("0")) <= 5 else 65536
    if not 1 <= port <= 65535:
        raise ConfigError(
            f"{received}; its port is out of range. Expected 1 to 65535, the same on every "
            "machine (0 would be another one on each)."
        )
    return port


def _read_host(text: str, received: str) -> tuple[str, bool]:
    """The host in one spelling, and whether it is loopback."""
    if not text:
        raise ConfigError(f"{received}, which has no host; {_EXPECTED}.")
    bracketed = text.startswith("[") and text.endswith("]")
    inner = text[1:-1] if bracketed else text
    if ":" in inner and not bracketed:
        raise ConfigError(f"{received}; {_EXPECTED}. Put an IPv6 address into brackets.")
    looks_numeric = bracketed or re.fullmatch(r"[0-9]+(\.[0-9]+){3}", inner)
    try:
        ip = ipaddress.IPv6Address(inner) if bracketed else ipaddress.IPv4Address(inner)
    except ValueError:
        if looks_numeric:
            raise ConfigError(
                f"{received}; its host {shown(text)} is not a valid IP address; {_EXPECTED}."
            ) from None
        return _read_name(inner, received)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    ip = mapped or ip
    if str(ip) in ("127.0.0.1", "::1") or ip.is_unspecified:
        return _HERE, True
    return str(ip), ip.is_loopback


def _read_name(text: str, received: str) -> tuple[str, bool]:
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{received}; its host {shown(text)} is not a host name (letters, digits, '.', '-' "
            f"and '_'); {_EXPECTED}."
        )
    name = text.lower().rstrip(".")
    return (_HERE, True) if name in _LOCAL_NAMES else (name, False)
