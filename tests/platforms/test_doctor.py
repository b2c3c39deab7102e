"""Mistakes in scripts, job files and manifests that `drumbeat doctor` finds."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.control.doctor.result import ERROR, OK, WARNING
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.doctor import job as jobs
from drumbeat.platforms.doctor import manifest as manifests
from drumbeat.platforms.doctor import packages, script, stores, urls
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Advice, Manifest, NoCommand, Platform, Process, Rehearsal

DISTRIBUTIONS = {"sklearn": ["scikit-learn"], "yaml": ["PyYAML"], "tensorflow": ["tensorflow"]}


def found(results, state: str) -> list[str]:
    return [f"{each.check}: {each.text}" for each in results if each.state == state]


def seen(text: str, workers: int = 3, files: int | None = None):
    text = textwrap.dedent(text)
    return script.check(script.look(text, "t.py"), "t.py", workers=workers, files=files)


class TestScript:
    @pytest.mark.parametrize(
        ("text", "workers", "said"),
        [
            ("ds.batch(64)", 4, None),
            ("ds.batch(64)", 3, "t.py:1: a batch of 64 can't be divided by 3 workers"),
            ("ds.batch(2)", 3, "t.py:1: a batch of 2 for 3 workers leaves some of them without"),
            ("SIZE = 32 * 2\nds.batch(SIZE)", 3, "t.py:2: a batch of 64 can't"),
            ("SIZE = 32\nds.batch(SIZE * 2, drop_remainder=True)", 3, "t.py:2: a batch of 64"),
            ("model.fit(x, y, batch_size=50)", 4, "t.py:1: a batch of 50 can't"),
            ("model.fit(x, y,\n  batch_size=B)\nB = 1", 4, "t.py:2: a batch of 1 for"),
            # Nothing is said of what can't be seen.
            ("ds.batch(64 * strategy.num_replicas_in_sync)", 3, None),
            ("SIZE = 64\nif big:\n  SIZE = 60\nds.batch(SIZE)", 7, None),
            ("SIZE = 64\nSIZE += 1\nds.batch(SIZE)", 7, None),
            ("def f():\n  size = 64\n  ds.batch(size)", 7, None),
            ("ds.batch(args.batch)", 3, None),
            ("ds.batch(0)", 3, None),
            ("ds.batch(True)", 3, None),
            ("ds.batch()", 3, None),
            ("log.batch('x')", 3, None),
        ],
    )
    def test_batches(self, text, workers, said):
        warnings = found(seen(text, workers), WARNING)
        assert len(warnings) == (said is not None)
        assert said is None or said in warnings[0]
        assert found(seen(text, workers), ERROR) == []

    @pytest.mark.parametrize(
        ("policy", "files", "warns"),
        [
            ("tf.data.experimental.AutoShardPolicy.FILE", 2, True),
            ("AutoShardPolicy.FILE", 2, True),
            ("AutoShardPolicy.FILE", 3, False),
            ("AutoShardPolicy.FILE", None, False),
            ("AutoShardPolicy.DATA", 2, False),
            ("Kind.FILE", 2, False),
        ],
    )
    def test_file_sharding_with_few_files(self, policy, files, warns):
        text = f"options.experimental_distribute.auto_shard_policy = {policy}"
        warnings = found(seen(text, 3, files), WARNING)
        assert len(warnings) == warns
        assert not warns or "can't share 2 files among 3 workers" in warnings[0]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x = (", "t.py:1: '(' was never closed"),
            ("print 'x'", "t.py:1: "),
            ("a\0b", "t.py: "),
            ("(" * 5000, "t.py"),
        ],
    )
    def test_what_is_no_python(self, text, said):
        assert found(seen(text), ERROR)[0].startswith(f"script: {said}")

    @pytest.mark.timeout(60)
    @given(st.text("abc=()[]:.\n \t'\"#@*01,batch", max_size=60))
    def test_any_text_is_read(self, text):
        assert script.look(text, "t.py") is not None


def a_job(**keys) -> Job:
    places = {"output": "/claim/runs", "mounts": [{"name": "claim", "path": "/claim"}]}
    if {"output", "mounts"} & set(keys):
        places = {}
    return Job.model_validate({"name": "digits", "script": "t.py", "workers": 3, **places, **keys})


def a_folder(**keys) -> jobs.Folder:
    return jobs.Folder(**{"script": "import tensorflow", "distributions": DISTRIBUTIONS, **keys})


NAS = [{"name": "nas", "path": "/nas", "source": "nas:/x"}]
PVC = [{"name": "claim", "path": "/nas"}]
OUTPUT_OF_ONE = "in the container's own file system"
KEY = [{"name": "key", "env": "GOOGLE_APPLICATION_CREDENTIALS", "path": "/s"}]
# What is wrong, and next to it what is right.
JOBS = [
    # check, state, the job's keys, the folder, what is said, and the same put right.
    ("script", ERROR, {}, {"script": None}, "t.py is not in the job file's folder", ({}, {})),
    ("script", ERROR, {}, {"script": "x ="}, "t.py:1: invalid syntax", ({}, {})),
    ("script", WARNING, {"script": "../t.py"}, {}, "outside of the job file's folder", ({}, {})),
    ("script", WARNING, {"script": None, "module": "p.t"}, {"script": None}, "is not in this",
     ({}, {})),
    ("batch", WARNING, {"workers": 4}, {"script": "d.batch(6)"}, "can't be divided by 4",
     ({"workers": 3}, {"script": "d.batch(6)"})),
    ("requirements", WARNING, {}, {"script": "import sklearn", "requirements": "numpy"},
     "t.py:1 imports sklearn, but requirements.txt does not list scikit-learn",
     ({}, {"script": "import sklearn", "requirements": "numpy\nScikit_Learn>=1 # x"})),
    ("requirements", WARNING, {}, {"script": "import sklearn"},
     "t.py:1 imports sklearn: not of drumbeat's packages, and there is no requirements.txt",
     ({}, {"script": "import sklearn", "requirements": "scikit-learn"})),
    ("requirements", WARNING, {}, {"script": "import cv2"}, "with opencv-python-headless, unless",
     ({}, {"script": "import cv2", "requirements": ""})),
    ("requirements", WARNING, {"script": None, "module": "p.t"}, {"script": "import sklearn"},
     "p.t:1 imports sklearn", ({"ray": {"runtime_env": {"pip": ["scikit-learn"]}}},
                               {"script": "import sklearn"})),
    ("requirements", WARNING, {}, {"script": "import a", "local_modules": frozenset("a"),
                                   "modules": {"a": ("a.py", "\nimport sklearn")}},
     "a.py:2 imports sklearn", ({}, {"script": "import a", "local_modules": frozenset("a"),
                                     "modules": {"a": ("a.py", "\nimport yaml")},
                                     "brought": frozenset({"pyyaml"})})),
    ("requirements", ERROR, {"docker": {"requirements": "needs.txt"}},
     {"requirements_name": "needs.txt"}, "needs.txt, which is not in the job file's folder",
     ({"docker": {"requirements": "needs.txt"}}, {"requirements": "numpy"})),
    ("image", ERROR, {"data": "keys/sa.json"}, {"has_data": True, "named": ("keys/sa.json",)},
     "keys/sa.json has the name of a key", ({"data": "a"}, {"has_data": True, "named": ("a",)})),
    ("image", WARNING, {"data": "a"},
     {"has_data": True, "named": ("a",), "ignored": frozenset("a")},
     "a is left out of the image by the .dockerignore that is there", ({}, {"named": ("a",)})),
    ("driver", ERROR, {"data": "gs://b/x", "docker": {"drumbeat": "drumbeat==0.1"}},
     {"requirements": "numpy"},
     "gs://b/x needs gcsfs, which neither docker.drumbeat (drumbeat==0.1) nor requirements.txt "
     "brings. Write drumbeat[gcs] there",
     ({"data": "gs://b/x", "docker": {"drumbeat": "drumbeat==0.1"}},
      {"requirements": "drumbeat[gcs, s3]==1"})),
    ("driver", ERROR, {"output": "s3://b/x", "docker": {"drumbeat": "drumbeat[gcs]"}}, {},
     "s3://b/x needs s3fs", ({"output": "s3://b/x", "docker": {"drumbeat": "drumbeat[s3]"}}, {})),
    ("credentials", WARNING, {"data": "gs://b/x"}, {}, "gs://b/x needs a login, and the job file "
     "gives none", ({"data": "gs://b/x", "secrets": KEY}, {})),
    ("credentials", WARNING, {"output": "s3://b/x"}, {}, "s3://b/x needs a login",
     ({"output": "s3://b/x", "kubernetes": {"service_account": "a"}}, {})),
    ("credentials", ERROR, {"secrets": [{"name": "key", "env": "GOOGLE_APPLICATION_CREDENTIALS"}]},
     {}, "has to name a file. Add path:", ({"secrets": KEY}, {})),
    ("data", ERROR, {"data": "digits"}, {}, "data is digits, which is not in the job file's folder",
     ({"data": "digits"}, {"has_data": True})),
    ("data", WARNING, {"data": "/data"}, {}, "no mount of the job file is there",
     ({"data": "/nas/data", "mounts": NAS}, {})),
    ("output", ERROR, {"output": "runs"}, {}, "in each of the 3 nodes' own file system",
     ({"output": "/nas/runs", "mounts": PVC}, {})),
    ("output", ERROR, {"output": "/tmp/x"}, {}, "in each of the 3 nodes' own file system",
     ({"output": "/nas", "mounts": NAS}, {})),
    ("output", ERROR, {"run": {"backup_dir": "b"}}, {}, "run.backup_dir is b, in each",
     ({"run": {"backup_dir": "/nas/b"}, "mounts": NAS}, {})),
    ("output", WARNING, {"output": "runs", "workers": 1}, {}, OUTPUT_OF_ONE,
     ({"output": "/nas/runs", "mounts": PVC, "workers": 1}, {})),
    ("output", WARNING, {"output": "/nas", "mounts": [NAS[0] | {"source": "/mnt"}]}, {},
     "each of the 3 nodes has a folder of its own", ({"output": "/nas", "mounts": NAS}, {})),
    ("output", ERROR, {"output": "/nas", "mounts": [PVC[0] | {"read_only": True}]}, {},
     "the mount claim is read-only", ({"output": "/nas", "mounts": PVC}, {})),
    ("shm", ERROR, {"workers": 4, "devices": {"type": "gpu", "count": 4},
                    "resources": {"shm": "512Mi"}}, {},
     "resources.shm is 512 MiB; 4 workers of one node need 1024",
     ({"workers": 4, "devices": {"type": "gpu", "count": 4}}, {})),
    ("output", WARNING, {"output": None}, {}, "output is not given: what the script saves",
     ({"output": "gs://b/x"}, {})),
    ("shm", ERROR, {"workers": 4, "devices": {"count": 4}, "resources": {"shm": "4Mi"}}, {},
     "resources.shm is 4 MiB; 4 workers of one node need 8",
     ({"workers": 4, "devices": {"count": 4}}, {})),
    ("shm", WARNING, {"resources": {"shm": "8Gi", "memory": "4Gi"}}, {}, "more than resources.mem",
     ({"resources": {"shm": "2Gi", "memory": "4Gi"}}, {})),
]  # fmt: skip


class TestJob:
    @pytest.mark.parametrize(
        ("check", "state", "keys", "folder", "said", "right"),
        JOBS,
        ids=[f"{case[0]}-{number}" for number, case in enumerate(JOBS)],
    )
    def test_a_mistake_is_found_and_gone_when_mended(self, check, state, keys, folder, said, right):
        wrong = jobs.check(a_job(**keys), a_folder(**folder))
        assert any(text.startswith(f"{check}: ") and said in text for text in found(wrong, state))
        mended = jobs.check(a_job(**right[0]), a_folder(**right[1]))
        assert not [each for each in mended if each.check == check and each.state != OK]

    @pytest.mark.parametrize("docker", [{}, {"drumbeat": "drumbeat-0.1-py3-none-any.whl"}])
    def test_the_driver_that_the_dockerfile_installs_is_not_missed(self, docker):
        """`drumbeat render docker` writes drumbeat[gcs]."""
        job = a_job(data="gs://b/x", docker=docker)
        results = jobs.check(job, a_folder(requirements="numpy"))
        assert "driver: gs://b/x: drumbeat render docker installs drumbeat[gcs]." in found(
            results, OK
        )
        rendered = registry.get("docker").render(job).main  # type: ignore[misc]
        assert "[gcs]" in rendered

    def test_a_plain_job_has_none(self):
        results = jobs.check(a_job(), a_folder())
        assert {each.state for each in results} == {OK}

    @pytest.mark.parametrize(
        "requirements", ["-r other.txt", "git+https://x/y", "-e .", "./local", "https://x/y.whl"]
    )
    def test_requirements_that_say_more_are_left_alone(self, requirements):
        folder = a_folder(script="import sklearn", requirements=requirements)
        assert not found(jobs.check(a_job(), folder), WARNING)

    @pytest.mark.parametrize(
        "line",
        ["try:\n  import sklearn\nexcept ImportError: pass", "def f():\n  import sklearn",
         "import os, json", "import helpers", "import nobody_knows_it", "from . import x"],
    )  # fmt: skip
    def test_imports_that_are_not_sure_to_be_missing(self, line):
        folder = a_folder(script=line, requirements="numpy", local_modules=frozenset({"helpers"}))
        assert not found(jobs.check(a_job(), folder), WARNING)

    def test_nodes_that_are_no_containers_have_their_own_packages_and_folders(self):
        folder = a_folder(script="import sklearn")
        for output in (None, "/shared/runs"):
            job = a_job(output=output, data="/shared/data")
            results = jobs.check(job, folder, own_disk=False)
            assert {each.state for each in results} == {OK}
            assert found(jobs.check(job, folder), WARNING)

    @pytest.mark.parametrize(
        ("keys", "own_disk"),
        [
            ({}, True),
            ({"image": "i", "slurm": {"partition": "gpu"}}, True),
            ({"slurm": {"partition": "gpu"}}, False),
            ({"slurm": {"container": "i"}}, True),
        ],
    )
    def test_a_job_file_for_slurm_alone(self, keys, own_disk):
        assert jobs.has_own_disk(a_job(**keys)) == own_disk
        slurm = registry.get("slurm").has_own_disk
        assert slurm(a_job(**keys)) == ("container" in keys.get("slurm", {}))
        assert registry.get("tfjob").has_own_disk(a_job(**keys))

    def test_what_comes_with_drumbeat_is_not_missed(self):
        found = packages.brought()
        assert {"tensorflow", "keras", "h5py", "numpy", "fsspec"} <= found
        assert not {"gcsfs", "s3fs", "drumbeat"} & found
        assert "gcsfs" in packages.brought(["gcs"])

    def test_what_local_modules_import_is_read_too(self, tmp_path):
        folder = tmp_path / "src"
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "t.py").write_text("import a, sklearn\nimport deep.er.x")
        (folder / "a.py").write_text("import a, b\nimport t")
        (folder / "b.py").write_text("import yaml; import c")
        (folder / "deep" / "er" / "x.py").write_text("import yaml")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "__init__.py").write_text("import json")
        job = a_job(script="src/t.py")
        there = jobs.look(job, tmp_path, DISTRIBUTIONS)
        assert set(there.modules) == {"a", "b", "t", "c"}
        assert {"a", "b", "t", "c", "deep"} <= there.local_modules
        said = found(jobs.check(job, there), WARNING)
        assert said[0].startswith(
            "requirements: src/t.py:1 imports sklearn, b.py:1 imports yaml: not of drumbeat's"
        )
        assert "Write one with scikit-learn, pyyaml, unless" in said[0]

    def test_the_folder_is_read(self, tmp_path):
        (tmp_path / "t.py").write_text("import a")
        (tmp_path / "helpers.py").write_text("")
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "train.py").write_text("in pkg")
        (tmp_path / "needs.txt").write_text("numpy")
        job = a_job(docker={"requirements": "needs.txt"}, data="pkg")
        folder = jobs.look(job, tmp_path, {})
        assert folder.script == "import a"
        assert folder.local_modules == {"t", "helpers", "pkg"}
        assert folder.requirements == "numpy"
        assert folder.has_data
        assert (folder.named, folder.ignored) == (("pkg",), frozenset())
        (tmp_path / ".dockerignore").write_text("*\n!t.py\n")
        assert jobs.look(job, tmp_path, {}).ignored == {"pkg"}
        module = Job.model_validate({"name": "a", "module": "pkg.train"})
        assert jobs.look(module, tmp_path, {}).script == "in pkg"
        (tmp_path / "t.py").write_bytes(b"\xff\xfe")
        assert jobs.look(job, tmp_path, {}).script is None


def env(index: int, *addresses: str) -> dict[str, str]:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def processes(*envs: dict[str, str]) -> tuple[Process, ...]:
    command = ("drumbeat", "run", "t.py")
    return tuple(
        Process(name=f"worker-{number}", command=command, env=each)
        for number, each in enumerate(envs)
    )


TWO = (env(0, "a:1", "b:1"), env(1, "a:1", "b:1"))


class TestProcesses:
    @pytest.mark.parametrize(
        ("envs", "said"),
        [
            (TWO, None),
            ((TWO[0], TWO[0]), "TF_CONFIG: worker-0 and worker-1 are both worker 0"),
            ((TWO[0],), "TF_CONFIG: The cluster has worker 1, which none of worker-0 is"),
            ((TWO[0], env(1, "a:1", "c:1")), "was given another cluster than worker-0"),
            ((TWO[0], {"TF_CONFIG": "{"}), "TF_CONFIG: worker-1: TF_CONFIG: it is not JSON"),
            ((env(0, "a:1", "a:1"), TWO[1]), "TF_CONFIG: worker-0: TF_CONFIG: worker 0 and worker"),
            ((TWO[0], env(2, "a:1", "b:1")), "task.index is 2"),
            (({"DRUMBEAT_NODES": "2", "DRUMBEAT_NODE_RANK": "0"},), "DRUMBEAT_RENDEZVOUS is not"),
        ],
    )
    def test_places(self, envs, said):
        errors = found(manifests.check_processes(processes(*envs), True), ERROR)
        assert bool(errors) == (said is not None)
        assert said is None or said in errors[0]

    def test_the_token(self):
        assert (
            "given no DRUMBEAT_TOKEN"
            in found(manifests.check_processes(processes(*TWO), False), ERROR)[0]
        )
        with_token = tuple({**each, "DRUMBEAT_TOKEN": "x"} for each in TWO)
        assert not found(manifests.check_processes(processes(*with_token), False), ERROR)
        assert not found(manifests.check_processes(processes({}), False), ERROR)
        # Trains in the processes themselves, by TF_CONFIG: there are no agents.
        plain = [replace(each, command=("python", "-m", "drumbeat", "t.py"))
                 for each in processes(*TWO)]  # fmt: skip
        assert not found(manifests.check_processes(tuple(plain), False), ERROR)


STRANGER = "digits-b-0-0.digitz:2222"
OF_BOTH = env(0, "digits-a-0-0.digits:2222", STRANGER)["TF_CONFIG"]


def test_a_host_that_is_none_of_the_files_is_called_as_it_is_there(tmp_path):
    """Not as the address of this machine that stands for the others."""
    container = {"name": "t", "image": "i", "command": ["python", "t.py"],
                 "env": [{"name": "TF_CONFIG", "value": OF_BOTH}]}  # fmt: skip
    pod = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    job = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
           "metadata": {"name": "digits"},
           "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": pod}}]}}  # fmt: skip
    services = {
        name: {"image": "i", "command": "drumbeat run t.py", "shm_size": "2g",
               "environment": {"DRUMBEAT_TOKEN": "${T:?}",
                               "TF_CONFIG": env(rank, "w0:1", "w-1:1")["TF_CONFIG"]}}
        for rank, name in enumerate(("w-0", "w-1"))
    }  # fmt: skip
    broken = json.loads(json.dumps(job).replace(r"index\": 0", r"index\": $(NO)"))
    two = json.loads(json.dumps(job))
    two["spec"]["replicatedJobs"].append({"name": "b", "template": {"spec": pod}})
    for value, host in (
        (job, f"no pod of the job is found as {STRANGER}"),
        (broken, "in TF_CONFIG, $(NO) stays as it is"),
        (two, f"TF_CONFIG has {STRANGER}, which no host of this file is"),
        ({"services": services}, "TF_CONFIG has w0 for worker 0"),
    ):
        (tmp_path / "a.yaml").write_text(json.dumps(value))
        manifest = registry.read_manifest(tmp_path / "a.yaml")
        results = manifests.check(manifest, registry.recognise(manifest))
        (said,) = found(results, ERROR)
        assert host in said
        assert "127.0.0.1" not in str(results)


@pytest.mark.timeout(60)
@given(st.text('{}[]":,\\ clustera1.0', max_size=60))
def test_any_text_of_a_rewritten_tf_config_is_told(text):
    """With an address of this machine in it that stands for one of the file's."""
    words = processes({"TF_CONFIG": text + "127.0.0.1:20000"}, {"TF_CONFIG": text})
    results = manifests.check_processes(words, True, stand_ins={"127.0.0.1:20000"})
    assert found(results, ERROR)
    assert "127.0.0.1" not in str(results)


class TestManifest:
    """With a platform whose file is a list of environments."""

    @pytest.fixture
    def check(self, tmp_path):
        def rehearse(manifest, places):
            value = manifest.documents[0].value
            if value.get("refused"):
                raise ConfigError("a.yaml can't be rehearsed.")
            if value.get("image_alone"):
                raise NoCommand("a.yaml has no command.")
            assert places.port() != places.port()
            return Rehearsal(platform="fake", processes=processes(*TWO))

        platform = Platform(
            name="fake",
            title="Fake",
            recognises=lambda manifest: True,
            problems=lambda manifest: [
                kind(manifest.documents[0].value[key])
                for key, kind in (("wrong", str), ("meant", Advice))
                if key in manifest.documents[0].value
            ],
            rehearse=rehearse,
        )  # fmt: skip

        def run(value) -> list:
            path = tmp_path / "a.yaml"
            path.write_text(json.dumps({"token": "DRUMBEAT_TOKEN", **value}))
            return manifests.check(registry.read_manifest(path), platform)

        return run

    def test_a_good_one(self, check):
        assert {each.state for each in check({})} == {OK}

    @pytest.mark.parametrize(
        ("value", "state", "said"),
        [
            ({"wrong": "the chief has 2 replicas."}, ERROR, "manifest: a.yaml: the chief has 2"),
            ({"meant": "workers are spot."}, WARNING, "manifest: a.yaml: workers are spot."),
            ({"wrong": "a.yaml: no name."}, ERROR, "manifest: a.yaml: no name."),
            ({"image_alone": True}, WARNING, "manifest: a.yaml has no command."),
            ({"wrong": "a.yaml can't be rehearsed.", "refused": True}, ERROR, "be rehearsed."),
            ({"wrong": "no DRUMBEAT_TOKEN.", "token": 0}, ERROR, "manifest: a.yaml: no DRUM"),
            ({"refused": True}, ERROR, "manifest: a.yaml can't be rehearsed."),
            ({"env": [{"name": "TF_CONFIG", "value": env(0, "localhost:1", "localhost:2")[
                "TF_CONFIG"]}]}, ERROR, "localhost: All 2 tasks are at addresses of this machine"),
            ({"environment": env(0, "localhost:1", "127.0.0.1:2")}, ERROR, "each would wait for "),
            ({"environment": env(0, "a:1", "a:1")}, ERROR, "have the same address"),
            ({"containers": [{"name": "tensorflow"}]}, WARNING, "shm: 'tensorflow' keeps the 64 "),
            ({"services": {"w": {"image": "a"}}}, WARNING, "shm: 'w' keeps the 64 MiB"),
        ],
    )  # fmt: skip
    def test_a_bad_one(self, check, value, state, said):
        texts = found(check(value), state)
        assert len(texts) == 1
        assert said in texts[0]

    @pytest.mark.parametrize(
        ("wrong", "kept"),
        [
            ("'tfReplicaSpec' is unknown; did you mean tfReplicaSpecs?\nIt has no tfReplicaSpecs.",
             1),
            ("did you mean ref?\nJob a has no ref.name; expected a name.", 1),
            ("did you mean Resource?\nResource is missing.\nResource.Count is None.", 1),
            ("RoleArn is missing.\nRoleArn is None; expected arn:…", 1),
            ("did you mean ref?\nJob a has no reference.\nmy.ref is missing.", 3),
            ("The chief is missing.\nThe worker is None.", 2),
        ],
    )  # fmt: skip
    def test_what_follows_from_another_mistake_is_not_said(self, check, wrong, kept):
        (text,) = found(check({"wrong": wrong, "refused": True}), ERROR)
        assert text.splitlines() == [f"manifest: a.yaml: {wrong.splitlines()[0]}",
                                     *wrong.splitlines()[1:]][:kept]  # fmt: skip
        assert not found(check({"wrong": wrong, "image_alone": True}), WARNING)

    @pytest.mark.parametrize(
        "value",
        [
            {"environment": env(0, "a:1", "b:2")},
            {"env": [{"name": "TF_CONFIG", "value": '{"task": {"index": $(TASK_INDEX)}}'}]},
            {"containers": [{"name": "x", "volumeMounts": [{"mountPath": "/dev/shm"}]}]},
            {"services": {"w": {"shm_size": "1g"}}},
            {"services": {"w": {"ipc": "host"}}},
            {"containers": ["x", None], "services": ["y"]},
        ],
    )
    def test_what_is_right(self, check, value):
        assert {each.state for each in check(value)} == {OK}


class TestPlainPython:
    """Python without drumbeat, which TF_CONFIG tells of the others, or nothing does."""

    @pytest.mark.parametrize(
        ("envs", "said"),
        [
            (TWO, "keras: worker-0, worker-1: Keras 3's fit can't train"),
            (({}, {}), "processes: worker-0, worker-1 would train alone, as nothing"),
            (({},), None),
        ],
    )
    def test_is_told(self, tmp_path, monkeypatch, envs, said):
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "job.yaml"
        path.write_text("a: b")
        Path("t.py").write_text("s = tf.distribute.MultiWorkerMirroredStrategy()\nm.fit(x)")
        plain = [dataclasses.replace(each, command=("python", "t.py")) for each in processes(*envs)]
        platform = Platform(
            name="fake",
            title="a fake",
            rehearse=lambda m, p: Rehearsal(platform="fake", processes=tuple(plain)),
        )
        results = manifests.check(registry.read_manifest(path), platform)
        warnings = found(results, WARNING)
        assert len(warnings) == (said is not None)
        assert said is None or warnings[0].startswith(said)
        assert not found(results, ERROR)
        says_places = any(each.check == "processes" and each.state == OK for each in results)
        assert says_places == (said is None)


class TestURLs:
    @pytest.mark.parametrize(
        ("keys", "state", "said"),
        [
            ({"args": ["--to", "{outputs}/m"]}, WARNING, "{outputs}, which is handed on as it is; "
             "did you mean {output}?"),
            ({"args": ["{dat}"]}, WARNING, "did you mean {data}?"),
            ({"args": ["{epoch:02d}", "{x}", "{output}", '{"a": 1}', "{loss}"]}, None, ""),
            ({"output": "azure://team/y"}, WARNING, "no driver for azure:// and checks no login"),
            ({"output": "https://h/y"}, WARNING, "no driver for https://"),
            ({"output": "gs:/team/y"}, ERROR, "did you mean gs://team/y?"),
            ({"data": "s3:/b/x"}, ERROR, "data is s3:/b/x, a path; did you mean s3://b/x?"),
            ({"output": "s3://b/x", "data": "https://h/x"}, None, ""),
        ],
    )  # fmt: skip
    def test_what_they_look_like(self, keys, state, said):
        results = urls.check(a_job(**keys))
        assert [each.state for each in results] == [state] * (state is not None)
        assert said in " ".join(each.text for each in results)


class TestStores:
    @staticmethod
    def check(platform, value, env, *words):
        text = json.dumps(value)
        manifest = Manifest(path=Path("m.yaml"), text=text, documents=(Document(value=value),))
        process = Process(name="w", command=("drumbeat", "run", *words), env=env)
        return stores.check(manifest, platform, (process, process))

    @pytest.mark.parametrize(
        ("platform", "value", "env", "words", "said"),
        [
            ("jobset", {}, {"DRUMBEAT_OUTPUT": "gs://b/x"}, (), "gs://b/x needs a login"),
            ("jobset", {}, {}, ("--backup-dir", "s3://b/x"), "s3://b/x needs a login"),
            ("jobset", {}, {"DRUMBEAT_OUTPUT": "/out"}, (), "DRUMBEAT_OUTPUT is /out, in each"),
            ("compose", {}, {"DRUMBEAT_OUTPUT": "out"}, (), "DRUMBEAT_OUTPUT is out, in each"),
            (
                "tfjob",
                {"mountPath": "/nas"},
                {},
                ("--backup-dir", "/nasty"),
                "--backup-dir is /nas",
            ),
        ],
    )
    def test_a_mistake(self, platform, value, env, words, said):
        results = self.check(platform, value, env, *words)
        assert [each.state for each in results] != [OK]
        assert said in results[0].text

    @pytest.mark.parametrize(
        ("platform", "value", "env", "words"),
        [
            ("jobset", {}, {}, ()),
            (
                "jobset",
                {},
                {"DRUMBEAT_DATA": "gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS": "/k"},
                (),
            ),
            ("tfjob", {"serviceAccountName": "a"}, {"DRUMBEAT_DATA": "gs://b/x"}, ()),
            ("trainjob", {"env": "AWS_ACCESS_KEY_ID"}, {"DRUMBEAT_DATA": "s3://b/x"}, ()),
            ("vertex", {}, {"DRUMBEAT_DATA": "gs://b/x"}, ()),
            ("slurm", {}, {"DRUMBEAT_OUTPUT": "/home/me/out"}, ()),
            ("jobset", {"mountPath": "/nas"}, {"DRUMBEAT_OUTPUT": "/nas/out"}, ()),
            ("compose", {"volumes": ["claim:/nas"]}, {}, ("--backup-dir", "/nas")),
            ("compose", {"volumes": [{"target": "/nas"}, 3]}, {"DRUMBEAT_OUTPUT": "/nas"}, ()),
        ],
    )
    def test_what_is_right(self, platform, value, env, words):
        assert {each.state for each in self.check(platform, value, env, *words)} <= {OK}


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_what_is_rendered_has_no_mistake(name, tmp_path):
    """The example job, and of each platform what drumbeat itself writes."""
    from drumbeat.platforms.jobfile import read

    examples = Path(__file__).parents[2] / "docs" / "platforms" / "examples"
    platform = registry.get(name)
    own = examples / name / "drumbeat.yaml"
    if platform.render is None:
        pytest.skip(f"{name} renders nothing")
    rendered = platform.render(read.read(own if own.exists() else examples / "drumbeat.yaml"))
    path = tmp_path / next(iter(rendered.files))
    path.write_text(rendered.main)
    manifest = registry.read_manifest(path)
    if platform.recognises(manifest):
        assert not found(manifests.check(manifest, platform), ERROR)
