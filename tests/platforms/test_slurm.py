"""Slurm: the batch script, anybody's batch scripts, and the commands against a stand-in."""

import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cli.options import app
from drumbeat.cluster import launched_by
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.slurm import client as slurm_client
from drumbeat.platforms.slurm.client import SlurmClient
from drumbeat.platforms.slurm.render import PLATFORM, render
from drumbeat.platforms.slurm.script import filled, options_of, read

BASE = {"name": "digits", "script": "train.py"}


def script(**values):
    return render(Job.model_validate({**BASE, **values})).main


def directives(text):
    return [line.removeprefix("#SBATCH ").partition("  #")[0] for line in text.splitlines()
            if line.startswith("#SBATCH")]  # fmt: skip


def test_smallest_job():
    text = script(workers=1)
    assert directives(text) == [
        "--job-name=digits",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--output=%x-%j.out",
    ]
    assert "drumbeat run train.py || code=$?" in text
    for absent in ("DRUMBEAT_TOKEN", "requeue", "--signal"):
        assert absent not in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"workers": 4}, "--nodes=4"),
        ({"workers": 4, "devices": {"type": "gpu", "count": 2}}, "--nodes=2"),
        ({"workers": 4, "devices": {"type": "gpu", "count": 2}}, "--gpus-per-node=2"),
        ({"workers": 4, "devices": {"type": "gpu", "count": 2}}, "--cpus-per-task=8"),
        ({"devices": {"type": "gpu", "accelerator": "a100"}}, "--gpus-per-node=a100:1"),
        ({"devices": {"type": "gpu", "accelerator": "nvidia.com/gpu"}}, "--gpus-per-node=1"),
        ({"resources": {"cpu": 3.5}}, "--cpus-per-task=4"),
        ({"resources": {"memory": "8Gi"}}, "--mem=8192M"),
        ({"timeouts": {"total": 90}}, "--time=0-00:02:00"),
        ({"timeouts": {"total": "49h"}}, "--time=2-01:00:00"),
        ({"slurm": {"partition": "gpu,long"}}, "--partition=gpu,long"),
        ({"slurm": {"account": "team"}}, "--account=team"),
        ({"slurm": {"qos": "high"}}, "--qos=high"),
        ({"slurm": {"constraint": "a100&nvlink"}}, "--constraint=a100&nvlink"),
        ({"slurm": {"extra": ["--reservation=x", "-x n7"]}}, "-x n7"),
        ({"output": "/out"}, "--requeue"),
        ({"output": "/out"}, "--open-mode=append"),
        ({"output": "/out"}, "--signal=TERM@60"),
        ({"output": "/out", "run": {"grace": 90}}, "--signal=TERM@125"),
        ({"min_workers": 1}, "--no-kill"),
    ],
)
def test_options(values, expected):
    assert expected in directives(script(**values))


def test_variables_and_secrets_by_name_alone():
    text = script(
        environment={"A": "it's $HOME"},
        secrets=[
            {"name": "wandb", "env": "WANDB_API_KEY"},
            {
                "name": "gcp",
                "key": "sa.json",
                "path": "/secrets/gcp",
                "env": "GOOGLE_APPLICATION_CREDENTIALS",
            },
        ],
        data="gs://bucket/data",
    )
    assert """export A='it'"'"'s $HOME'""" in text
    assert ': "${WANDB_API_KEY:?' in text
    assert "export WANDB_API_KEY\n" in text
    assert "export DRUMBEAT_DATA=gs://bucket/data" in text
    assert "/secrets/gcp" not in text
    assert "DRUMBEAT_TOKEN=$(" in text


def test_container():
    job = {
        "slurm": {"container": "docker://ghcr.io#team/digits:1"},
        "mounts": [{"name": "data", "path": "/data", "source": "/lustre/data", "read_only": True}],
        "secrets": [{"name": "gcp", "key": "sa.json", "path": "/s", "env": "KEY_FILE"}],
    }
    text = script(**job)
    assert "--container-image='docker://ghcr.io#team/digits:1'" in text
    assert '--container-mounts="/lustre/data:/data:ro,$KEY_FILE:/s/sa.json:ro"' in text
    assert "--export=ALL,KEY_FILE=/s/sa.json" in text


def test_what_has_no_equivalent_is_said():
    notes = " ".join(
        render(
            Job.model_validate(
                {
                    **BASE,
                    "image": "x:1",
                    "machine_type": "n1",
                    "mounts": [{"name": "data", "path": "/data"}],
                    "secrets": [{"name": "one", "env": "ONE"}, {"name": "two", "path": "/two"}],
                }
            )
        ).notes
    )
    for word in ("slurm.container", "machine_type", "/data", "set ONE", "/two"):
        assert word in notes


@pytest.mark.parametrize(
    "slurm", [{"partition": "a b"}, {"account": "a'b"}, {"extra": ["reservation=x"]},
              {"extra": ["--a\n--b"]}]
)  # fmt: skip
def test_values_that_sbatch_would_misread_are_refused(slurm):
    with pytest.raises(ConfigError, match=r"slurm\."):
        script(slurm=slurm)


def test_elastic_jobs_lose_machines_without_an_end():
    text = script(workers=4, min_workers=2)
    assert "--wait=0" in text
    assert "drumbeat run -n 2:4 train.py" in text


@pytest.mark.parametrize(
    "values",
    [{}, {"output": "/o", "workers": 4, "slurm": {"setup": ["module load x"]}},
     {"min_workers": 1, "output": "/o"}, {"args": ["it's", "$x", "a b"]}],
)  # fmt: skip
def test_script_is_one_that_bash_reads(values, tmp_path):
    (tmp_path / "job").write_text(script(**values))
    assert subprocess.run(["bash", "-n", tmp_path / "job"]).returncode == 0
    assert manifest_of(script(**values)) is not None


def manifest_of(text):
    manifest = registry.parse_manifest(text, Path("job.sbatch"))
    assert registry.recognise(manifest) is PLATFORM
    return manifest


# What the script does after its step, with stand-ins for srun and scontrol.


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [
        (0, "RUNNING", False),
        (75, "RUNNING", True),
        (75, "COMPLETING", False),
        (1, "RUNNING", False),
    ],
)
def test_requeue_only_of_a_job_that_nobody_ended(tmp_path, code, state, requeued):
    programs(
        tmp_path,
        srun=f'test -n "$DRUMBEAT_TOKEN" || exit 9; echo "$@" > srun; exit {code}',
        scontrol=f'echo "$@" >> scontrol; echo "JobState={state} Reason=None"',
    )
    (tmp_path / "job").write_text(script(output="/out", args=["a b"]))
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "job"], cwd=tmp_path, env=env)
    assert done.returncode == code
    assert "drumbeat run --backup-dir /out/backups train.py a b" in (tmp_path / "srun").read_text()
    calls = tmp_path / "scontrol"
    assert ("requeue 7" in calls.read_text() if calls.exists() else False) is requeued


def test_a_missing_secret_ends_the_job_at_once(tmp_path):
    programs(tmp_path, srun="touch started")
    (tmp_path / "job").write_text(script(secrets=[{"name": "k", "env": "MY_KEY"}]))
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    done = subprocess.run(["bash", "job"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode
    assert "MY_KEY: Set it before sbatch" in done.stderr
    assert not (tmp_path / "started").exists()


def programs(folder, **scripts):
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in scripts.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


# Anybody's scripts.


class Ports:
    """Of which only the third is where Slurm's agents would meet."""

    def __init__(self):
        self.given = iter([50_000, 19_999, 23_456, 30_000])

    def port(self):
        return next(self.given)


def rehearsed(text):
    return PLATFORM.rehearse(manifest_of(textwrap.dedent(text).lstrip()), Ports())


def test_rehearsal_has_what_srun_sets():
    found = rehearsed(
        """
        #!/bin/bash
        #SBATCH -J train --nodes=2 --ntasks-per-node=1
        #SBATCH -c 4
        export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
        export DRUMBEAT_TOKEN=$(openssl rand -hex 32)
        srun -m block -l drumbeat run train.py --job $SLURM_JOB_ID
        """
    )
    assert [each.name for each in found.processes] == ["task-0", "task-1"]
    second = found.processes[1]
    assert second.command == ("drumbeat", "run", "train.py", "--job", "3456")
    expected = {
        "SLURMD_NODENAME": "127.0.0.2",
        "SLURM_CLUSTER_NAME": "rehearsal",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_DISTRIBUTION": "block",
        "SLURM_GTIDS": "1",
        "SLURM_JOBID": "3456",
        "SLURM_JOB_ID": "3456",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_PARTITION": "rehearsal",
        "SLURM_LABELIO": "1",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_NODELIST": "127.0.0.[1-2]",
        "SLURM_NPROCS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_PROCID": "1",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "127.0.0.[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "SLURM_SUBMIT_HOST": "127.0.0.1",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SRUN_CPUS_PER_TASK": "4",
    }
    assert dict(second.env) == expected
    assert "DRUMBEAT_TOKEN" not in " ".join(found.differences)
    place = launched_by.find(second.env)
    assert place is not None
    assert (place.node_rank, place.nodes, place.port) == (1, 2, 23_456)


@pytest.mark.parametrize(
    ("batch", "srun", "nodes", "counts", "second"),
    [
        ("-N2 -n3", "", 2, "2,1", ("0", "1", "0,1")),
        ("-N2 -n3", "-m cyclic", 2, "2,1", ("1", "0", "1")),
        ("-n2", "", 1, "2", ("0", "1", "0,1")),
        ("-N 3", "", 3, "1(x3)", ("1", "0", "1")),
        ("--nodes=2-4 --ntasks-per-node 2", "--distribution=block", 2, "2(x2)", ("0", "1", "0,1")),
        ("-N4", "-N2 --ntasks=2", 2, "1(x2)", ("1", "0", "1")),
        ("-N3 -n2", "", 2, "1(x2)", ("1", "0", "1")),
        ("-N1 -n1\n#SBATCH hetjob\n#SBATCH -N2", "--het-group=0,1", 3, "1(x3)", ("1", "0", "1")),
        ("-N1\n#SBATCH hetjob\n#SBATCH -n3 -N2", "--het-group=1", 2, "2,1", ("0", "1", "0,1")),
    ],
)
def test_where_tasks_run(batch, srun, nodes, counts, second):
    found = rehearsed(f"#!/bin/bash\n#SBATCH {batch}\nsrun {srun} python train.py\n")
    env = found.processes[1].env
    assert env["SLURM_STEP_NUM_NODES"] == str(nodes)
    assert env["SLURM_STEP_TASKS_PER_NODE"] == counts
    assert (env["SLURM_NODEID"], env["SLURM_LOCALID"], env["SLURM_GTIDS"]) == second
    for rank, process in enumerate(found.processes):
        place = launched_by.find(process.env)
        assert place is not None
        assert (place.node_rank, place.nodes) == (rank, len(found.processes))


def test_the_step_that_trains_is_found():
    found = rehearsed(
        r"""
        #!/bin/bash
        #SBATCH --nodes=2
        set -euo pipefail
        module load cuda
        source venv/bin/activate
        PORT=4711
        export PORT OTHER
        export NAME="a b"  # a name
        export WHEN=$(date)
        cat <<EOF > hosts
        srun python not-this-one.py
        srun python nor-this-one.py
        EOF
        srun hostname
        OMP_NUM_THREADS=1 srun --label -K0 \
            --export=ALL,MODE=${MODE:-fast} \
            python train.py --name "$NAME" 2>&1 | tee log
        srun python evaluate.py &
        wait
        """
    )
    process = found.processes[0]
    assert process.command == ("python", "train.py", "--name", "a b")
    assert (process.env["PORT"], process.env["NAME"]) == ("4711", "a b")
    assert process.env["MODE"] == "fast"
    said = " ".join(found.differences)
    for word in ("module load cuda", "WHEN", "hostname", "evaluate.py", "OTHER among them"):
        assert word in said


def test_script_without_srun_runs_once():
    found = rehearsed("#!/bin/bash\n#SBATCH -N4\npython train.py\n")
    (process,) = found.processes
    assert process.command == ("bash", "job.sbatch")
    assert process.env["SLURM_JOB_NUM_NODES"] == "4"
    assert "SLURM_STEP_ID" not in process.env
    assert launched_by.find(process.env) is None
    assert "no srun" in " ".join(found.differences)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH -N two\nsrun a.py", "--nodes is 'two'"),
        ("#SBATCH -n 0\nsrun a.py", "--ntasks is '0'"),
        ("#SBATCH -n 2000\nsrun a.py", "2000 tasks"),
        ("#SBATCH -N 2\nsrun python $(pick)", "only the shell"),
        ("#SBATCH -N 2\nsrun python $UNKNOWN", "only the shell"),
        ("#SBATCH -N 2\nsrun --het-group=0,1 a.py", "--het-group is '0,1'"),
        ("#SBATCH -N 2\nsrun --het-group=x a.py", "--het-group is 'x'"),
    ],
)
def test_what_can_not_be_rehearsed(text, message):
    with pytest.raises(ConfigError, match=message.replace("$", "\\$")):
        rehearsed(f"#!/bin/bash\n{text}\n")


HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
TOKEN = "export DRUMBEAT_TOKEN=$(openssl rand -hex 32)\n"  # noqa: S105


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "python train.py\n", "not started by srun"),
        (HEAD + "drumbeat run train.py\n", "not started by srun"),
        (HEAD + "srun drumbeat run train.py\n", "DRUMBEAT_TOKEN is not set"),
        (HEAD + "export DRUMBEAT_TOKEN=abcdef\nsrun drumbeat run t.py\n", "written in the script"),
        (HEAD + "export WANDB_API_KEY=abcdef\nsrun python t.py\n", "written in the script"),
        (HEAD + TOKEN + "srun -m arbitrary drumbeat run t.py\n", "--distribution=block"),
        (HEAD + "srun hostname\n#SBATCH --time=5\nsrun python t.py\n", "after the first command"),
        (HEAD + "#SBATCH -c 8\nsrun python t.py\n", "SRUN_CPUS_PER_TASK"),
        (HEAD + "#SBATCH --requeue\nsrun python t.py\n", "--open-mode=append"),
        (HEAD + "srun python t.py\nscontrol requeue $SLURM_JOB_ID\n", "JobState=RUNNING"),
        (HEAD + "#SBATCH --signal=B:TERM@60\nsrun python t.py\n", "without B:"),
        (HEAD + "#SBATCH --signal=TERM@60\nsrun -K1 python t.py\n", "--kill-on-bad-exit"),
        (HEAD + "#SBATCH -o log.txt\nsrun python t.py\n", "%j"),
        (HEAD + TOKEN + "srun drumbeat run --nodes 2 t.py\n", "leave out --nodes"),
        (
            "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4\nsrun drumbeat run -n 4 t.py\n",
            "16 in all",
        ),
        ("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4\nsrun drumbeat run t.py\n", "starts faster"),
        ("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4\nsrun -m cyclic python t.py\n", "blocks"),
        ("#!/bin/bash\r\n#SBATCH -N2\r\nsrun python t.py\r\n", "line ends"),
        ("#!/bin/bash\n#SBATCH -N x\nsrun python t.py\n", "--nodes is 'x'"),
        (
            HEAD + "#SBATCH --partion=gpu\nsrun python t.py\n",
            "did you mean --partition?",
        ),
        (HEAD + "#SBATCH --time=1d\nsrun python t.py\n", "--time is '1d'; sbatch takes minutes"),
        (HEAD + "srun --cpu-per-task=2 python t.py\n", "did you mean --cpus-per-task?"),
        (
            HEAD + "export TF_CONFIG=$(./make)\nsrun python t.py\n",
            "all of its 2 tasks have",
        ),
        (HEAD + "srun /opt/bin/mpirun -np 2 python t.py\n", "srun starts mpirun 2 times"),
    ],
)
def test_problems(text, message):
    found = PLATFORM.problems(manifest_of(text))
    assert [each for each in found if message in each], found


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"#SBATCH --time={time}\nsrun python t.py\n"
            for time in ("90", "5:30", "1:00:00", "2-0", "2-12:30", "1-1:2:3", "UNLIMITED")
        ),
        "#SBATCH --part=gpu --container-image=a --comment=x\nsrun --time=$T python t.py\n",
        "srun -N1 -n1 --exclusive python ps.py &\nTF_CONFIG=1 srun -N1 -n1 python t.py\n",
    ],
)
def test_what_sbatch_takes(text):
    found = PLATFORM.problems(manifest_of(HEAD + text))
    assert not [each for each in found if "has no" in each or "--time" in each or "TF_C" in each]


@pytest.mark.parametrize(
    "values", [{}, {"output": "/o", "workers": 4}, {"workers": 4, "min_workers": 2},
               {"workers": 4, "devices": {"type": "gpu", "count": 2}, "output": "gs://b/o"}]
)  # fmt: skip
def test_what_is_rendered_has_no_problems_and_can_be_rehearsed(values):
    manifest = manifest_of(script(**values))
    assert PLATFORM.problems(manifest) == []
    found = PLATFORM.rehearse(manifest, Ports())
    assert len(found.processes) == Job.model_validate({**BASE, **values}).nodes
    assert "set up the machine" not in " ".join(found.differences)


def test_lines_that_a_rehearsal_runs_and_those_that_it_does_not():
    head = "#!/bin/bash\n#SBATCH -n 2\nmodule purge\n"
    without = PLATFORM.rehearse(manifest_of(head + "python t.py\n"), Ports())
    assert "All of the script's lines were run here" in " ".join(without.differences)
    assert "not run here" not in " ".join(without.differences)
    with_step = PLATFORM.rehearse(manifest_of(head + "srun python t.py\n"), Ports())
    assert "set up the machine are not run here: 'module purge'" in " ".join(with_step.differences)


@given(st.text(st.sampled_from("#SBATCH srun -nNm=:,{}$()`'\"\\\n<EOF;&|x1 "), max_size=120))
def test_any_script_is_read_or_explained(text):
    manifest = registry.parse_manifest(f"#!/bin/bash\n#SBATCH -N2\n{text}", Path("job"))
    assert isinstance(PLATFORM.problems(manifest), list)
    try:
        PLATFORM.rehearse(manifest, Ports())
    except ConfigError:
        return


def test_options_as_srun_reads_them():
    words = [
        "-N2",
        "-n",
        "4",
        "--mem=1G",
        "-l",
        "--time",
        "5",
        "-K1",
        "--exclusive",
        "-c=2",
        "a",
        "-n",
    ]
    assert options_of(words) == (
        {"nodes": "2", "ntasks": "4", "mem": "1G", "label": "", "time": "5",
         "kill-on-bad-exit": "1", "exclusive": "", "cpus-per-task": "2"}, 10,
    )  # fmt: skip
    assert options_of(["--", "-a"]) == ({}, 1)
    assert options_of(["--nodes"]) == ({"nodes": ""}, 1)


def test_variables_of_words():
    assert filled("a$B-${C}/${D:-d}", {"B": "b", "C": "c"}) == "ab-c/d"
    assert filled("$X", {}) is None
    assert filled("$((1+1))", {}) is None
    assert filled("`date`", {}) is None
    assert filled("$A" * 3, {"A": "a" * 50_000}) is None


def test_a_script_whose_variables_would_fill_the_memory():
    doubled = "export A=$A$A\n" * 40
    found = rehearsed(f"#!/bin/bash\n#SBATCH -N2\nexport A=aaaaaaaa\n{doubled}srun python t.py\n")
    assert len(found.processes[0].env["A"]) < 200_000
    assert "by the shell of the job only: A" in " ".join(found.differences)
    assert read("").training is None


# The commands.

SCONTROL = """
case "$*" in *" 41") ;; *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; esac
echo "JobId=41 JobName=digits JobState=$(cat state) Reason=$(cat reason) Restarts=1 ExitCode=0:0 \\
NodeList=n[1-2] WorkDir=$PWD StdOut=$PWD/digits-41.out"
"""


@pytest.fixture
def client(tmp_path):
    """Of a Slurm that is made of a few scripts and files in `tmp_path`."""
    programs(
        tmp_path,
        sbatch='cat > submitted; echo "$@" > arguments; echo "41;cluster"',
        scontrol=SCONTROL,
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
        scancel='echo "$@" >> cancelled',
    )
    (tmp_path / "state").write_text("RUNNING")
    (tmp_path / "reason").write_text("None")
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    return SlurmClient(Job.model_validate(BASE), environ=env, folder=tmp_path)


def test_submit(client, tmp_path):
    job = Job.model_validate(BASE)
    assert client.submit(job, render(job)) == "41"
    assert (tmp_path / "submitted").read_text() == render(job).main
    assert (tmp_path / "arguments").read_text() == "--parsable\n"
    assert client.plan(job, render(job))[0] == "sbatch --parsable < job.sbatch"


def test_submit_needs_the_secrets_of_the_job(client, tmp_path):
    job = Job.model_validate({**BASE, "secrets": [{"name": "key", "env": "MY_KEY"}]})
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        client.submit(job, render(job))
    assert not (tmp_path / "submitted").exists()


@pytest.mark.parametrize(
    ("words", "reason", "state", "detail"),
    [
        ("PENDING", "Resources", "pending", "PENDING, Resources, requeues: 1"),
        ("RUNNING", "None", "running", "RUNNING, requeues: 1"),
        ("COMPLETED", "None", "succeeded", "COMPLETED, requeues: 1"),
        ("OUT_OF_MEMORY", "OutOfMemory", "failed", "OUT_OF_MEMORY, OutOfMemory, requeues: 1"),
        ("TIMEOUT", "TimeLimit", "failed", "TIMEOUT, TimeLimit, requeues: 1"),
        ("NEW_STATE", "None", "unknown", "NEW_STATE, requeues: 1"),
    ],
)
def test_status(client, tmp_path, words, reason, state, detail):
    (tmp_path / "state").write_text(words)
    (tmp_path / "reason").write_text(reason)
    found = client.status("41")
    assert (found.state, found.detail) == (state, detail)
    assert found.tasks == {"0": f"{words} on n1", "1": f"{words} on n2"}


def test_a_forgotten_job_is_asked_of_the_accounting(client, tmp_path):
    programs(tmp_path, sacct='echo "CANCELLED by 0|1:0|n[1-2]|/work"')
    found = client.status("40")
    assert (found.state, found.detail) == ("stopped", "CANCELLED by 0, exit code 1")
    assert set(found.tasks) == {"0", "1"}


def test_a_job_that_never_had_machines_has_no_tasks(client, tmp_path):
    programs(tmp_path, sacct='echo "CANCELLED by 0|0:0|None assigned|/work"')
    assert client.status("40").tasks == {}


def test_logs_of_all_and_of_one(client, tmp_path):
    (tmp_path / "digits-41.out").write_text("0: a\n1: b\nsrun: c\n10: d")
    assert list(client.logs("41", task=None, follow=False)) == ["0: a", "1: b", "srun: c", "10: d"]
    assert list(client.logs("41", task="1", follow=False)) == ["1: b"]
    with pytest.raises(ConfigError, match="expected one of 0, 1"):
        list(client.logs("41", task="2", follow=False))


def test_logs_are_where_slurm_says(client, tmp_path):
    programs(tmp_path, scontrol=SCONTROL.replace("digits-41.out", "elsewhere"))
    (tmp_path / "elsewhere").write_text("0: a\n")
    assert list(client.logs("41", task=None, follow=False)) == ["0: a"]


def test_logs_of_a_folder_with_spaces(client, tmp_path):
    folder = tmp_path / "a folder = x"
    folder.mkdir()
    (folder / "digits-41.out").write_text("0: a\n")
    programs(tmp_path, scontrol=SCONTROL.replace("$PWD/digits", "$PWD/a folder = x/digits"))
    assert list(client.logs("41", task=None, follow=False)) == ["0: a"]
    assert client.status("41").detail == "RUNNING, requeues: 1"


def test_logs_that_another_user_may_not_see(client, tmp_path, monkeypatch):
    def refused(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(ConfigError, match="or where it can't be seen from here"):
        list(client.logs("41", task=None, follow=False))


def test_logs_follow_until_the_job_has_ended(client, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_client, "POLL_S", 0.01)
    monkeypatch.setattr(slurm_client, "_LAST_OUTPUT_S", 0.05)
    output = tmp_path / "digits-41.out"
    lines = client.logs("41", task=None, follow=True)
    output.write_text("0: a\n")
    assert next(lines) == "0: a"
    with output.open("a") as file:
        file.write("0: b\n")
    assert next(lines) == "0: b"
    (tmp_path / "state").write_text("COMPLETED")
    assert list(lines) == []


def test_logs_of_a_job_that_waits(client, tmp_path):
    (tmp_path / "state").write_text("PENDING")
    with pytest.raises(ConfigError, match="printed nothing yet"):
        list(client.logs("41", task=None, follow=False))


def test_stop(client, tmp_path):
    client.stop("41")
    assert (tmp_path / "cancelled").read_text() == "41\n"


@pytest.mark.parametrize("job_id", ["40", "x", "", "41; rm -rf /", "--help"])
def test_there_is_no_such_job(client, tmp_path, job_id):
    for call in (client.status, client.stop):
        with pytest.raises(ConfigError, match=r"knows no job|is no job"):
            call(job_id)
    assert not (tmp_path / "cancelled").exists()


def test_slurms_own_words_are_shown(client, tmp_path):
    programs(
        tmp_path,
        sbatch="echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1",
        scontrol="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1",
    )
    job = Job.model_validate(BASE)
    with pytest.raises(ConfigError, match="invalid partition specified: nope"):
        client.submit(job, render(job))
    with pytest.raises(ConfigError, match="Unable to contact slurm controller"):
        client.status("41")


def test_the_last_of_many_words_is_shown(client, tmp_path):
    programs(tmp_path, sbatch="for i in $(seq 100); do echo line $i >&2; done; exit 1")
    job = Job.model_validate(BASE)
    with pytest.raises(ConfigError) as refused:
        client.submit(job, render(job))
    assert "said:\n  (90 more lines above)\n  line 91" in str(refused.value)
    assert str(refused.value).endswith("line 100")


def test_answers_that_are_none(client, tmp_path):
    job = Job.model_validate(BASE)
    programs(tmp_path, sbatch="printf 'one\\n  two\\n' >&2; exit 1")
    with pytest.raises(ConfigError) as refused:
        client.submit(job, render(job))
    assert str(refused.value) == "sbatch ended with code 1 and said:\n  one\n    two"
    programs(tmp_path, sbatch="echo Welcome to the cluster")
    with pytest.raises(ConfigError, match="expected the number of a job"):
        client.submit(job, render(job))
    programs(tmp_path, scontrol="")
    assert client.status("41").state == "unknown"


def test_without_slurm(tmp_path):
    client = SlurmClient(Job.model_validate(BASE), environ={"PATH": str(tmp_path)}, folder=tmp_path)
    job = Job.model_validate(BASE)
    with pytest.raises(ConfigError, match="no sbatch on this machine"):
        client.submit(job, render(job))


def test_a_controller_that_never_answers(client, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_client, "CALL_TIMEOUT_S", 0.2)
    programs(tmp_path, scontrol="exec sleep 30")
    with pytest.raises(DrumbeatError, match="scontrol ping"):
        client.status("41")


def test_commands_as_typed(client, tmp_path, monkeypatch, capsys):
    """The whole way through the command line."""
    (tmp_path / "drumbeat.yaml").write_text("name: digits\nscript: train.py\n")
    (tmp_path / "digits-41.out").write_text("0: hello\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def drumbeat(*words):
        with pytest.raises(SystemExit) as ended:
            app(words, prog_name="drumbeat")
        assert not ended.value.code
        return capsys.readouterr().out

    assert "sbatch --parsable < job.sbatch" in drumbeat("submit", "slurm", "--dry-run")
    assert not (tmp_path / "submitted").exists()
    assert "Submitted 41." in drumbeat("submit", "slurm")
    assert drumbeat("status", "slurm").startswith("41: running")
    assert drumbeat("logs", "slurm") == "0: hello\n"
    assert drumbeat("stop", "slurm") == "Stopped 41.\n"


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_the_example_is_rehearsed_and_trains(tmp_path):
    """The tasks of the rendered script find each other and train, as processes of this machine."""
    here = Path(__file__).parent
    shutil.copy(here.parents[1] / "docs/platforms/examples/slurm/job.sbatch", tmp_path)
    shutil.copy(here / "train_random.py", tmp_path / "train.py")
    words = ["rehearse", "job.sbatch", "--steps", "3", "--timeout", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat", *words],
        cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[task-1] [drumbeat] Slurm: this is node 1 of 2" in done.stdout
    assert "The agents of 2 processes found each other. 2 workers trained" in done.stdout
    assert "--mem=8192M" in done.stdout
