"""`drumbeat submit`, `status`, `logs` and `stop` with Kubernetes' own client, against kmock."""

from __future__ import annotations

import asyncio
import base64
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from urllib.parse import unquote

import pytest

from drumbeat.cli.options import app
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.kubernetes import api as kubernetes_api
from drumbeat.platforms.kubernetes import client as kubernetes_client
from drumbeat.platforms.kubernetes.status import newest, state_of

kmock = pytest.importorskip("kmock", reason="kmock needs Python 3.11")

CONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: secret-of-the-user}}}}]
contexts:
  - {{name: usual, context: {{cluster: c, user: u, namespace: team}}}}
  - {{name: bare, context: {{cluster: c, user: u}}}}
current-context: usual
"""
PLURALS = {"tfjob": "tfjobs", "jobset": "jobsets", "trainjob": "trainjobs"}
RESOURCES = {
    "kubeflow.org/v1/tfjobs": "TFJob",
    "jobset.x-k8s.io/v1alpha2/jobsets": "JobSet",
    "trainer.kubeflow.org/v1alpha1/trainjobs": "TrainJob",
    "trainer.kubeflow.org/v1alpha1/trainingruntimes": "TrainingRuntime",
    "v1/pods": "Pod",
    "v1/secrets": "Secret",
}


class Emulator(kmock.KubernetesEmulator):
    """With what the client relies on: uids, logs, kinds that are not there, refusals."""

    async def _handle(self, request):
        from aiohttp import web

        path = request.url.path
        self.seen.append((request.method.value.upper(), str(request.url.relative())))
        for method, part, status, message in self.refusals:
            if method == self.seen[-1][0] and part in path:
                body = {"kind": "Status", "message": message, "code": status}
                return web.json_response(body, status=status)
        if path == "/api/v1":  # kmock calls the core API "/v1"
            kind = {"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["create"]}
            body = {"kind": "APIResourceList", "groupVersion": "v1", "resources": [kind]}
            return web.json_response(body)
        if path.endswith("/log"):
            return self.log(request, path.split("/")[-2])
        resource = request.resource
        if resource is not None and resource.plural and resource not in self._get_resources():
            return web.Response(text="404 page not found", status=404)
        if request.action == kmock.action.CREATE:
            request.data["metadata"].setdefault("uid", f"uid-{request.data['metadata']['name']}")
        return await super()._handle(request)

    def log(self, request, pod):
        from aiohttp import web

        previous = request.url.query.get("previous", "").lower() == "true"
        lines = self.logs.get((pod, previous))
        if lines is None:
            return web.json_response({"message": "container is waiting to start"}, status=400)
        return web.Response(body="".join(lines).encode())


class Cluster:
    """The emulator in a thread of its own."""

    def __enter__(self):
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    async def _serve(self):
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self.server = Emulator()
        self.server.seen, self.server.refusals, self.server.logs = [], [], {}
        async with self.server, kmock.Server(self.server) as http:
            self.url = str(http.url)
            for resource, kind in RESOURCES.items():
                self.server.resources[resource] = {"namespaced": True, "kind": kind}
            self._ready.set()
            await self._done.wait()

    def refuse(self, method, part, status, message="no reason"):
        self.server.refusals.append((method, part, status, message))

    def item(self, resource, name, space="team"):
        return self.server.objects[resource, space, name].raw

    def patch(self, resource, name, change):
        self.server.objects[resource, "team", name].patch(change)

    def add(self, resource, name, raw, space="team"):
        self.server.objects[resource, space, name] = raw

    def add_pod(self, name, labels, *, state=None, phase="Running", index=None, born=1, **more):
        status = {"name": "tensorflow", "image": "x", "imageID": "x", "ready": True}
        status |= {"restartCount": more.pop("restarts", 0), "state": state or {"running": {}}}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        pod = {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": labels,
                "annotations": {} if index is None else annotations,
                "creationTimestamp": f"2026-11-30T10:00:{born:02}Z",
            },
            "spec": {"containers": [{"name": "tensorflow"}]},
            "status": {
                "phase": phase,
                **({"containerStatuses": [status]} if state != {} else {}),
                **more,
            },
        }
        self.add("v1/pods", name, pod)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_client, "POLL_S", 0.01)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Cluster() as made:
        (tmp_path / "kubeconfig").write_text(CONFIG.format(url=made.url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


@pytest.fixture
def connect(job):
    def make(platform="tfjob", **changes):
        made = job(**changes)
        found = registry.get(platform)
        return found.connect(made), made, found.render(made)

    return make


@pytest.fixture
def submitted(connect):
    def make(platform="tfjob", **changes):
        client, job, rendered = connect(platform, **changes)
        client.submit(job, rendered)
        return client

    return make


RESOURCE = {
    "tfjob": "kubeflow.org/v1/tfjobs",
    "jobset": "jobset.x-k8s.io/v1alpha2/jobsets",
    "trainjob": "trainer.kubeflow.org/v1alpha1/trainjobs",
}
LABELS = {
    "training.kubeflow.org/job-name": "digits",
    "training.kubeflow.org/replica-type": "worker",
}


def tfjob_labels(index):
    return {**LABELS, "training.kubeflow.org/replica-index": str(index)}


class TestSubmit:
    @pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
    def test_object_and_secret_are_there(self, platform, cluster, connect):
        client, job, rendered = connect(platform)
        assert client.submit(job, rendered) == "team/digits"
        item = cluster.item(RESOURCE[platform], "digits")
        secret = cluster.item("v1/secrets", "digits-drumbeat")
        assert secret["metadata"]["ownerReferences"] == [
            {
                "apiVersion": item["apiVersion"],
                "kind": item["kind"],
                "name": "digits",
                "uid": "uid-digits",
            }
        ]
        assert secret["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "drumbeat"
        assert len(secret["stringData"]["token"]) == 64
        if platform == "trainjob":
            assert cluster.item("trainer.kubeflow.org/v1alpha1/trainingruntimes", "digits")

    def test_the_secret_is_another_one_each_time(self, cluster, submitted):
        tokens = set()
        for name in ("a", "b"):
            submitted(name=name)
            tokens.add(cluster.item("v1/secrets", f"{name}-drumbeat")["stringData"]["token"])
        assert len(tokens) == 2

    def test_one_pod_has_no_secret(self, cluster, submitted):
        submitted(workers=1)
        assert not [path for _, path in cluster.server.seen if "secrets" in path]

    def test_a_secret_that_the_user_has_made_is_taken(self, cluster, submitted):
        cluster.add("v1/secrets", "digits-drumbeat", {"metadata": {"name": "digits-drumbeat"}})
        submitted().stop("team/digits")
        assert not cluster.server.objects["v1/secrets", "team", "digits-drumbeat"].deleted

    def test_context_and_namespace_of_the_job_file_win(self, cluster, connect):
        client, job, rendered = connect(kubernetes={"context": "bare", "namespace": "other"})
        assert client.submit(job, rendered) == "other/digits"
        assert connect(kubernetes={"context": "bare"})[0].submit(*connect()[1:]) == "default/digits"

    def test_nothing_stays_where_the_secret_is_refused(self, cluster, connect):
        cluster.refuse("POST", "/secrets", 403, 'secrets is forbidden: User "me" cannot')
        client, job, rendered = connect("trainjob")
        with pytest.raises(ConfigError, match=r'\(403\): secrets is forbidden: User "me" cannot'):
            client.submit(job, rendered)
        for resource in (RESOURCE["trainjob"], "trainer.kubeflow.org/v1alpha1/trainingruntimes"):
            assert cluster.server.objects[resource, "team", "digits"].deleted

    def test_one_of_that_name_is_there(self, cluster, connect, submitted):
        submitted()
        client, job, rendered = connect()
        with pytest.raises(ConfigError, match="exists in the namespace team.*drumbeat stop tfjob"):
            client.submit(job, rendered)
        assert not cluster.server.objects[RESOURCE["tfjob"], "team", "digits"].deleted


class TestPlan:
    def test_it_is_shown_without_a_cluster_and_without_secrets(self, monkeypatch, connect):
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        client, job, rendered = connect(kubernetes={"context": "prod", "namespace": "team"})
        text = "\n".join(client.plan(job, rendered))
        assert "kubectl --context prod --namespace team create -f - <<'EOF'\n" in text
        assert rendered.main in text
        assert "create secret generic digits-drumbeat --from-literal=token=$(openssl" in text

    def test_one_pod(self, connect):
        client, job, rendered = connect(workers=1)
        assert len(client.plan(job, rendered)) == 1


class TestStatus:
    @pytest.mark.parametrize(
        ("platform", "conditions", "state"),
        [
            ("tfjob", [], "pending"),
            ("tfjob", [("Created", "True")], "pending"),
            ("tfjob", [("Created", "True"), ("Running", "True")], "running"),
            ("tfjob", [("Running", "False"), ("Succeeded", "True")], "succeeded"),
            ("tfjob", [("Created", "True"), ("Failed", "True")], "failed"),
            ("tfjob", [("Suspended", "True")], "pending"),
            ("jobset", [("StartupPolicyCompleted", "True"), ("Completed", "True")], "succeeded"),
            ("jobset", [("Failed", "True")], "failed"),
            ("jobset", [("Failed", "False")], "pending"),
            ("trainjob", [("Complete", "True")], "succeeded"),
            ("trainjob", [("Failed", "True")], "failed"),
        ],
    )
    def test_by_conditions(self, platform, conditions, state, cluster, submitted):
        client = submitted(platform)
        given = [
            {"type": kind, "status": status, "reason": "Why", "message": "since  it\nis so"}
            for kind, status in conditions
        ]
        cluster.patch(RESOURCE[platform], "digits", {"status": {"conditions": given}})
        found = client.status("team/digits")
        assert (found.job_id, found.state) == ("team/digits", state)
        if any(status == "True" for _, status in conditions):
            assert found.detail.endswith(": Why: since it is so")

    def test_pods_in_kubernetes_words(self, cluster, submitted):
        client = submitted(workers=12)
        waiting = {"waiting": {"reason": "ImagePullBackOff"}}
        ended = {"terminated": {"exitCode": 75}}
        cluster.add_pod("a", tfjob_labels(10), restarts=2)
        cluster.add_pod("b", tfjob_labels(2), phase="Pending", state=waiting)
        cluster.add_pod("c", tfjob_labels(3), phase="Failed", state=ended, reason="Evicted")
        cluster.add_pod(
            "d",
            tfjob_labels(4),
            phase="Pending",
            state={},
            conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        )
        found = client.status("digits")
        assert found.state == "running"
        assert list(found.tasks.items()) == [
            ("worker-2", "Pending, ImagePullBackOff"),
            ("worker-3", "Failed, exit code 75, Evicted"),
            ("worker-4", "Pending, Unschedulable"),
            ("worker-10", "Running, 2 restarts"),
        ]
        selector = "labelSelector=training.kubeflow.org/job-name=digits"
        assert any(selector in unquote(path) for _, path in cluster.server.seen)

    def test_a_pod_that_says_nothing_of_its_containers(self, cluster, submitted):
        client = submitted()
        cluster.add_pod("a", tfjob_labels(0), phase="Pending", state={})
        assert client.status("digits").state == "pending"
        cluster.add_pod("a", tfjob_labels(0), phase="Running", state={})
        assert client.status("digits").state == "running"

    def test_the_newest_pod_of_an_index_counts(self, cluster, submitted):
        client = submitted("jobset")
        labels = {"jobset.sigs.k8s.io/replicatedjob-name": "worker"}
        cluster.add_pod("old", labels, index=0, phase="Failed", born=1)
        cluster.add_pod("new", labels, index=0, born=2)
        cluster.add_pod(
            "other", {**labels, "jobset.sigs.k8s.io/replicatedjob-replicas": "2"}, index=3
        )
        assert client.status("digits").tasks == {"worker-0": "Running", "worker-?-3": "Running"}

    def test_it_is_being_deleted(self, cluster, submitted):
        client = submitted()
        cluster.patch(RESOURCE["tfjob"], "digits", {"metadata": {"deletionTimestamp": "x"}})
        assert client.status("digits").state == "stopped"

    def test_there_is_none(self, cluster, connect):
        with pytest.raises(ConfigError, match="no TFJob digits in the namespace team"):
            connect()[0].status("digits")


def line(second, text):
    return f"2026-11-30T10:00:{second:02}.000000000Z {text}\n"


class TestLogs:
    def test_of_all_and_of_one(self, cluster, submitted):
        client = submitted()
        for index in (0, 1):
            cluster.add_pod(f"p{index}", tfjob_labels(index))
            cluster.server.logs[f"p{index}", False] = [line(1, f"hello {index}"), line(1, "é")]
        assert list(client.logs("digits", task=None, follow=False)) == [
            "[worker-0] hello 0",
            "[worker-0] é",
            "[worker-1] hello 1",
            "[worker-1] é",
        ]
        assert list(client.logs("digits", task="worker-1", follow=False)) == [
            "[worker-1] hello 1",
            "[worker-1] é",
        ]
        assert any("container=tensorflow" in path for _, path in cluster.server.seen)

    def test_following_gives_each_line_once_over_a_restart(self, cluster, submitted):
        client = submitted()
        cluster.add_pod("p0", tfjob_labels(0))
        logs = cluster.server.logs
        logs["p0", False] = [line(1, "first")]
        found = client.logs("digits", task=None, follow=True)
        assert next(found) == "[worker-0] first"
        logs["p0", False] = [line(1, "first"), line(2, "second"), line(2, "same time")]
        assert [next(found), next(found)] == ["[worker-0] second", "[worker-0] same time"]
        logs["p0", True] = [line(2, "same time"), line(3, "last words")]
        logs["p0", False] = [line(5, "again")]
        cluster.add_pod("p0", tfjob_labels(0), restarts=1)
        assert [next(found), next(found)] == ["[worker-0] last words", "[worker-0] again"]
        cluster.add_pod("p1", tfjob_labels(1))
        logs["p1", False] = [line(1, "late")]
        assert next(found) == "[worker-1] late"
        logs["p0", False].append(line(6, "the end"))
        end = [{"type": "Succeeded", "status": "True"}]
        cluster.patch(RESOURCE["tfjob"], "digits", {"status": {"conditions": end}})
        assert list(found) == ["[worker-0] the end"]
        assert any("sinceSeconds=" in path for _, path in cluster.server.seen)

    def test_pods_that_have_not_started(self, cluster, submitted):
        client = submitted()
        cluster.add_pod("p0", tfjob_labels(0), state={"waiting": {"reason": "X"}})
        cluster.add_pod("p1", tfjob_labels(1))
        assert list(client.logs("digits", task=None, follow=False)) == []

    def test_following_waits_for_pods(self, cluster, submitted, monkeypatch):
        client = submitted()

        def later(seconds):
            cluster.add_pod("p0", tfjob_labels(0))
            cluster.server.logs["p0", False] = [line(1, "hello")]

        monkeypatch.setattr(kubernetes_client.time, "sleep", later)
        assert next(client.logs("digits", task="worker-0", follow=True)) == "[worker-0] hello"
        with pytest.raises(ConfigError, match="no task 'worker-7'"):
            next(client.logs("digits", task="worker-7", follow=True))

    def test_no_pods(self, cluster, submitted):
        with pytest.raises(ConfigError, match="has no pods: it is pending"):
            list(submitted().logs("digits", task=None, follow=False))

    def test_no_such_task(self, cluster, submitted):
        client = submitted()
        cluster.add_pod("p0", tfjob_labels(0))
        with pytest.raises(ConfigError, match="no task 'worker-7'; expected one of worker-0"):
            list(client.logs("digits", task="worker-7", follow=False))


class TestStop:
    @pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
    def test_all_is_gone(self, platform, cluster, submitted):
        submitted(platform).stop("team/digits")
        assert all(each.deleted for each in cluster.server.objects.values())
        deletes = [path for method, path in cluster.server.seen if method == "DELETE"]
        assert any("propagationPolicy=Background" in path for path in deletes)

    def test_a_runtime_of_the_user_s_stays(self, cluster, submitted):
        runtime = "trainer.kubeflow.org/v1alpha1/trainingruntimes"
        client = submitted("trainjob")
        cluster.patch(runtime, "digits", {"metadata": {"labels": None}})
        client.stop("digits")
        assert not cluster.server.objects[runtime, "team", "digits"].deleted

    def test_there_is_none(self, cluster, connect):
        with pytest.raises(ConfigError, match="no TFJob other in the namespace x"):
            connect()[0].stop("x/other")


class TestErrors:
    @pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
    @pytest.mark.parametrize("what", ["submit", "status"])
    def test_the_operator_is_not_installed(self, platform, what, cluster, connect):
        group = RESOURCE[platform].rpartition("/")[0]
        for resource in RESOURCES:
            if resource.startswith(group):
                del cluster.server.resources[resource]
        client, job, rendered = connect(platform)
        with pytest.raises(ConfigError, match=rf"does not know .*{group}.*https://.*installed"):
            client.submit(job, rendered) if what == "submit" else client.status("digits")

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            (401, "credentials are not valid"),
            (403, "the context's user may not"),
            (422, "refused to create the TFJob digits (422): admission said no."),
            (500, "(500): admission said no."),
        ],
    )
    def test_refused(self, status, message, cluster, connect):
        cluster.refuse("POST", "tfjobs", status, "admission said no")
        client, job, rendered = connect()
        with pytest.raises(ConfigError) as caught:
            client.submit(job, rendered)
        assert message.lower() in str(caught.value).lower()
        assert "secret-of-the-user" not in str(caught.value)

    def test_no_kubeconfig(self, monkeypatch, connect, tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        with pytest.raises(ConfigError, match=r"no kubeconfig \(.*none\)"):
            connect()[0].status("digits")

    def test_in_a_pod_its_service_account_is_taken(self, cluster, monkeypatch, connect, tmp_path):
        from kubernetes.config import incluster_config

        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        (tmp_path / "token").write_text("of-the-pod")
        (tmp_path / "ca.crt").write_text("a certificate")
        (tmp_path / "namespace").write_text("pods\n")
        monkeypatch.setattr(kubernetes_api, "_IN_CLUSTER", tmp_path / "token")
        for name, file in (("TOKEN", "token"), ("CERT", "ca.crt")):
            monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", tmp_path / file)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
        client = connect()[0]
        with pytest.raises(ConfigError, match="https://127.0.0.1:1 can't be reached"):
            client.status("digits")
        assert client._server.namespace == "pods"
        with pytest.raises(ConfigError, match="no kubeconfig"):
            connect(kubernetes={"context": "prod"})[0].status("digits")

    @pytest.mark.parametrize("text", ["", "a: [", "[]", "kind: Config\n", "\0"])
    def test_a_broken_kubeconfig(self, text, monkeypatch, connect, tmp_path):
        (tmp_path / "broken").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
        with pytest.raises(ConfigError, match="can't be used"):
            connect()[0].status("digits")

    def test_no_such_context(self, cluster, connect):
        with pytest.raises(ConfigError, match="'prod', which .* expected one of usual, bare"):
            connect(kubernetes={"context": "prod"})[0].status("digits")

    def test_nobody_listens(self, monkeypatch, connect, tmp_path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        (tmp_path / "config").write_text(CONFIG.format(url=url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(ConfigError, match=rf"{url} can't be reached: .*refused"):
            connect()[0].status("digits")

    def test_nobody_answers(self, monkeypatch, connect, tmp_path):
        monkeypatch.setattr(kubernetes_api, "READ_S", 0.2)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            (tmp_path / "config").write_text(CONFIG.format(url=url))
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
            with pytest.raises(ConfigError, match="can't be reached: .*timed out"):
                connect()[0].status("digits")

    def test_a_program_for_credentials_that_never_ends(self, monkeypatch, connect):
        never = threading.Event()
        monkeypatch.setattr(kubernetes_api, "LOAD_S", 0.05)
        monkeypatch.setattr(kubernetes_api, "_connected", lambda context: never.wait())
        with pytest.raises(DrumbeatError, match="kubeconfig's credentials took longer than 0.05"):
            connect()[0].status("digits")
        never.set()

    def test_the_client_is_not_installed(self, monkeypatch, connect):
        monkeypatch.setitem(sys.modules, "kubernetes", None)
        with pytest.raises(ConfigError, match=r'pip install "drumbeat\[kubernetes\]"'):
            connect()[0].status("digits")


def test_from_the_command_line(cluster, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("drumbeat.yaml").write_text(
        "{name: digits, script: t.py, image: 'x:1', workers: 2, output: 'gs://b/x'}"
    )
    Path("t.py").write_text("")

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            app([*words], prog_name="drumbeat")
        out = capfd.readouterr()
        return ended.value.code or 0, out.out + out.err

    assert "kubectl create" in run("submit", "tfjob", "--dry-run")[1]
    assert cluster.server.seen == []
    assert run("submit", "tfjob") == (
        0,
        "Submitted team/digits. Next: drumbeat status tfjob, drumbeat logs tfjob.\n",
    )
    cluster.add_pod("p0", tfjob_labels(0))
    cluster.server.logs["p0", False] = [line(1, "hello")]
    assert run("status", "tfjob") == (0, "team/digits: running\n  worker-0: Running\n")
    assert run("logs", "tfjob") == (0, "[worker-0] hello\n")
    token = cluster.item("v1/secrets", "digits-drumbeat")["stringData"]["token"]
    assert run("stop", "tfjob") == (0, "Stopped team/digits.\n")
    assert token not in (tmp_path / ".drumbeat" / "submitted.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tfjob", "jobset", "trainjob"])
def test_the_plan_is_what_kubectl_does(platform, cluster, connect, tmp_path, monkeypatch):
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed")
    # The emulator has no schemas that kubectl could ask for, and does not read protobuf.
    wrapper = tmp_path / "kubectl"
    wrapper.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'*secret*) {kubectl} "$@" --dry-run=client -o json | {kubectl} create -f - '
        "--validate=false;;\n"
        f'*) exec {kubectl} "$@" --validate=false;;\n'
        "esac\n"
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))  # for its cache
    client, job, rendered = connect(platform, kubernetes={"context": "usual", "namespace": "team"})
    script = "\n".join(client.plan(job, rendered))
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    item = cluster.item(RESOURCE[platform], "digits")
    assert item["spec"] == parse_yaml(rendered.main, "m")[-1].value["spec"]
    secret = cluster.item("v1/secrets", "digits-drumbeat")
    assert len(base64.b64decode(secret["data"]["token"])) == 64
    assert client.status("digits").state == "pending"


@pytest.mark.parametrize("answer", [None, [], "a", 1, {}, {"kind": "TFJob", "metadata": None}])
def test_answers_that_are_no_objects(answer):
    server = kubernetes_api.Server(None, None)
    with pytest.raises(ConfigError, match="can't be read, asked to read the TFJob a"):
        server.custom("read the TFJob a", lambda **more: answer)


def test_answers_that_the_client_trips_over():
    def trip(**more):
        return more.get("kind").items()

    with pytest.raises(ConfigError, match="can't be read, asked to list the pods"):
        kubernetes_api.Server(None, None).call("list the pods", trip)


@pytest.mark.parametrize(
    "item",
    [
        {"status": "x"},
        {"status": {"conditions": ["x", None]}},
        {"status": {"conditions": {"a": 1}}},
        {"metadata": "x"},
        {"status": {"conditions": [{"type": ["Failed"], "status": "True"}]}},
    ],
)
def test_objects_that_are_none_of_the_operators(item):
    server = kubernetes_api.Server(None, None)
    with pytest.raises(ConfigError, match="can't be read, asked to read the TFJob"):
        server.understood("read the TFJob", state_of, item, [])


def test_pods_that_are_none():
    pod = types.SimpleNamespace(
        metadata=types.SimpleNamespace(
            name="a", uid="u", labels=None, annotations=None, creation_timestamp=None
        ),
        spec=None,
        status=None,
    )
    server = kubernetes_api.Server(None, None)
    with pytest.raises(ConfigError, match="can't be read, asked to list the pods"):
        server.understood("list the pods", newest, [pod])


def test_a_busy_server_is_not_waited_for_as_long_as_it_says(monkeypatch, connect, tmp_path):
    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(429)
            self.send_header("Retry-After", "3600")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "config").write_text(CONFIG.format(url=url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(ConfigError, match=r"refused to read the TFJob digits \(429\)"):
            connect()[0].status("digits")
        server.shutdown()


def test_an_answer_that_never_ends(monkeypatch, connect, tmp_path):
    over = threading.Event()

    class Dripping(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            while not over.wait(0.05):
                self.wfile.write(b" ")

        def log_message(self, *_):
            pass

    monkeypatch.setattr(kubernetes_api, "CALL_S", 0.5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "config").write_text(CONFIG.format(url=url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(DrumbeatError, match=rf"Asking The API server {url} took longer than"):
            connect()[0].status("digits")
        over.set()
        server.shutdown()


def test_a_submission_that_is_stopped_leaves_nothing(cluster, connect, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("drumbeat.yaml").write_text("{name: digits, script: t.py, image: 'x:1', output: gs://b/o}")
    Path("t.py").write_text("")
    client = kubernetes_client.KubernetesClient

    def stopped(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(client, "_create_token", stopped)
    with pytest.raises(SystemExit) as ended:
        app(["submit", "tfjob"], prog_name="drumbeat")
    assert ended.value.code == 128 + signal.SIGTERM
    with pytest.raises(ConfigError, match="There is no TFJob digits"):
        connect()[0].status("team/digits")
