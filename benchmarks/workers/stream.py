"""Sends bytes to another process while it sends as many back; prints the milliseconds."""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time

PORT, CHUNK_BYTES, ROUNDS, TIMEOUT_S = 5201, 1 << 20, 4, 60


def connect(address: str, node: int) -> socket.socket:
    if node == 0:
        with socket.create_server((address, PORT)) as server:
            server.settimeout(TIMEOUT_S)
            return server.accept()[0]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, PORT), TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def exchange(peer: socket.socket, size_bytes: int) -> None:
    sender = threading.Thread(target=peer.sendall, args=(bytes(size_bytes),))
    sender.start()
    left, buffer = size_bytes, bytearray(CHUNK_BYTES)
    while left:
        got = peer.recv_into(buffer, min(left, CHUNK_BYTES))
        if not got:
            raise ConnectionError("the other side has gone")
        left -= got
    sender.join()


def main() -> None:
    address, size_bytes, node = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    times_s = []
    with connect(address, node) as peer:
        peer.settimeout(TIMEOUT_S)
        for _ in range(ROUNDS):
            exchange(peer, 1)  # both begin together
            began = time.perf_counter()
            exchange(peer, size_bytes)
            times_s.append(time.perf_counter() - began)
    print(1e3 * statistics.median(times_s[1:]))


if __name__ == "__main__":
    main()
