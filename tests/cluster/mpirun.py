"""Starts ranks on this machine for tests.
usage: mpirun.py MODULE RANKS [NAME=VALUE...] PROGRAM [ARGUMENT...]

MODULE is the built cluster-mpi.so, or empty if it was not built. Then, and without mpirun, it says
so and ends with 77: skipped."""
import os
import re
import shutil
import subprocess
import sys


def skip_without(module):
    """Ends this test as skipped if there is no MPI."""
    why = None
    if not module:
        why = "cluster-mpi.so was not built: no Open MPI (Debian: libopenmpi-dev), or -Dmpi=disabled"
    elif not shutil.which("mpirun"):
        why = "there is no mpirun (Debian: openmpi-bin)"
    if why:
        print(f"SKIPPED: {why}")
        sys.exit(77)


def command(ranks, *program):
    """The command that starts `ranks` ranks, whoever runs it and however few processors there are."""
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
            # Containers often forbid reading another process's memory.
            "--mca", "btl_vader_single_copy_mechanism", "none", "-n", str(ranks), *program]


def environment(module, **more):
    # Open MPI leaks memory of plugins that it unloads before LeakSanitizer looks, so that no
    # suppression can name them. Other faults are still found. Memory that is not there is refused,
    # as without sanitizers.
    asan = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0:allocator_may_return_null=1"]))
    # Tests run as root in containers and CI.
    return {**os.environ, "ASAN_OPTIONS": asan, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "LATENTD_CLUSTER_MODULE": module, **more}


def main():
    module, ranks, *rest = sys.argv[1:]
    skip_without(module)
    more = {}
    while re.match(r"[A-Z_0-9]+=", rest[0]):
        name, value = rest.pop(0).split("=", 1)
        more[name] = value
    print(f"{ranks} ranks{', ' if more else ''}{', '.join(f'{n}={v}' for n, v in more.items())}", flush=True)
    sys.exit(subprocess.run(command(ranks, *rest), env=environment(module, **more), check=False,
                            stdin=subprocess.DEVNULL).returncode)


if __name__ == "__main__":
    main()
