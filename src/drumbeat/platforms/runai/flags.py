"""The flags of Run:ai's two command lines, as far as they are documented.

Source: run-ai/docs: runai-submit-dist-TF.md (v1), new-cli/runai_tensorflow_submit.md (v2) and
best-practices/secrets-as-env-var-in-cli.md. The v3.0 documentation of PyTorch's command has
`--environment` for something else than a variable: `-e` alone is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.problems import unknown
from drumbeat.platforms.shell_text import Line, commands, lines, plain

SHORT = {
    "-a": "--annotation",
    "-c": "--command",
    "-d": "--debug",
    "-e": "--environment",
    "-g": "--gpu",
    "-i": "--image",
    "-l": "--label",
    "-p": "--project",
    "-q": "--quiet",
    "-t": "--tty",
    "-v": "--volume",
}
SWITCHES = frozenset(
    """--allow-privilege-escalation --attach --command --create-home-dir --debug --host-ipc
    --host-network --large-shm --master-no-pvcs --mount-propagation --no-master --quiet
    --run-as-user --stdin --tty --verbose""".split()  # noqa: SIM905
)
_BOTH = """--annotation --backoff-limit --clean-pod-policy --environment --extended-resource
    --git-sync --image --image-pull-policy --label --node-pools --node-type --port
    --preferred-pod-topology-key --project --required-pod-topology-key --s3 --toleration --workers
    --working-dir""".split()  # noqa: SIM905
FLAGS = {
    "v1": frozenset(_BOTH)
    | frozenset(
        """--add-capability --address --cpu --cpu-limit --gpu --gpu-memory --job-name-prefix
        --loglevel --memory --memory-limit --mig-profile --name --nfs-server --pvc --pvc-exists
        --pvc-new --service-type --template --ttl-after-finish --volume""".split()  # noqa: SIM905
    ),
    "v2": frozenset(_BOTH)
    | frozenset(
        """--auto-deletion-time-after-completion --capability --config-file --config-path
        --configmap-map-volume --cpu-core-limit --cpu-core-request --cpu-memory-limit
        --cpu-memory-request --env-pod-field-ref --existing-pvc --external-url --framework
        --gpu-devices-request --gpu-memory-limit --gpu-memory-request --gpu-portion-limit
        --gpu-portion-request --gpu-request-type --host-path --master-args --master-command
        --master-environment --master-extended-resource --master-gpu-devices-request
        --master-gpu-portion-limit --master-gpu-portion-request --name-prefix --new-pvc --nfs
        --pod-running-timeout --run-as-gid --run-as-uid --seccomp-profile --secret-volume
        --supplemental-groups --template --termination-grace-period --user-group-source
        --wait-for-submit""".split()  # noqa: SIM905
    ),
}
"""Those with a value, by the command line's version."""
_STARTS = (
    (("submit-tf",), "v1"),
    (("submit-dist", "tf"), "v1"),
    (("training", "tensorflow", "submit"), "v2"),
    (("training", "tf", "submit"), "v2"),
    (("tensorflow", "submit"), "v2"),
    (("tf", "submit"), "v2"),
    (("distributed", "submit"), "v2"),
)


@dataclass
class Submission:
    """A command that submits a job of TensorFlow's.

    Attributes:
        version: Of the command line.
        name: Of the job.
        flags: Values by the flag's long name, in their order; "" of switches.
        typed: Flags as they were typed, long or short.
        words: The container's command, or the arguments of the image's own.
        wrong: What was not understood, a sentence each.
    """

    version: str
    name: str = ""
    flags: dict[str, list[str]] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    words: tuple[str, ...] = ()
    wrong: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether a flag was given."""
        return name in self.flags

    def last(self, name: str, default: str = "") -> str:
        """The value of a flag; the last one wins."""
        return self.flags.get(name, [default])[-1]


def has_submission(text: str) -> bool:
    """Whether a script submits such a job."""
    return any(True for line in lines(text) for _ in _submitting(line))


def read(text: str, name: str) -> Submission:
    """The one command of a script that submits a job.

    Args:
        text: The script.
        name: As messages call the file.

    Raises:
        ConfigError: There is none, or more than one, or a shell would not read it.
    """
    if "\0" in text:
        raise ConfigError(f"{name} has a NUL character, which no program takes.")
    found = list(_commands(text, name))
    if len(found) != 1:
        raise ConfigError(
            f"{name} has {len(found)} commands such as runai training tensorflow submit; expected "
            "one."
        )
    words = found[0]
    start, version = _start(words) or ((), "v2")
    return _parsed(words[1 + len(start) :], Submission(version=version))


def _commands(text: str, name: str) -> Iterator[list[str]]:
    """Commands of a script that submit, as words."""
    for line in lines(text):
        for words in _submitting(line):
            if line.wrong:
                raise ConfigError(f"{name}: {shown(line.text.strip())}: {line.wrong}.")
            yield [plain(word) for word in words]


def _submitting(line: Line) -> Iterator[list[str]]:
    for words, _ in commands(line.words):
        if words[0] == "runai" and _start(words) is not None:
            yield words


def _start(words: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    for start, version in _STARTS:
        if tuple(words[1 : 1 + len(start)]) == start:
            return start, version
    return None


def _parsed(words: Sequence[str], found: Submission) -> Submission:
    known = FLAGS[found.version]
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            found.words = tuple(left)
            break
        if not word.startswith("-"):
            if found.name:
                found.wrong.append(f"{shown(word)} is a second name; the first is {found.name}.")
            found.name = found.name or word
            continue
        given, equals, value = word.partition("=")
        flag = _long(given, found.version)
        found.typed.add(given)
        if flag not in known | SWITCHES:
            found.wrong.append(unknown(flag, sorted(known | SWITCHES), f"In CLI {found.version}, "))
            if not equals and left and not left[0].startswith("-"):
                left.pop(0)
            continue
        if flag not in SWITCHES and not equals:
            if not left:
                found.wrong.append(f"{given} has no value.")
                break
            value = left.pop(0)
        found.flags.setdefault(flag, []).append(value)
    found.name = found.last("--name", found.name)
    return found


def _long(flag: str, version: str) -> str:
    if flag == "-g" and version == "v2":
        return "--gpu-devices-request"
    if flag == "-f" and version == "v2":
        return "--framework"
    return SHORT.get(flag, flag)
