"""A Docker engine of the test's own: containers that train, one of which is killed; a real build.

The image is a few empty folders: /usr, Python and its packages are mounted, read-only.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.platforms.compose import render as compose
from drumbeat.platforms.compose.client import ComposeClient
from drumbeat.platforms.docker import render as dockerfile
from drumbeat.platforms.jobfile.model import Job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
IMAGE = "drumbeat-test/base:1"
START_TIMEOUT_S = 60
TRAIN_TIMEOUT_S = 420
TRAIN = Path(__file__).parent / "train_digits.py"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which docker talks to a daemon of this test's."""
    for program in ("dockerd", "docker", "docker-compose"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: docker.io, docker-compose)")
    if os.geteuid() != 0:
        pytest.skip("dockerd needs root")
    # A Unix socket's path is limited to 107 bytes.
    folder = Path(
        subprocess.check_output(["mktemp", "-d", "/tmp/drumbeat-docker-XXXXXX"], text=True).strip()
    )
    env = {**os.environ, "DOCKER_HOST": f"unix://{folder}/d.sock", "HOME": str(folder)}
    log = folder / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [
                "dockerd",
                *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid"), "--host", env["DOCKER_HOST"]),
                # Few things are asked of the kernel; images are tiny, so vfs does.
                *("--storage-driver", "vfs", "--iptables=false", "--ip-masq=false"),
                *("--ip-forward=false", "--bridge=none"),
                *("--default-address-pool", "base=10.231.0.0/16,size=24"),
            ],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_for_daemon(daemon, env, log)
        import_image(env, IMAGE, minimal_files())
        said = docker(
            env, "run", "--rm", "-v", "/usr:/usr:ro", "--network", "none", IMAGE, "/usr/bin/true"
        )
        if said.returncode:
            pytest.skip(f"No container can be started here: {said.stderr.strip()[-300:]}")
        yield env
        left = docker(env, "ps", "--all", "--quiet").stdout.split()
        if left:
            docker(env, "rm", "--force", *left)
        docker(env, "network", "prune", "--force")
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_daemon(daemon: subprocess.Popen[bytes], env: dict[str, str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while docker(env, "version").returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            lines = [line for line in log.read_text().splitlines() if "failed" in line.lower()]
            pytest.skip(f"dockerd can't be started here: {(lines or ['it does not answer'])[-1]}")
        time.sleep(0.2)


def docker(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words], env=env, text=True, capture_output=True, timeout=120, check=False
    )


def minimal_files() -> bytes:
    """Folders to mount at and links into /usr, as a tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("tmp", "etc", "proc", "sys", "dev", "usr", "work", "run", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        text = b"root:x:0:0:root:/tmp:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return stream.getvalue()


def import_image(env: dict[str, str], name: str, files: bytes, *changes: str) -> None:
    words = [word for change in changes for word in ("--change", change)]
    subprocess.run(
        ["docker", "import", *words, "-", name],
        env=env, input=files, check=True, timeout=120, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def job(out: Path, pause_s: float) -> Job:
    python = {Path(sys.prefix), Path(sys.base_prefix), ROOT, Path("/usr")}
    mounts = [
        {"name": f"here-{number}", "path": str(path), "source": str(path), "read_only": True}
        for number, path in enumerate(sorted(python))
        # Mounted within another one already, or in what the image has links for.
        if not any(other in path.parents for other in python)
    ]
    return Job.model_validate(
        {
            "name": "digits",
            "script": "/out/train.py",
            "args": ["/out", str(pause_s)],
            "image": IMAGE,
            "workers": 2,
            "restarts": 3,
            "resources": {"shm": "256Mi"},
            "environment": {
                "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin",
                "PYTHONPATH": f"{ROOT / 'src'}:/out",
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            "mounts": [*mounts, {"name": "out", "path": "/out", "source": str(out)}],
            "run": {"seed": 7, "rejoin_timeout": 300},
        }
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What one worker learns."""
    out = tmp_path_factory.mktemp("alone")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HOSTNAME": "alone"}
    command = [sys.executable, "-m", "drumbeat", "run", "--seed", "7", str(TRAIN), str(out), "0"]
    subprocess.run(command, env=env, cwd=out, check=True, timeout=TRAIN_TIMEOUT_S)
    return json.loads((out / "result-alone.json").read_text())


@pytest.mark.tensorflow
@pytest.mark.timeout(2 * TRAIN_TIMEOUT_S)
@pytest.mark.parametrize("victim", ["worker-0", "chief"])
def test_a_container_is_killed_and_comes_back(engine, undisturbed, tmp_path, victim):
    shutil.copy(TRAIN, tmp_path / "train.py")
    wanted = job(tmp_path, pause_s=0.04)
    client = ComposeClient(wanted, environ=engine, folder=tmp_path)
    job_id = client.submit(wanted, compose.render(wanted))
    try:
        wait_until(lambda: progress(tmp_path, victim) >= 1, client, job_id)
        found = json.loads(docker(engine, "inspect", container_of(engine, victim)).stdout)
        # As the kernel does where memory runs out; `docker kill` would forbid the restart.
        os.kill(found[0]["State"]["Pid"], signal.SIGKILL)
        wait_until(lambda: client.status(job_id).state != "running", client, job_id)
        status = client.status(job_id)
        text = "\n".join(client.logs(job_id, task=None, follow=False))
        assert status.state == "succeeded", text
        assert status.tasks[victim] == "exited with code 0, restarted 1 times"
        assert "attempt 2" in text
        for name in ("chief", "worker-0"):
            result = json.loads((tmp_path / f"result-{name}.json").read_text())
            assert result["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
            assert result["weights"] == pytest.approx(undisturbed["weights"], rel=1e-4)
        assert undisturbed["accuracy"] > 0.8
    finally:
        client.stop(job_id)
    assert docker(engine, "ps", "--all", "--quiet").stdout == ""
    with pytest.raises(ConfigError, match="no containers of a project digits"):
        client.status(job_id)


def wait_until(condition: Callable[[], bool], client: ComposeClient, job_id: str) -> None:
    deadline = time.monotonic() + TRAIN_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            text = "\n".join(client.logs(job_id, task=None, follow=False))
            pytest.fail(f"Waited in vain; {client.status(job_id)}\n{text}")
        time.sleep(0.1)


def progress(out: Path, name: str) -> int:
    file = out / f"epoch-{name}"
    return int(file.read_text() or -1) if file.exists() else -1


def container_of(engine: dict[str, str], service: str) -> str:
    label = f"label=com.docker.compose.service={service}"
    return docker(engine, "ps", "--quiet", "--filter", label).stdout.strip()


@pytest.mark.timeout(300)
def test_the_dockerfile_builds_and_leaves_keys_out(engine, tmp_path, monkeypatch):
    """On a base whose pip and useradd only say what they were asked for."""
    import_image(engine, "drumbeat-test/python:1", tools_as_tar(), "ENV PATH=/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    put = {"train.py": "print(1)", "package/model.py": "", "requirements.txt": "scikit-learn"}
    secret = {"keys/sa.json": "{}", ".env": "A=1", "secrets/gcp/sa.json": "{}", "runs/a": "x"}
    for name, text in (put | secret).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    wanted = Job.model_validate(
        {
            "name": "digits",
            "script": "train.py",
            "image": "team/digits:1",
            "mounts": [{"name": "out", "path": "/out"}],
            "docker": {"base": "drumbeat-test/python:1", "packages": ["git"]},
        }
    )
    for name, text in dockerfile.render(wanted).files.items():
        (tmp_path / name).write_text(text)
    env = {**engine, "DOCKER_BUILDKIT": "0"}
    built = docker(env, "build", "--network", "none", "--tag", "team/digits:1", str(tmp_path))
    assert built.returncode == 0, built.stderr
    for said in ("pip install drumbeat==", "pip install -r requirements.txt", "apt-get install"):
        assert f"called: {said}" in built.stdout
    [image] = json.loads(docker(env, "image", "inspect", "team/digits:1").stdout)
    assert image["Config"]["User"] == "1000:1000"
    assert image["Config"]["WorkingDir"] == "/work"
    assert image["Config"]["Cmd"] == ["drumbeat", "run", "train.py"]
    owners = files_in(env, "team/digits:1")
    folders = {"work/package", "work/keys"}
    inside = {name for name in owners if name.startswith("work/")} - folders
    assert inside == {f"work/{name}" for name in put}
    assert owners["work/train.py"] == owners["work"] == owners["out"] == 1000


def tools_as_tar() -> bytes:
    """A shell and `install` of this machine with their libraries, and stand-ins for the rest."""
    stream = io.BytesIO()
    programs = [shutil.which("sh") or "/bin/sh", shutil.which("install"), shutil.which("rm")]
    files = {Path(str(each)) for each in programs}
    for program in list(files):
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
        files |= {Path(word) for word in said.stdout.split() if word.startswith("/")}
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as tar:
        for file in sorted(files):
            tar.add(file, arcname=str(file).lstrip("/"))
        for name in ("pip", "useradd", "apt-get"):
            text = f'#!/bin/sh\necho "called: {name} $*"\n'.encode()
            entry = tarfile.TarInfo(f"usr/bin/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
        entry = tarfile.TarInfo("bin/sh")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(programs[0])
        if str(programs[0]) != "/bin/sh":
            tar.addfile(entry)
    return stream.getvalue()


def files_in(env: dict[str, str], image: str) -> dict[str, int]:
    """The owner of each file of an image."""
    made = docker(env, "create", image).stdout.strip()
    try:
        data = subprocess.run(
            ["docker", "export", made], env=env, capture_output=True, check=True, timeout=60
        ).stdout
    finally:
        docker(env, "rm", made)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: entry.uid for entry in tar}
