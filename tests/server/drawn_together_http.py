"""Requests that are drawn at the same time give the same bits as each alone, on the bundled
checkpoint. They differ in prompts, text lengths, sizes, step counts, schedulers, guidance,
priorities, adapters and starting pictures, with or without masks. usage: drawn_together_http.py
EXECUTABLE MODEL [REQUESTS [SEED [DTYPE...]]] (scripts/soak: 1,000)"""
import queue
import random
import sys
import tempfile
import threading

from daemon import Daemon, check, done
from lora_file import kohya_lora
from png_file import gradient, left_half, png_base64

MAX_ROWS, IN_FLIGHT = 16, 12
PROMPTS = ["a red house", "a blue boat in the middle of the sea at night, the moon in the upper left",
           "three trees by the sea, the sun in the upper right, a yellow car in front of them", "",
           "a red boat, " * 40]
SIZES = [(128, 128), (128, 128), (96, 160)]
PICTURES = {size: (png_base64(*size, gradient), png_base64(*size, left_half(size[0]))) for size in set(SIZES)}
LORAS = [[], [], [{"name": "snow"}], [{"name": "ink", "weight": 0.6, "text_encoder_weight": 0}],
         [{"name": "snow", "weight": 0.7}, {"name": "ink", "weight": -0.3}]]


def mix(count, seed, schedulers):
    """Returns `count` requests, determined by the seed."""
    draw = random.Random(seed)
    out = []
    for number in range(count):
        width, height = draw.choice(SIZES)
        prompt = draw.choice(PROMPTS)
        if draw.random() < 0.1:
            prompt = [prompt, draw.choice(PROMPTS)]
        out.append({"prompt": prompt, "negative_prompt": draw.choice(["", "", "a grey wall"]),
                    "seed": number, "width": width, "height": height,
                    "num_inference_steps": draw.choice([2, 3, 4, 6]),
                    "guidance_scale": draw.choice([1, 2.5, 7.5]),
                    "scheduler": draw.choice(schedulers), "loras": draw.choice(LORAS),
                    **draw.choice([{"long_prompt": "truncate"}, {"long_prompt": "chunk"},
                                   {"prompt_syntax": "a1111"},
                                   {"prompt_syntax": "a1111",
                                    "prompt": "a [red:blue:0.4] house [at night|in the snow|]"},
                                   {"prompt_syntax": "a1111", "guidance_scale": 5,
                                    "prompt": "a red house AND [a boat:a tree:2] at night :0.6"}]),
                    "clip_skip": draw.choice([0, 0, 1]), "rng": draw.choice(["cpu", "cuda"]),
                    "priority": draw.choice([-3, 0, 0, 3]),
                    "output": draw.choice(["png", "latent"])})
        picture, mask = PICTURES[width, height]
        if draw.random() < 0.4:
            out[-1] |= {"init_image": picture, "strength": draw.choice([0.5, 0.8, 1])}
            if draw.random() < 0.5:
                out[-1]["mask_image"] = mask
    return out


def schedulers_of(d):
    """Returns every scheduler, also with the options that change its noise or its timesteps."""
    out = []
    for s in d.get("/schedulers").json()["schedulers"]:
        out.append(s["name"])
        if "eta" in s["options"]:
            out.append({"name": s["name"], "eta": 0.5})
        if "use_karras_sigmas" in s["options"]:
            out.append({"name": s["name"], "use_karras_sigmas": True})
    return out


def draw_one(d, request):
    r = d.generate(request)
    if r.status != 200:
        return r.status, r.error()["message"]
    return r.status, [image.get("b64_json") or image["b64_latent"] for image in r.json()["images"]]


def draw_together(d, requests):
    """Draws all requests, IN_FLIGHT of them at a time. Returns each result, and the largest
    number of requests seen in progress."""
    left, out, most = queue.Queue(), [None] * len(requests), 0
    for item in enumerate(requests):
        left.put(item)

    def client():
        while True:
            try:
                i, request = left.get_nowait()
            except queue.Empty:
                return
            out[i] = draw_one(d, request)

    threads = [threading.Thread(target=client) for _ in range(IN_FLIGHT)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        most = max(most, figure(d, "latentd_requests_running"))
        threads[0].join(0.02)
        if not threads[0].is_alive():
            threads.pop(0)
    return out, most


def figure(d, name):
    for line in d.get("/metrics").body.decode().split("\n"):
        if line.startswith(name + " "):
            return float(line.split(" ")[1])
    raise SystemExit(f"no {name}")


def drawn_together(executable, model, dtype, count, seed):
    with tempfile.TemporaryDirectory() as folder:
        for name, number in (("snow", 1), ("ink", 2)):
            with open(f"{folder}/{name}.safetensors", "wb") as f:
                f.write(kohya_lora(model, number, rank=4 * number))
        with Daemon(executable, model, patience_s=300, extra=[
                "--dtype", dtype, "--lora-dir", folder, "--max-batch-rows", str(MAX_ROWS),
                "--log-level", "warning"]) as d:
            requests = mix(count, seed, schedulers_of(d))
            alone = [draw_one(d, r) for r in requests]
            calls, rows = figure(d, "latentd_unet_calls_total"), figure(d, "latentd_unet_rows_total")
            together, most = draw_together(d, requests)
            calls, rows = (figure(d, "latentd_unet_calls_total") - calls,
                           figure(d, "latentd_unet_rows_total") - rows)
            different = [r for r, a, b in zip(requests, alone, together) if a != b]
            refused = sorted({a[1] for a in alone if a[0] != 200})
            drawn = sum(a[0] == 200 for a in alone)
            print(f"{dtype}: {drawn} requests of {count} drawn alone and with up to {most:.0f} being drawn at once, "
                  f"{rows / calls:.1f} rows a call: {len(different)} differ; refused: {refused}")
            check(not different,
                  f"each answer beside others equals the one alone; the first that differs: {different[:1]}")
            check(drawn >= 0.8 * count,
                  f"at least 80 % of the requests are drawn, not refused: {drawn}")
            check(most >= 8, f"at least 8 requests are drawn at once, not {most}")
            check(rows > 4 * calls,
                  f"a UNet call has more than 4 rows on average: {rows} rows in {calls} calls")
            check(len({str(a[1]) for a in alone if a[0] == 200}) == drawn,
                  "no two requests draw the same picture")


if __name__ == "__main__":
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 24
    for dtype in sys.argv[5:] or ("f32", "bf16"):
        drawn_together(sys.argv[1], sys.argv[2], dtype, number, sys.argv[4] if len(sys.argv) > 4 else "1")
    done()
