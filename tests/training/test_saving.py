"""What one process can show of safe writing; what several do is in test_parity.py."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import keras
import pytest

from drumbeat.training.integrate import integrate

pytestmark = pytest.mark.tensorflow
BODY = b"x" * 300_000


class Half(BaseHTTPRequestHandler):
    """Sends half a file, waits to be told, and sends the rest."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2])
        self.wfile.flush()
        self.server.half.set()  # type: ignore[attr-defined]
        self.server.go_on.wait(20)  # type: ignore[attr-defined]
        self.wfile.write(BODY[len(BODY) // 2 :])

    def log_message(self, *args: object) -> None:
        pass


def test_a_download_appears_whole(tmp_path: Path) -> None:
    integrate()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Half)
    server.half, server.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    origin = f"http://127.0.0.1:{server.server_port}/data.bin"
    fetching = threading.Thread(
        target=lambda: keras.utils.get_file("data.bin", origin, cache_dir=str(tmp_path))
    )
    try:
        fetching.start()
        assert server.half.wait(20)  # type: ignore[attr-defined]
        target = tmp_path / "datasets" / "data.bin"
        assert not target.exists()
        server.go_on.set()  # type: ignore[attr-defined]
        fetching.join(20)
        assert target.read_bytes() == BODY
        assert [p.name for p in target.parent.iterdir()] == ["data.bin"]
    finally:
        server.go_on.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        serving.join(20)
        fetching.join(20)
