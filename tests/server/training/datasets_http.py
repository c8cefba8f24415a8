"""Data sets over HTTP: archives are uploaded, listed, described and deleted, and wrong ones are
refused. The archives are made with Python's tarfile. usage: datasets_http.py EXECUTABLE
PICTURES"""
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, exchange, wait_until  # noqa: E402

executable, pictures = sys.argv[1:3]
TAR = {"Content-Type": "application/x-tar"}


def picture(name):
    with open(os.path.join(pictures, name), "rb") as f:
        return f.read()


RGB, TURNED, CUT = picture("rgb.png"), picture("turned6.jpg"), picture("broken_cut.png")


def entry(name, data=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def tar(*entries, form=tarfile.PAX_FORMAT):
    """Returns a tar file of `entries`: (name, bytes) or results of entry()."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for e in entries:
            info, data = e if isinstance(e[0], tarfile.TarInfo) else entry(*e)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Folder(Daemon):
    """A daemon with an empty folder for data sets."""

    def __init__(self, *extra):
        self.folder = tempfile.mkdtemp()
        super().__init__(executable, extra=["--dataset-root", self.folder, *extra])

    def __exit__(self, *args):
        result = super().__exit__(*args)
        shutil.rmtree(self.folder)
        return result

    def put(self, name, data, headers=TAR):
        return self.request("PUT", "/datasets/" + name, data, headers)

    def files(self):
        """Returns all paths in the folder, hidden ones too, relative to it."""
        found = []
        for at, folders, files in os.walk(self.folder):
            found += [os.path.relpath(os.path.join(at, name), self.folder) for name in folders + files]
        return sorted(found)


def refused(r, status, words, what):
    error = r.error() if r.body else {}
    check(r.status == status and words in error.get("message", "") and error.get("code"),
          f"{what}: {status} for {words!r}, not {r.status}: {r.body[:300]}")
    print(f"{what}: {error.get('message')}")


def without_a_folder():
    with Daemon(executable) as d:
        for method, path in ("GET", "/datasets"), ("PUT", "/datasets/cats"), ("DELETE", "/datasets/cats"):
            refused(d.request(method, path, b"x" if method == "PUT" else None,
                              TAR if method == "PUT" else {}), 404, "--dataset-root", method)


def sent_listed_and_removed(d):
    names = (("cats/metadata.jsonl", b'{"file_name": "b/\xc3\xa4.png", "text": "a cat"}\n'
              b'{"file_name": "a.jpg", "text": ["one", "two"]}\n'), ("cats/b/\u00e4.png", RGB),
             ("./cats/a.jpg", TURNED), ("cats/._a.jpg", b"x"), (".DS_Store", b"x"))
    wanted = ["cats", "cats/a.jpg", "cats/b", "cats/b/\u00e4.png", "cats/metadata.jsonl"]
    for form in tarfile.PAX_FORMAT, tarfile.GNU_FORMAT:
        for packed in False, True:
            data = tar(entry("cats/", kind=tarfile.DIRTYPE), *names, form=form)
            r = d.put("cats", gzip.compress(data) if packed else data,
                      {"Content-Type": "application/gzip"} if packed else TAR)
            check(r.status == 201, f"{r.status} {r.body[:300]}")
            told = r.json()
            check(told["name"] == "cats" and told["pictures"] == 2 and told["broken"] == 0 and
                  told["layout"] == "metadata.jsonl" and told["captions"]["missing"] == 0 and
                  told["captions"]["pictures_with_several"] == 1, f"{told}")
            check(d.files() == wanted, f"{d.files()}")
            with open(d.folder + "/cats/a.jpg", "rb") as f:
                check(f.read() == TURNED, "the stored file is the one that was sent")
            check(d.get("/datasets").json() == {"datasets": ["cats"]}, "the data set is listed")
            check(d.get("/datasets/cats").json() == told,
                  "GET /datasets/NAME answers what PUT answered")
            check(d.request("DELETE", "/datasets/cats").status == 204, "the data set is deleted")
            check(d.files() == [] and d.get("/datasets").json() == {"datasets": []}, f"{d.files()}")
    refused(d.get("/datasets/cats"), 404, "no data set cats", "what was removed")
    refused(d.request("DELETE", "/datasets/cats"), 404, "no data set cats", "removing it again")


def a_name_that_is_taken(d):
    check(d.put("dogs", tar(("a.png", RGB), ("a.txt", b"a dog"))).status == 201,
          "the data set is uploaded")
    refused(d.put("dogs", tar(("b.png", RGB))), 409, "there is a data set dogs already", "a taken name")
    os.symlink("dogs", d.folder + "/linked")
    refused(d.put("linked", tar(("b.png", RGB))), 409, "a data set linked already", "a taken link")
    refused(d.request("DELETE", "/datasets/linked"), 400, "no folder of ours", "removing a link")
    with open(d.folder + "/file", "w") as f:
        f.write("x")
    refused(d.put("file", tar(("b.png", RGB))), 409, "a data set file already", "a file's name")
    check(d.get("/datasets").json() == {"datasets": ["dogs", "linked"]}, "only folders are listed")
    os.remove(d.folder + "/file")
    os.remove(d.folder + "/linked")
    check(d.files() == ["dogs", "dogs/a.png", "dogs/a.txt"], f"{d.files()}")
    check(d.request("DELETE", "/datasets/dogs").status == 204, "the data set is deleted")


def names_that_are_none(d):
    for name, words in (("..", "plain path"), (".hidden", "not allowed"), ("a%2fb", "not allowed"),
                        ("a/b", "not allowed"), ("x" * 129, "at most 128"), ("", "not allowed"),
                        ("cats?x=1", "no query")):
        r = d.put(name, tar(("a.png", RGB)))
        refused(r, 400, words, f"the name {name[:20]!r}")


def archives_that_are_refused(d):
    outside = os.path.join(os.path.dirname(d.folder), "escaped.png")
    deep = "/".join(["d"] * 600) + "/a.png"
    bad_sum = bytearray(tar(("a.png", RGB)))
    bad_sum[148:154] = b"000000"
    for what, data, status, words in (
            ("nothing", b"", 400, ""),
            ("no archive", b"this is no archive" * 100, 400, "cannot be read"),
            ("an empty archive", tar(), 400, "archive"),
            ("one cut short", tar(("a.png", RGB * 20))[:20000], 400, "cannot be read"),
            ("gzip cut short", gzip.compress(tar(("a.png", RGB * 20)))[:-400], 400, "cannot be read"),
            ("a wrong sum", bytes(bad_sum), 400, "cannot be read"),
            ("..", tar(("../escaped.png", RGB)), 400, "../escaped.png leads out"),
            (".. inside", tar(("a/../../escaped.png", RGB)), 400, "leads out"),
            ("an absolute path", tar((outside, RGB)), 400, "is absolute"),
            ("a symbolic link", tar(entry("a.png", kind=tarfile.SYMTYPE, link="/etc/passwd")), 400,
             "a.png is a symbolic link"),
            ("a file behind a link", tar(entry("d", kind=tarfile.SYMTYPE, link="/tmp"), ("d/a.png", RGB)),
             400, "d is a symbolic link"),
            ("a hard link", tar(("a.png", RGB), entry("b.png", kind=tarfile.LNKTYPE, link="a.png")), 400,
             "b.png is a link to another file"),
            ("a device", tar(entry("a.png", kind=tarfile.CHRTYPE)), 400, "a.png is a device"),
            ("a disk", tar(entry("a.png", kind=tarfile.BLKTYPE)), 400, "a.png is a device"),
            ("a FIFO", tar(entry("a.png", kind=tarfile.FIFOTYPE)), 400, "a.png is a FIFO"),
            ("a name twice", tar(("a.png", RGB), ("a.png", RGB)), 400, "a.png comes twice"),
            ("a file that is a folder", tar(("a/b.png", RGB), ("a", RGB)), 400, "a comes twice"),
            ("a folder that is a file", tar(("a", RGB), ("a/b.png", RGB)), 400, "a/b.png comes twice"),
            ("a path too long", tar((deep, RGB)), 400, "1 to 1024 are taken"),
            ("a control character", tar(("a\nb.png", RGB)), 400, "control character 0a"),
            ("a huge file announced", huge_header(), 413, "more than 1000000 bytes of files, with a.png"),
            ("a bomb", gzip.compress(tar(("a.png", bytes(3000000)))), 413, "more than 1000000 bytes"),
            ("a hidden bomb", gzip.compress(tar(("a.png", RGB), (".b/c.png", bytes(3000000)))), 413,
             "more than 1000000 bytes of files, with .b/c.png"),
            ("bombs in pieces", gzip.compress(tar(*((f"{i}.png", bytes(90000)) for i in range(20)))), 413,
             "more than 1000000 bytes of files, with 11.png"),
            *(("a sparse file", data, 400, "a.png is sparse") for data in sparse_archives()),
            ("no pictures", tar(("a.txt", b"x")), 400, "no PNG, JPEG or WebP files"),
            ("folders of pictures", tar(("a/a.png", RGB), ("b/a.png", RGB)), 400, "in its folder a name"),
            ("none that can be read", tar(("a.png", CUT)), 400, "none of the 1 pictures can be used"),
            ("metadata that lead out", tar(("a.png", RGB), ("metadata.csv", b"file_name\n../a.png\n")), 400,
             "../a.png leads out"),
            ("captions in Latin-1", tar(("a.png", RGB), ("a.txt", b"caf\xe9")), 400, "not UTF-8")):
        refused(d.put("set", data), status, words, what)
        check(d.files() == [], f"{what}: no files are left: {d.files()}")
    check(not os.path.exists(outside), "no file is written outside the folder")
    refused(d.put("set", bytes(1000001)), 413, "1000000", "a body too large")
    refused(d.put("set", tar(("a.png", RGB)), {"Content-Type": "application/zip"}), 415, "", "a zip")
    check(d.files() == [], f"{d.files()}")


def sparse_archives():
    """A sparse archive made by GNU tar, if installed: a file with a hole of 1 MB."""
    if not shutil.which("tar"):
        return
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/a.png", "wb") as f:
            f.write(RGB)
            f.truncate(900000)
        for form in "gnu", "pax":
            yield subprocess.run(["tar", "-C", folder, "--sparse", "--format", form, "-cf", "-", "a.png"],
                                 stdout=subprocess.PIPE, check=True).stdout


def huge_header():
    """Returns a header that announces 2^40 bytes, followed by a few."""
    info = tarfile.TarInfo("a.png")
    info.size = 1 << 40
    return info.tobuf(tarfile.GNU_FORMAT) + RGB


def broken_pictures_are_told(d):
    r = d.put("mixed", tar(("a.png", RGB), ("b.png", CUT), ("c.gif", b"GIF89a")))
    told = r.json()
    check(r.status == 201 and told["pictures"] == 1 and told["broken"] == 1 and
          told["broken_pictures"][0]["path"] == "b.png" and told["passed_over_names"] == ["c.gif"] and
          told["captions"]["missing_names"] == ["a.png"], f"{r.status} {told}")
    check(d.request("DELETE", "/datasets/mixed").status == 204, "the data set is deleted")


def in_chunks(d):
    data = tar(("10_a cat/a.png", RGB))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(data[i:i + 700]), data[i:i + 700])
                      for i in range(0, len(data), 700)) + b"0\r\n\r\n"
    head = b"PUT /datasets/chunks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    responses, _ = exchange(d, head + chunks, close=True)
    check([r.status for r in responses] == [201] and responses[0].json()["samples"] == 10,
          f"{[r.body for r in responses]}")
    check(d.files() == ["chunks", "chunks/10_a cat", "chunks/10_a cat/a.png"], f"{d.files()}")
    check(d.request("DELETE", "/datasets/chunks").status == 204, "the data set is deleted")


def one_that_leaves_half_way(d):
    data = tar(("a.png", RGB * 100))
    before = d.open_files()
    with d.connect() as s:
        s.sendall(b"PUT /datasets/half HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) +
                  data[:5000])
        check(wait_until(lambda: d.open_files() > before), "the upload has begun")
    check(wait_until(lambda: d.open_files() <= before),
          "the daemon closes the files of an upload whose client left")
    check(d.files() == [], f"{d.files()}")


def what_a_crash_left_is_removed():
    with Folder() as d:
        os.makedirs(d.folder + "/.upload-0123456789abcdef/deep/er")
        with open(d.folder + "/.upload-0123456789abcdef/deep/a.png", "wb") as f:
            f.write(RGB)
        os.symlink(d.folder, d.folder + "/.upload-0123456789abcdef/link")
        os.mkdir(d.folder + "/kept")
        with Daemon(executable, extra=["--dataset-root", d.folder]):
            check(d.files() == ["kept"], f"{d.files()}")


def main():
    without_a_folder()
    with Folder("--dataset-max-bytes", "1000000") as d:
        sent_listed_and_removed(d)
        a_name_that_is_taken(d)
        names_that_are_none(d)
        archives_that_are_refused(d)
        broken_pictures_are_told(d)
        in_chunks(d)
        one_that_leaves_half_way(d)
    what_a_crash_left_is_removed()
    done()


main()
