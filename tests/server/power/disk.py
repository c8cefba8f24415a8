"""Rebuilds in several ways what a power cut may leave of a folder, from the copies that disk.c
keeps and from the folder at the moment of the cut. Standard library only."""
import os
import shutil
import subprocess
import sys

PAGE = 4096


class Disk:
    """The watched folder `root`. Start the daemon with the command that under() returns. At
    first all contents of the folder count as synced."""

    def __init__(self, library, root):
        self.library, self.root = library, root
        self.kept, self.now = root + ".kept", root + ".now"
        self.begin()

    def begin(self):
        """Counts all present contents as synced."""
        self._copy_all(self.kept)

    def under(self, command):
        """Returns the command with disk.c loaded, so that its syncs are watched."""
        return ["env", *self._settings(self.kept), *command]

    def cut(self):
        """Copies the folder as it is now. Call when nothing writes any more. restore() may
        follow."""
        self._copy_all(self.now)

    def restore(self, choose):
        """Puts the folder back as the cut may have left it. `choose`: a Worst, Kind or Some."""
        shutil.rmtree(self.root)
        with open(os.path.join(self.now, "root"), encoding="utf-8") as f:
            self._restore_folder(f.read(), self.root, choose)

    def _settings(self, to):
        return [f"LD_PRELOAD={self.library}", f"POWER_CUT_ROOT={self.root}", f"POWER_CUT_KEPT={to}"]

    def _copy_all(self, to):
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        subprocess.run(["env", *self._settings(to), sys.executable, "-c", "import os; os.sync()"], check=True)

    def _names(self, copies, key):
        """Returns {name: (kind, key)} of a folder, {} if it was never synced."""
        try:
            with open(os.path.join(copies, key + ".folder"), encoding="utf-8") as f:
                lines = [line.rstrip("\n").split(" ", 2) for line in f]
        except FileNotFoundError:
            return {}
        return {name: (kind, inner) for kind, inner, name in lines}

    def _bytes(self, copies, key):
        try:
            with open(os.path.join(copies, key), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return b""

    def _restore_folder(self, key, path, choose):
        os.mkdir(path)
        synced, now = self._names(self.kept, key), self._names(self.now, key)
        for name in sorted({*synced, *now}):
            entry = choose.entry(synced.get(name), now.get(name))
            if not entry:
                continue
            kind, inner = entry
            if kind == "d":
                self._restore_folder(inner, os.path.join(path, name), choose)
            else:
                # Of a file deleted before the cut only the synced bytes are known.
                is_there = os.path.exists(os.path.join(self.now, inner))
                kept = self._bytes(self.kept, inner)
                with open(os.path.join(path, name), "wb") as f:
                    f.write(choose.bytes(kept, self._bytes(self.now, inner) if is_there else kept))


class Worst:
    """Keeps only what was synced."""

    def __str__(self):
        return "only what was synced"

    def entry(self, synced, now):
        return synced

    def bytes(self, synced, now):
        return synced


class Kind(Worst):
    """Keeps everything, as after a kill -9."""

    def __str__(self):
        return "everything"

    def entry(self, synced, now):
        return now

    def bytes(self, synced, now):
        return now


class Some(Worst):
    """Keeps each unsynced name, length and page with a probability of one half."""

    def __init__(self, draw):
        self.draw = draw

    def __str__(self):
        return "some of what was not synced"

    def entry(self, synced, now):
        return synced if synced == now or self.draw.random() < 0.5 else now

    def bytes(self, synced, now):
        if synced == now:
            return now
        size = len(self.draw.choice((synced, now)))
        parts = []
        for at in range(0, size, PAGE):
            part = self.draw.choice((synced, now))[at:min(at + PAGE, size)]
            parts.append(part.ljust(min(PAGE, size - at), b"\0"))
        return b"".join(parts)
