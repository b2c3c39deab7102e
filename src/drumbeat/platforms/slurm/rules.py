"""What is wrong in somebody's batch script: what Slurm refuses, or does otherwise than meant.

Source: sbatch(1), srun(1); tried with slurm-wlm 22.05.
"""

from __future__ import annotations

from collections.abc import Iterator

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.command import TOKEN, starts_agent
from drumbeat.platforms.platform import Advice, Manifest
from drumbeat.platforms.secret_names import names_secret
from drumbeat.platforms.slurm import options
from drumbeat.platforms.slurm.rehearsal import Layout, layout_of
from drumbeat.platforms.slurm.script import Script, Step, filled, options_of, read

_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "horovodrun", "parallel")
"""Programs that start the tasks themselves."""
MIN_SECRET = 4
"""Characters; shorter ones are placeholders."""


def problems(manifest: Manifest) -> list[str]:
    """A sentence for each; see `Platform.problems`."""
    script = read(manifest.text)
    step = script.training
    try:
        layout = layout_of(script.groups, step.options if step else {})
    except ConfigError as error:
        return [str(error)]
    found = list(_of_file(manifest.text, script))
    if step is None:
        found += _without_step(script, layout)
    else:
        found += _of_step(script, step, layout)
    return found


def _of_file(text: str, script: Script) -> Iterator[str]:
    if "\r\n" in text:
        yield "The script has Windows' line ends, which sbatch refuses: sed -i 's/\\r$//' FILE."
    directives = {pair: None for group in script.groups for pair in group.items()}
    yield from options.problems("sbatch", directives)
    yield from options.problems("srun", script.training.options.items() if script.training else ())
    if script.late:
        yield (
            f"#SBATCH {listed(script.late)} stands after the first command, where sbatch does not "
            "read it; move it up."
        )
    for name, value in script.exports:
        if names_secret(name) and len(filled(value, {}) or "") >= MIN_SECRET:
            yield (
                f"{name} is written in the script, for everyone who can read it. Set it in the "
                "environment before sbatch, which hands it on."
            )
    output = script.options.get("output", "")
    restarts = "requeue" in script.options or any("scontrol requeue" in c for c in script.commands)
    if restarts and "append" not in script.options.get("open-mode", ""):
        yield Advice("A requeued job empties its output file; add #SBATCH --open-mode=append.")
    if any("scontrol requeue" in c for c in script.commands) and "JobState" not in " ".join(
        script.commands
    ):
        yield Advice(
            "scontrol requeue also brings back a job that scancel has ended. Requeue it only while "
            "scontrol show job says JobState=RUNNING."
        )
    if script.options.get("signal", "").startswith("B:") and not any(
        c.startswith("trap") for c in script.commands
    ):
        yield Advice(
            f"--signal={script.options['signal']} goes to the batch shell alone, which has no "
            "trap: without B: it goes to the tasks, whose agents save the state."
        )
    if output and "%" not in output:
        yield Advice(
            f"All jobs of this script write to {output}; %j in it stands for the job's number."
        )


def _without_step(script: Script, layout: Layout) -> Iterator[str]:
    trains = [each for each in script.commands if "drumbeat" in each or ".py" in each]
    tasks, nodes = sum(layout.counts), len(layout.counts)
    if not trains or tasks == 1 or any(name in trains[0].split() for name in _LAUNCHERS):
        return
    # Several tasks of one machine are often asked for as so many CPUs.
    said, machines = (str, f"{nodes} machines") if nodes > 1 else (Advice, "it")
    yield said(
        f"{shown(trains[0])} is not started by srun: it runs once, on the first machine, while "
        f"{tasks} tasks on {machines} are paid for. Write srun --distribution=block before it."
    )


def _of_step(script: Script, step: Step, layout: Layout) -> Iterator[str]:
    tasks, nodes = sum(layout.counts), len(layout.counts)
    runs_drumbeat = any(word.rpartition("/")[2] == "drumbeat" for word in step.command)
    both = {**script.options, **step.options}
    if tasks > 1 and any(name == "TF_CONFIG" for name, _ in script.exports):
        yield (
            f"TF_CONFIG is set before srun, so all of its {tasks} tasks have the same one and are "
            "the same worker. Set it in what each task runs, by SLURM_PROCID; drumbeat run needs "
            "none on Slurm."
        )
    launcher = step.command[0].rpartition("/")[2]
    if tasks > 1 and launcher in _LAUNCHERS:
        yield (
            f"srun starts {launcher} {tasks} times, and each of them starts all of its processes. "
            f"Write {launcher} without srun, or srun without {launcher}."
        )
    if layout.distribution.startswith("arbitrary") and runs_drumbeat:
        yield (
            "With --distribution=arbitrary nobody can tell where task 0 runs, at which the agents "
            "meet. Expected --distribution=block."
        )
    if runs_drumbeat:
        yield from _of_agents(script, step, layout)
    elif tasks > 1 and layout.is_cyclic:
        yield Advice(
            "TensorFlow's SlurmClusterResolver takes tasks to be laid out in blocks; with "
            "cyclic ones it gives each others' addresses. Give srun --distribution=block."
        )
    cpus = script.options.get("cpus-per-task")
    repeated = "cpus-per-task" in step.options or any(
        name == "SRUN_CPUS_PER_TASK" for name, _ in script.exports
    )
    if cpus not in (None, "1") and not repeated:
        yield Advice(
            f"--cpus-per-task={cpus} is sbatch's: since 22.05 srun gives each task 1 CPU. Add "
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK."
        )
    if "signal" in both and both.get("kill-on-bad-exit", "0") != "0" and nodes > 1:
        yield Advice(
            "With --kill-on-bad-exit the first agent that has saved its state (exit code 75) ends "
            "the others, which may not have. Give --kill-on-bad-exit=0 --wait=60."
        )


def _of_agents(script: Script, step: Step, layout: Layout) -> Iterator[str]:
    tasks = sum(layout.counts)
    at = next(i for i, word in enumerate(step.command) if word.rpartition("/")[2] == "drumbeat")
    words = step.command[at + 1 :]
    given = options_of(words[1:])[0] if words[:1] == ("run",) else {}
    workers = given.get("workers", given.get("ntasks", ""))
    per_node = max(layout.counts)
    if per_node > 1 and workers.isdecimal() and int(workers) > 1:
        yield Advice(
            f"Each of the {per_node} tasks of a machine starts {workers} workers, "
            f"{per_node * int(workers)} in all. Give --ntasks-per-node=1, or leave out -n."
        )
    elif per_node > 1:
        yield Advice(
            f"A machine has {per_node} tasks, each with an agent of its own. One with -n "
            f"{per_node} starts faster: --ntasks-per-node=1, drumbeat run -n {per_node}."
        )
    sets_token = any(name == TOKEN for name, _ in script.exports)
    if tasks > 1 and not sets_token and starts_agent(step.command):
        yield Advice(
            f"{TOKEN} is not set in the script. Unless it is in the environment that sbatch hands "
            f"on, add {TOKEN}=$(openssl rand -hex 32) and export {TOKEN}."
        )
    if tasks > 1 and "nodes" in given:
        yield "drumbeat run finds out about the other tasks from Slurm; leave out --nodes."
