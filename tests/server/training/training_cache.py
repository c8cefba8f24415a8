"""--cache-max-bytes in the daemon: state/cache never stays larger than the limit, the oldest
files are deleted, and the adapters are the same as with a full cache. usage:
training_cache.py EXECUTABLE MODEL"""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from trainer import Trainer, make_pictures, root  # noqa: E402

JOB = {"max_train_steps": 3, "checkpointing_steps": 0, "cache_latents": True}


def files(d):
    """Returns {name: (bytes on the disk, time of writing)} of the cache's files."""
    found = {}
    for folder, _, names in os.walk(os.path.join(d.state, "cache")):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            found[name] = (status.st_blocks * 512, status.st_mtime)
    return found


def size(d):
    return sum(each for each, _ in files(d).values())


def train(d, name):
    return d.file(d.wait(d.start(name=name, **JOB))["id"], name)


def without_a_limit():
    """Returns the adapter, the ended daemon, and the bytes and number of cached files."""
    with Trainer() as d:
        adapter, kept = train(d, "first"), files(d)
        check(train(d, "second") == adapter,
              "a job that finds everything in the cache writes the same bytes")
        check(files(d).keys() == kept.keys(),
              "a job that finds everything adds no files to the cache")
    return adapter, d, sum(each for each, _ in kept.values()), len(kept)


def jobs_leave_no_more(adapter, whole, limit):
    with Trainer("--cache-max-bytes", str(limit)) as d:
        for name in ("first", "second"):
            check(train(d, name) == adapter, f"{limit} bytes, the {name} job: the same adapter")
            check(wait_until(lambda: size(d) <= limit, 20),
                  f"the cache is cut to its limit: {size(d)} bytes of at most {limit}")
        left = files(d)
        check(bool(left) == (limit > 0), f"{limit} bytes: {len(left)} files are left")
        print(f"at most {limit} of {whole} bytes: {size(d)} in {len(left)} files are left after two jobs")
        log = d.read_log()
        check("no longer has" not in log and "damaged" not in log,
              f"the cut removes no file that a running job uses: {log}")


def a_start_trims_what_is_there(d, whole):
    """A new daemon deletes the oldest files: half of the earlier daemon's files are made a day
    older."""
    names = sorted(files(d))
    old = set(names[::2])
    for folder, _, inside in os.walk(os.path.join(d.state, "cache")):
        for name in old & set(inside):
            path = os.path.join(folder, name)
            os.utime(path, (os.stat(path).st_mtime - 86400,) * 2)
    limit = sum(each for name, (each, _) in files(d).items() if name not in old)
    with Trainer("--cache-max-bytes", str(limit), state=d.state) as d:
        check(wait_until(lambda: size(d) <= limit, 20),
              f"the cache of {whole} bytes is cut to its limit: {size(d)} bytes of at most {limit}")
        check(set(files(d)) == set(names) - old, "exactly the oldest files are removed")


try:
    make_pictures()
    alone, ended, all_bytes, count = without_a_limit()
    print(f"a job leaves {all_bytes} bytes in {count} files")
    jobs_leave_no_more(alone, all_bytes, all_bytes // 2)
    jobs_leave_no_more(alone, all_bytes, 0)
    a_start_trims_what_is_there(ended, all_bytes)
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
