"""How ranks end that lose each other, or that are not alike: by messages, exit statuses and the list
of processes. usage: ranks.py MODULE CLUSTER_TEST"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mpirun import command, environment, skip_without

module, program = sys.argv[1:3]
skip_without(module)
failures = 0
HOST = os.uname().nodename[:63]


def check(ok, what):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL: {what}")


def run(ranks, timeout, *scene, **more):
    return subprocess.run(command(ranks, program, "mpi", str(timeout), *scene), env=environment(module, **more),
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=120)


def lives(pid):
    """Whether there is such a process, other than one that has ended and waits for its parent."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pids, seconds):
    """Looks at the list of processes until all are gone; returns those that are left."""
    end = time.monotonic() + seconds
    while True:
        left = [pid for pid in pids if lives(pid)]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def a_late_rank_is_named():
    by_messages = {"LATENTD_CLUSTER_SHARED_RANKS": "1"}
    for call, ranks, missing, more in [("gather", 4, 2, {}), ("gather", 2, 0, {}), ("broadcast", 3, 2, {}),
                                       ("open_window", 3, 1, {}),
                                       ("add_to_owner", 3, 1, {}), ("add_to_owner", 3, 1, by_messages),
                                       ("share", 3, 0, {}), ("share", 3, 0, by_messages)]:
        r = run(ranks, 3, "late", call, str(missing), **more)
        where = f"{call}, rank {missing} of {ranks} {more}"
        check(r.returncode == 75, f"{where}: status {r.returncode}: {r.stdout}{r.stderr}")
        said = re.findall(r"rank (\d) of (\d) on (\S+): (.*?): waited 3 s in vain for (.*?); ending with status 75",
                          r.stderr)
        check(said, f"{where}: {r.stderr}")
        for rank, world, host, _, names in said:
            check(rank != str(missing) and world == str(ranks) and host == HOST, f"{where}: {rank} {world} {host}")
            check(names == f"rank {missing} on {HOST}", f"{where}: {names}")
        check("FAIL" not in r.stdout, r.stdout)
        pids = re.findall(r"is process (\d+)", r.stdout)
        check(len(pids) == ranks and not gone_within(pids, 10), f"{where}: {pids} left")
        print(f"{where}: {len(said)} ranks named it, mpirun ended with {r.returncode}")


def start(ranks, timeout, *scene, **more):
    """Starts ranks that say their process; returns mpirun and the processes by rank."""
    p = subprocess.Popen(command(ranks, program, "mpi", str(timeout), *scene), env=environment(module, **more),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    pids = {}
    while len(pids) < ranks:
        line = p.stdout.readline()
        if not line:
            break
        if found := re.match(r"rank (\d+) is process (\d+)", line):
            pids[int(found[1])] = int(found[2])
    check(len(pids) == ranks, f"{scene}: {pids} {p.stderr.read() if len(pids) < ranks else ''}")
    return p, pids


def a_killed_rank_ends_all():
    """With a deadline of ten minutes: it is mpirun that ends the others."""
    for call, ranks, victim in [("gather", 4, 1), ("gather", 3, 2), ("add_to_owner", 3, 0), ("share", 2, 1)]:
        p, pids = start(ranks, 600, "idle", call)
        os.kill(pids[victim], signal.SIGKILL)
        began = time.monotonic()
        left = gone_within(pids.values(), 10)
        took = time.monotonic() - began
        check(not left, f"{call}: {left} of {pids} left 10 s after rank {victim} was killed")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        _, errors = p.communicate(timeout=60)
        check(p.returncode != 0, f"{call}: mpirun says {p.returncode}")
        print(f"{call}: rank {victim} of {ranks} killed, all gone {took:.1f} s later, mpirun {p.returncode}")
        check("waited" not in errors, errors)


def a_stopped_rank_is_late():
    """A busy rank's beats come from its process: stopped, it is not waited for longer."""
    p, pids = start(3, 3, "busy-forever")
    time.sleep(6)
    check(p.poll() is None, "nobody is late while rank 0 says that it is busy")
    os.kill(pids[0], signal.SIGSTOP)
    _, errors = p.communicate(timeout=120)
    check(p.returncode == 75 and f"gather: waited 3 s in vain for rank 0 on {HOST}" in errors, errors)
    left = gone_within(pids.values(), 10)
    check(not left, f"{left} of {pids} left")
    print(f"a busy rank was waited for, a stopped one was not: mpirun {p.returncode}")


def a_busy_rank_is_waited_for():
    r = run(3, 3, "busy", "8")
    check(r.returncode == 0 and r.stdout.count("0 failed") == 3, f"{r.returncode} {r.stdout}{r.stderr}")
    print("8 s of work with a deadline of 3 s: all three ranks went on")


def got(r):
    """{rank: [(code, message)]}"""
    found = {}
    for rank, code, message in re.findall(r"^rank (\d+) got (\w+): (.*)$", r.stdout, re.M):
        found.setdefault(int(rank), []).append((code, message))
    return found


def unlike_ranks_are_named():
    r = run(4, 60, "differ", "2")
    check(r.returncode == 0, f"{r.returncode} {r.stdout}{r.stderr}")
    said = got(r)
    check(sorted(said) == [0, 1, 2, 3] and len({tuple(s) for s in said.values()}) == 1, f"{said}")
    (code, short), (_, long) = said[0]
    check(code == "conflict" and
          short == f"ranks differ in the level: rank 0 on {HOST} has avx2, rank 2 on {HOST} has amx", short)
    check("rank 0 on" in long and "winograd 2" in long and "winograd 4" in long and len(long) < 600, long)
    print(short, long, sep="\n")
    r = run(3, 60, "long-text", "1")
    check(r.returncode == 0 and len(got(r)) == 3, f"{r.returncode} {r.stdout}{r.stderr}")
    check(all("the list of rank 1 has 1048577 bytes; at most 1048576" in m for s in got(r).values()
              for _, m in s), f"{got(r)}")
    r = run(2, 60, "unlike-sizes")
    check(r.returncode == 0 and len(got(r)) == 2, f"{r.returncode} {r.stdout}{r.stderr}")


def ranks_in_different_calls_do_not_mix_up_bytes():
    """Rank 0 opens a window, for which it sends 16 bytes, or gathers 64 bytes; the others gather 16 bytes."""
    r = run(3, 3, "mixed", "open_window")
    said = got(r)
    check(r.returncode == 75 and sorted(said) == [0, 1, 2] and all(code == "timeout" for s in said.values() for code, _ in s),
          f"{r.returncode} {said} {r.stdout}{r.stderr}")
    print(said.get(0))
    r = run(3, 3, "mixed", "gather")
    said = got(r)
    check(r.returncode == 75 and 0 in said and said[0][0][0] == "peer_lost" and
          "sent 16 bytes, not 64: it makes another call" in said[0][0][1], f"{r.returncode} {said} {r.stdout}{r.stderr}")
    print(said.get(0))


def a_window_without_room_is_refused_by_all():
    for more in ({}, {"LATENTD_CLUSTER_SHARED_RANKS": "1"}):
        r = run(3, 60, "no-room", **more)
        said = got(r)
        check(r.returncode == 0 and sorted(said) == [0, 1, 2], f"{r.returncode} {r.stdout}{r.stderr}")
        check(all(code == "out_of_memory" for s in said.values() for code, _ in s), f"{said}")
        print(said.get(0))


def settings_are_checked():
    for name, value in [("LATENTD_CLUSTER_SHARED_RANKS", "0"), ("LATENTD_CLUSTER_SHARED_RANKS", "two"),
                        ("LATENTD_CLUSTER_MESSAGE_BYTES", "100")]:
        r = run(1, 60, "exact", **{name: value})
        check(r.returncode == 1 and f"{name}: {value} is not allowed" in r.stderr, f"{r.returncode} {r.stderr}")


def without_the_launcher():
    """Processes that a launcher started, but that MPI does not know as ranks of one world."""
    r = subprocess.run([program, "mpi", "60", "exact"], capture_output=True, text=True, check=False,
                       stdin=subprocess.DEVNULL,
                       env=environment(module, PMI_RANK="1", PMI_SIZE="3"))
    check(r.returncode == 1 and "rank 1 of 3, but the MPI library sees rank 0 of 1" in r.stderr,
          f"{r.returncode} {r.stdout} {r.stderr}")
    print(r.stderr.strip())
    r = subprocess.run([program, "auto", "60", "exact"], capture_output=True, text=True, check=False,
                       stdin=subprocess.DEVNULL, env=environment(module, PMIX_RANK="1"))
    check(r.returncode == 1 and "rank 1, but the MPI library sees rank 0 of 1" in r.stderr,
          f"PMIx without MPI: {r.returncode} {r.stdout} {r.stderr}")
    print(r.stderr.strip())
    r = subprocess.run([program, "mpi", "60", "exact"], capture_output=True, text=True, check=False,
                       stdin=subprocess.DEVNULL, env=environment(module))
    check(r.returncode == 0 and "rank 0 of 1, mpi" in r.stdout, f"without mpirun: {r.returncode} {r.stderr}")


def the_module_is_found():
    """In a build's folder, and in an installation's, wherever that is."""
    clean = {name: value for name, value in environment(module).items() if name != "LATENTD_CLUSTER_MODULE"}
    for place, of_module in [(".", "cluster"), ("bin", "libexec/latentd")]:
        with tempfile.TemporaryDirectory() as folder:
            for name, source in [(place, program), (of_module, module)]:
                os.makedirs(os.path.join(folder, name), exist_ok=True)
                shutil.copy2(source, os.path.join(folder, name))
            copy = os.path.join(folder, place, os.path.basename(program))
            r = subprocess.run(command(2, copy, "mpi", "60", "differ", "1"), capture_output=True, text=True,
                               env=clean, check=False, stdin=subprocess.DEVNULL)
            check(r.returncode == 0 and sorted(got(r)) == [0, 1], f"{of_module}: {r.returncode} {r.stderr}")


a_late_rank_is_named()
a_killed_rank_ends_all()
a_stopped_rank_is_late()
a_busy_rank_is_waited_for()
unlike_ranks_are_named()
ranks_in_different_calls_do_not_mix_up_bytes()
a_window_without_room_is_refused_by_all()
settings_are_checked()
without_the_launcher()
the_module_is_found()
print(f"{failures} failed")
sys.exit(failures > 0)
