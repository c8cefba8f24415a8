#!/usr/bin/env python3
"""diffusers behind a minimal HTTP server, as an example of what can be written in an afternoon. It
serves one request at a time, in order of arrival; `--max-queue` requests may wait, others get a
429.

POST / {"prompt", "num_inference_steps", "guidance_scale", "seed", "width", "height"} answers with a
PNG. "listening on PORT" is printed once the pipeline is loaded. usage: serve_diffusers.py MODEL"""

import argparse
import http.server
import io
import json
import threading

import torch
from diffusers import StableDiffusionPipeline


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.count_lock:
            full = server.here > server.max_queue
            server.here += not full
        if full:
            self.answer(429, b"")
            return
        try:
            with server.turn, torch.inference_mode():
                picture = server.pipeline(
                    fields["prompt"],
                    num_inference_steps=fields["num_inference_steps"],
                    guidance_scale=fields["guidance_scale"],
                    width=fields["width"],
                    height=fields["height"],
                    generator=torch.Generator("cpu").manual_seed(fields["seed"]),
                ).images[0]
            data = io.BytesIO()
            picture.save(data, "PNG")
            self.answer(200, data.getvalue())
        finally:
            with server.count_lock:
                server.here -= 1

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-queue", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.pipeline = StableDiffusionPipeline.from_pretrained(
        options.model, torch_dtype=getattr(torch, options.dtype), safety_checker=None
    )
    server.pipeline.set_progress_bar_config(disable=True)
    server.pipeline.unet.to(memory_format=torch.channels_last)
    server.turn, server.count_lock = threading.Lock(), threading.Lock()
    server.here, server.max_queue = 0, options.max_queue
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
