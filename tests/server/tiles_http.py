"""Draws a picture with too little memory to decode it whole: vae_tiling "auto" decodes it in
tiles, says so, and gives the same picture as "on"; "off" is refused. With enough memory again
"auto" decodes it whole. usage: tiles_http.py EXECUTABLE MODEL"""
import base64
import re
import resource
import sys

import picture
from daemon import Daemon, check, done

executable, model = sys.argv[1:3]
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 1, "guidance_scale": 1,
        "width": 512, "height": 512}


def data_bytes(d):
    with open(f"/proc/{d.process.pid}/status") as f:
        return int(re.search(r"VmData:\s+(\d+)", f.read())[1]) << 10


def limit(d, most):
    resource.prlimit(d.process.pid, resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def draw(d, tiling):
    r = d.generate({**DRAW, "vae_tiling": tiling})
    check(r.status == 200, f"{tiling}: {r.status} {r.body[:300]}")
    return r.json()["vae_tiled"], picture.decode(base64.b64decode(r.json()["images"][0]["b64_json"]))


def serve():
    return Daemon(executable, model, extra=["--dtype", "f32"])


def with_plenty(tiling):
    """Returns the picture and the daemon's data bytes after drawing it."""
    with serve() as d:
        tiled, drawn = draw(d, tiling)
        check(tiled == (tiling == "on"), f"{tiling}: {tiled}")
        return drawn, data_bytes(d)


def with_little(most, tiles, whole):
    with serve() as d:
        limit(d, most)
        check(draw(d, "auto") == (True, tiles),
              "with little memory `auto` decodes in tiles, with the same picture as `on`")
        check("a 512x512 picture in tiles: " in d.read_log(), "the log says why")
        r = d.generate({**DRAW, "vae_tiling": "off"})
        check(r.status == 507,
              f"with `off` the picture is a 507, not decoded in tiles: {r.status} {r.body[:300]}")
        limit(d, resource.RLIM_INFINITY)
        check(draw(d, "auto") == (False, whole),
              "with enough memory `auto` decodes the picture whole")


tiles, tiles_take = with_plenty("on")
whole, whole_takes = with_plenty("off")
print(f"{tiles_take >> 20} MiB in tiles, {whole_takes >> 20} MiB whole")
check(tiles != whole and tiles_take + (32 << 20) < whole_takes,
      "decoding in tiles gives another picture and needs over 32 MiB less")
with_little((tiles_take + whole_takes) // 2, tiles, whole)
done()
