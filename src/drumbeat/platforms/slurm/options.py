"""Which options sbatch and srun have, and what times they take.

Source: sbatch(1) and srun(1) of 23.11. Pyxis adds --container-image and the like, and
plugins of a cluster more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

_TEXT = """
accel-bind account acctg-freq array autocomplete batch bb bbf bcast bcast-exclude begin chdir
cluster-constraint clusters comment compress constraint container container-entrypoint
container-env container-id container-image container-mount-home container-mounts container-name
container-readonly container-remap-root container-save container-workdir container-writable
contiguous core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline
debugger-test delay-boot dependency disable-status distribution epilog error exact exclude
exclusive export export-file external extra extra-node-info get-user-env gid gpu-bind gpu-freq
gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help het-group hint hold
ignore-pbs immediate input interactive job-name jobid kill-on-bad-exit kill-on-invalid-dep label
launch-cmd launcher-opts licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus mpi msg-timeout multi-prog network nice no-allocate no-container-entrypoint
no-container-mount-home no-container-remap-root no-kill no-requeue nodefile nodelist nodes ntasks
ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit
overlap oversubscribe pack-group parsable partition power prefer preserve-env priority profile
prolog propagate pty qos quiet quit-on-interrupt reboot relative requeue reservation resv-ports
send-libs signal slurmd-debug sockets-per-node spread-job switches task-epilog task-prolog
test-only thread-spec threads threads-per-core time time-min tmp tres-bind tres-per-job
tres-per-task uid umask unbuffered usage use-min-nodes verbose version wait wait-all-nodes
wait-for-switch wckey wrap x11
"""
_NAMES = frozenset(_TEXT.split())
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|infinite|unlimited|-1", re.IGNORECASE)


def problems(program: str, given: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What it would refuse.

    Args:
        program: sbatch or srun.
        given: Long names without dashes, and values.
    """
    for name, value in given:
        # Any beginning that only one name has will do.
        is_known = len(name) < 2 or any(each.startswith(name) for each in _NAMES)
        close = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.8)
        if not is_known and close:
            yield f"{program} has no --{name}; did you mean --{close[0]}?"
        if name in ("time", "time-min") and "$" not in value and not _TIME.fullmatch(value):
            yield (
                f"--{name} is {value!r}; {program} takes minutes, hours:minutes:seconds, or "
                "days-hours, such as 90, 24:00:00 and 1-0."
            )
