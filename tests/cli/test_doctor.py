"""`drumbeat doctor` as a user types it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drumbeat.cli.options import app
from drumbeat.control.doctor import result
from drumbeat.errors import ConfigError

JOB = "name: digits\nscript: train.py\nimage: img:1\noutput: /n/x\n"
JOB += "mounts: [{name: nas, path: /n}]\n"
SCRIPT = "import tensorflow\ndata.batch(64)\n"
# What other tests, or the machine, may have set.
UNSET = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT",
         "TF_CONFIG", "DRUMBEAT_TOKEN", "DRUMBEAT_DATA", "DRUMBEAT_OUTPUT", "CLUSTER_SPEC",
         "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "SLURM_STEP_NUM_NODES",
         "GOOGLE_APPLICATION_CREDENTIALS")  # fmt: skip
Doctor = Callable[..., Any]


@pytest.fixture
def doctor(tmp_path, monkeypatch) -> Doctor:
    monkeypatch.chdir(tmp_path)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    runner = CliRunner()

    def run(*words: str):
        result = runner.invoke(app, ["doctor", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def tf_config(*addresses: str, index: int = 0) -> str:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return json.dumps(config)


def lines(result, state: str) -> list[str]:
    return [line for line in result.output.splitlines() if line.startswith(state)]


def test_an_empty_folder_is_fine(doctor):
    result = doctor()
    assert result.exit_code == 0, result.output
    assert lines(result, "error") == []
    assert result.output.splitlines()[-1].startswith("All ")


def test_the_folders_job_file_is_looked_at(doctor, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    result = doctor()
    assert result.exit_code == 1
    assert "train.py is not in the job file's folder" in lines(result, "error")[0]
    (tmp_path / "train.py").write_text(SCRIPT)
    result = doctor()
    assert result.exit_code == 0, result.output
    assert "ok       job file" in result.output


def test_a_broken_pyproject_is_explained(doctor, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.drumbeat\nname = "a"\n')
    with pytest.raises(ConfigError, match=r"pyproject.toml: .*line 1.*expected TOML"):
        doctor()


def test_a_broken_job_file_is_explained(doctor, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text("name: a\nscrpt: b\n")
    with pytest.raises(ConfigError, match="did you mean script"):
        doctor()


def test_a_job_file_of_any_name(doctor, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(SCRIPT)
    (tmp_path / "sub" / "big.yaml").write_text(JOB)
    result = doctor("sub/big.yaml")
    assert result.exit_code == 0, result.output
    assert "train.py is Python" in result.output
    assert "tensorflow" not in result.output  # this machine is not asked about


def test_data_in_the_folder_is_counted_for_file_sharding(doctor, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB + "workers: 3\ndata: parts\n")
    (tmp_path / "train.py").write_text("policy = AutoShardPolicy.FILE\n")
    (tmp_path / "parts").mkdir()
    for number in range(2):
        (tmp_path / "parts" / f"{number}.csv").write_text("")
    result = doctor("drumbeat.yaml")
    assert "can't share 2 files among 3 workers" in lines(result, "warning")[0]
    (tmp_path / "parts" / "2.csv").write_text("")
    assert lines(doctor("drumbeat.yaml"), "warning") == []


@pytest.mark.parametrize(
    ("words", "option"),
    [("--epochs 2 t.py", "--epochs"), ("-n 2 --hang-timeut=3 t.py", "--hang-timeut"),
     ("-n2 -y t.py", "-y"), ("-n 2 --exact -- t.py --epochs 2", ""), ("-m a.b --x", "")],
)  # fmt: skip
def test_options_that_run_has_not(doctor, tmp_path, words, option):
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N1\nsrun drumbeat run {words}\n")
    result = doctor("job.sh")
    assert result.exit_code == bool(option)
    assert ("drumbeat run has no option" in result.output) == bool(option)
    assert f"has no option {option}" in result.output or not option


def test_a_tf_config_that_all_tasks_have_is_said_once(doctor, tmp_path):
    (tmp_path / "train.py").write_text("import tensorflow as tf\ntf.keras.Model().fit()\n")
    text = "#!/bin/bash\n#SBATCH -N 2\nexport TF_CONFIG=$(x)\nsrun python train.py\n"
    (tmp_path / "job.sh").write_text(text)
    result = doctor("job.sh")
    assert "all of its 2 tasks have the same one" in result.output
    assert "alone" not in result.output


def test_a_manifest(doctor, tmp_path):
    from drumbeat.platforms import registry
    from drumbeat.platforms.jobfile import read

    (tmp_path / "drumbeat.yaml").write_text(JOB)
    text = registry.get("jobset").render(read.read(tmp_path / "drumbeat.yaml")).main  # type: ignore[misc]
    (tmp_path / "m.yaml").write_text(text)
    result = doctor("m.yaml")
    assert result.exit_code == 0, result.output
    assert "m.yaml is for" in result.output
    (tmp_path / "m.yaml").write_text(text.replace("DRUMBEAT_NODES", "DRUMBEAT_NODE"))
    (tmp_path / "other.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match="is no manifest of a platform that drumbeat knows"):
        doctor("other.yaml")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("j.yaml", "script: train.py\n", "j.yaml: name is missing."),
        ("j.yaml", "name: a\nworkers: 2\n", "expected either script: (a file) or module:"),
        ("j.yaml", "", "j.yaml is empty; expected a job"),
        ("j.yaml", "name: a\ngpus: 4\nscript: a.py", "did you mean devices: {type: gpu"),
        ("j.yaml", "kind: Pod\nname: a\nspec: {}", "is no manifest of a platform"),
        ("j.yaml", "kind: PyTorchJob\n", "that drumbeat knows (kind: 'PyTorchJob'); expected one"),
        ("pyproject.toml", "[tool.drumbeat", "expected TOML"),
        ("j.sh", "#!/bin/sh\necho", "is no manifest of a platform"),
        ("t.py", "import os\nx: int = {}: 3", "`drumbeat check t.py` is for scripts."),
        ("t.py", "#!/usr/bin/env python\n", "t.py is a script; expected a job file"),
        ("t.ipynb", "{}", "t.ipynb is a script; expected a job file"),
    ],
)
def test_a_file_that_is_meant_as_a_job_file_or_is_a_script(doctor, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    for words in [(name,), *([()] if name == "pyproject.toml" else [])]:
        with pytest.raises(ConfigError) as refused:
            doctor(*words)
        assert said in str(refused.value)


def test_a_folder_is_no_file(doctor):
    with pytest.raises(ConfigError, match=r"^\. is a folder; expected a file\.$"):
        doctor(".")


def test_a_platforms_name_is_for_what_is_rendered_of_the_job_file(doctor, tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("d.batch(3)")
    result = doctor("tfjob")
    assert result.exit_code == 0, result.output
    assert "ok       platform   tfjob.yaml is for Kubeflow TFJob." in result.output
    assert "a batch of 3 can't be divided by 2" in lines(result, "warning")[-1]
    result = doctor("vertex")
    assert result.exit_code == 1
    assert "no vertex.project, vertex.region and machine_type." in result.output
    (tmp_path / "drumbeat.yaml").write_text("name: a\nscript: train.py\nimage: i\n")
    assert any("output is not given" in line for line in lines(doctor("tfjob"), "warning"))
    assert len(lines(doctor("slurm"), "warning")) == 1  # of the batch
    with pytest.raises(ConfigError, match="ai-platform has files of its own alone"):
        doctor("ai-platform")
    (tmp_path / "drumbeat.yaml").unlink()
    with pytest.raises(ConfigError, match="There is no job file in"):
        doctor("tfjob")


def test_what_the_manifest_shows_is_said_of_it_and_not_of_the_job_file_too(doctor, tmp_path):
    job = "name: digits\nscript: train.py\nimage: img:1\n"
    (tmp_path / "train.py").write_text("d.batch(4)")
    (tmp_path / "drumbeat.yaml").write_text(f"{job}output: gs://b/x\n")
    said = [line for line in lines(doctor("tfjob"), "warning") if "needs a login" in line]
    assert len(said) == 1
    assert "nothing in the file gives one" in said[0]
    (tmp_path / "drumbeat.yaml").write_text(f"{job}output: /out\ndata: /data\n")
    said = [line for line in lines(doctor("tfjob"), "error") if "/out" in line]
    assert len(said) == 2  # DRUMBEAT_OUTPUT and --backup-dir
    assert any("no mount of the job file" in line for line in lines(doctor("tfjob"), "warning"))


@pytest.mark.parametrize("platform", ["slurm", "ray"])
def test_folders_of_machines_need_no_mount(doctor, tmp_path, platform):
    (tmp_path / "train.py").write_text("d.batch(4)")
    job = "name: digits\nscript: train.py\noutput: /out\ndata: /data\n"
    (tmp_path / "drumbeat.yaml").write_text(job)
    result = doctor(platform)
    assert result.exit_code == 0, result.output
    assert "/data has to be the same on all nodes" in result.output
    assert "mount" not in result.output


@pytest.mark.parametrize(
    ("addresses", "env", "state", "said"),
    [
        (("a:1", "a:1"), {}, "error", "have the same address"),
        (("localhost:PORT", "127.0.0.1:1"), {"SLURM_STEP_NUM_NODES": "2", "DRUMBEAT_TOKEN": "x"},
         "error", "but SLURM_STEP_NUM_NODES is 2: on several machines each would wait for itself"),
        (("localhost:PORT", "127.0.0.1:1"), {"KUBERNETES_SERVICE_HOST": "x"}, "warning",
         "KUBERNETES_SERVICE_HOST is set"),
        (("localhost:PORT", "127.0.0.1:1"), {"SLURM_STEP_NUM_NODES": "1"}, "ok",
         "which is right where all of them run here"),
        (("localhost:BUSY", "127.0.0.1:1"), {}, "error", "is in use by another process"),
        (("localhost:PORT", "127.0.0.1:1"), {}, "error", "DRUMBEAT_TOKEN is not set"),
        (("localhost:PORT", "127.0.0.1:1"), {"DRUMBEAT_TOKEN": "x"}, "ok", "1 of 1 other address"),
        (("192.0.2.1:1", "no.such.host.invalid:1"), {"DRUMBEAT_TOKEN": "x"}, "error",
         "worker 1 at no.such.host.invalid:1: the name is unknown"),
        (("192.0.2.1:1", "no.such.host.invalid:1"), {}, "warning", "no address of this machine"),
    ],
)  # fmt: skip
def test_tf_config(doctor, monkeypatch, addresses, env, state, said):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    with socket.create_server(("", 0)) as busy:
        busy_port = str(busy.getsockname()[1])
        given = [each.replace("PORT", port).replace("BUSY", busy_port) for each in addresses]
        monkeypatch.setenv("TF_CONFIG", tf_config(*given))
        result = doctor()
    assert any(said in line for line in lines(result, state)), result.output
    assert result.exit_code == bool(lines(result, "error"))


def test_two_names_of_one_place(doctor, monkeypatch):
    monkeypatch.setattr(
        "drumbeat.launch.doctor.reach.socket.getaddrinfo",
        lambda *args, **kwargs: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))],
    )
    monkeypatch.setenv("TF_CONFIG", tf_config("first.test:1", "second.test:1"))
    assert any("but both are 127.0.0.1 port 1" in line for line in lines(doctor(), "error"))


def test_data_output_and_logins(doctor, monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    result = doctor("--data", "missing", "--output", "gs://bucket/x")
    assert result.exit_code == 1
    said = " ".join(lines(result, "error"))
    assert "missing does not exist here" in said
    assert "key.json', which can't be read" in said
    # Without a login nothing is tried there.
    assert "can't be written" not in said
    (tmp_path / "missing").mkdir()
    assert doctor("--data", "missing", "--output", "out").exit_code == 0


def test_what_a_platform_has_set_is_looked_at(doctor, monkeypatch):
    monkeypatch.setenv("DRUMBEAT_DATA", "/no/such/data")
    assert "/no/such/data does not exist here" in doctor().output


def test_for_programs(doctor):
    result = doctor("--json", "--data", "missing")
    said = json.loads(result.output)
    assert result.exit_code == 1
    assert said["ok"] is False
    assert {"check": "data", "state": "error"}.items() <= said["checks"][-1].items()
    assert json.loads(doctor("--json").output)["ok"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--together",), "nothing here says that there are"),
        (("--nodes", "2"), "go with --together; add it"),
        (("--together", "--nodes", "2"), "Give --node-rank 0 to 1"),
        (("--together", "--nodes", "2", "--node-rank", "0"), "--rendezvous is not given"),
        (("--together", "--nodes", "2", "--node-rank", "0", "--rendezvous", "a:1"),
         "DRUMBEAT_TOKEN is not set"),
        (("missing.yaml",), "missing.yaml does not exist"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(doctor, words, message):
    with pytest.raises(ConfigError, match=message):
        doctor(*words)


def test_nothing_of_it_is_imported_by_run():
    import subprocess
    import sys

    code = (
        "import sys, drumbeat.cli.options\n"
        "found = [m for m in sys.modules if 'doctor' in m and m != 'drumbeat.cli.doctor']\n"
        "sys.exit(str(found) if found or 'ruamel' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


DOC = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_the_example_of_the_docs(doctor, tmp_path):
    """As the page says, from the files that it shows."""
    text = DOC.read_text()
    (tmp_path / "train.py").write_text(text.split("```python\n")[1].split("```")[0])
    (tmp_path / "drumbeat.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "parts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "parts" / name).write_text("")
    shown = text.split("$ drumbeat doctor drumbeat.yaml\n")[1].split("```")[0]
    assert doctor("drumbeat.yaml").output == shown


def test_lines_of_a_terminal():
    said = result.warning("data", "one two three four five six seven\nnext")
    assert result.row(said, 6, None).split("\n")[1] == " " * 17 + "next"
    lines = result.row(said, 6, 50).split("\n")
    assert lines[0] == "warning  data    one two three four five six seven"
    assert result.row(said, 6, 48).split("\n")[1:] == [" " * 17 + "seven", " " * 17 + "next"]
    assert result.row(said, 6, 20) == result.row(said, 6, None)


def test_every_check_is_in_the_docs():
    folder = Path(__file__).parents[2] / "src" / "drumbeat"
    sources = [*folder.glob("*/doctor/*.py"), folder / "cli" / "doctor.py"]
    code = "".join(path.read_text() for path in sources)
    made = set(re.findall(r'\b(?:ok|warning|error)\)?\(\s*"([^"]+)"', code))
    made |= set(re.findall(r'(?:_same|_seen)\(machines, "([^"]+)"', code))
    assert set(re.findall(r"^\| `([^`]+)` \|", DOC.read_text(), re.MULTILINE)) == made
