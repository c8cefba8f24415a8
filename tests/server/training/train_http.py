"""Training over HTTP with the bundled checkpoint: a finished job's adapter can be used by name
and has the bytes of `latentd train`, whatever else the daemon does meanwhile. Each kind of
wrong job has its own error. usage: train_http.py EXECUTABLE MODEL"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402
from metrics import read  # noqa: E402
from trainer import JOB, STEPS, Trainer, executable, make_pictures, model, root  # noqa: E402


def train_alone(where="alone", **fields):
    """Runs the job with `latentd train`. Returns its exit status, its errors and the adapter's
    bytes."""
    config = os.path.join(root, "job.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump({**JOB, **fields}, f)
    out = os.path.join(root, where)
    p = subprocess.run([executable, "train", "--model", model, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out, "-q"], capture_output=True, text=True)
    with open(os.path.join(out, "stripes.safetensors"), "rb") as f:
        return p.returncode, p.stderr, f.read()


def losses_alone():
    with open(os.path.join(root, "alone", "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line)["loss"] for line in f]


def trained_alone():
    status, log, adapter = train_alone()
    check(status == 0, f"latentd train: {log}")
    check(len(losses_alone()) == STEPS, f"{len(losses_alone())} lines of metrics")
    return adapter


def it_goes_back_to_a_checkpoint(alone):
    losses = losses_alone()
    status, log, adapter = train_alone(resume_from_checkpoint="checkpoint-8")
    check(status == 0 and "checkpoint-16.aside" in log,
          f"training resumes from step 8 on request: {status} {log}")
    check(adapter == alone and losses_alone() == losses,
          "training from step 8 on gives the same bytes and losses")
    names = sorted(n for n in os.listdir(os.path.join(root, "alone")) if n.startswith("checkpoint-"))
    check(names == ["checkpoint-12", "checkpoint-12.aside", "checkpoint-16", "checkpoint-16.aside",
                    "checkpoint-4", "checkpoint-8"],
          f"later checkpoints are renamed to .aside: {names}")
    status, log, _ = train_alone(resume_from_checkpoint="checkpoint-5")
    check(status == 1 and "resume_from_checkpoint: checkpoint-5 is not allowed" in log and
          "checkpoint-4, checkpoint-8, checkpoint-12, checkpoint-16" in log,
          f"the error for an unknown checkpoint names the existing ones: {log}")
    for fields, words in (({"optimizer": "lion"}, 'optimizer: "lion" is not allowed; "adamw", as in the checkpoint'),
                          ({"rank": 8}, "rank: 8 is not allowed; 4, as in the checkpoint"),
                          ({"use_ema": True}, "use_ema: true is not allowed; false, as in the checkpoint")):
        status, log, _ = train_alone(**fields)
        check(status == 1 and words in log, f"a resumed job with another state is refused: {fields}: {log}")


def the_adapter_is_there_by_name(alone):
    with Trainer() as d:
        id = d.start()
        job = d.wait(id)
        check(job["step"] == STEPS and job["result"]["adapter"] == "stripes" and job["metrics"]["loss"] > 0,
              f"the job has its step, result and loss: {job}")
        check(d.file(id) == alone, "the daemon's bytes are those of latentd train")
        values = read(d)
        check(values['latentd_train_jobs{state="succeeded"}'] == 1 and values['latentd_train_jobs{state="running"}'] == 0 and
              values["latentd_train_steps_total"] == values["latentd_train_step_seconds_count"] == STEPS and
              abs(values["latentd_train_loss"] - job["metrics"]["loss"]) < 1e-6,
              f"the metrics count the job and its steps: {[v for v in values.items() if 'train' in v[0]]}")
        lora = d.get("/loras/stripes").json()
        check(lora["state"] == "loaded" and lora["unmatched"] == [],
              f"the trained adapter is loaded: {lora}")
        plain = d.latents(loras=[])
        check(d.latents(loras=[{"name": "stripes", "weight": 1}]) != plain,
              "the trained adapter changes the picture")
        check(d.latents(loras=[{"name": "stripes", "weight": 0}]) == plain,
              "at weight 0 the adapter does not change the picture")


def decoding_threads_change_no_byte(alone):
    for threads in (1, 7):
        status, log, again = train_alone(f"threads-{threads}", dataloader_num_workers=threads)
        check(status == 0 and again == alone,
              f"{threads} threads that decode pictures give the same bytes: {log}")


# The keys of deepspeed-diffusers' cfg/default.json, except those about other programs' files.
DEEPSPEED = {
    "num_epochs": 2, "validation_epochs": 10, "max_train_steps": 0, "lr_warmup_steps": 3, "save_interval": 2,
    "seed": 42, "validation_prompts": [], "pretrained_model_name_or_path": "model/sd", "dataset_dir": "stripes",
    "checkpoint_dir": "result/checkpoint", "use_lora": {"action": True, "rank": 4, "alpha": 2},
    "dataloader_num_workers": 8, "resume_from_checkpoint": True, "use_ema": False, "offline": True, "resolution": 64,
    "center_crop": True, "random_flip": True, "use_fp16": {"enabled": False, "loss_scale": 0},
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.02}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_num_steps": 1000}},
    "wandb": {"enabled": False}, "zero_optimization": {"stage": 1}}
THE_SAME = {
    "num_train_epochs": 2, "lr_scheduler": "warmup_log", "lr_warmup_steps": 3, "checkpointing_steps": 2, "seed": 42,
    "rank": 4, "alpha": 2, "center_crop": True, "gradient_accumulation_steps": 2, "learning_rate": 2e-3,
    "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_epsilon": 1e-7, "adam_weight_decay": 0.02, "max_grad_norm": 0,
    "image_interpolation_mode": "bilinear", "max_train_steps": 0, "caption_dropout": 0, "dropout": 0}


def train_deepspeed(config, *more):
    path = os.path.join(root, "cfg.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return subprocess.run([executable, "train", "--model", model, "--deepspeed-config", path, "--dataset-root",
                           os.path.join(root, "sets"), "--out", os.path.join(root, "deepspeed"), *more],
                          capture_output=True, text=True)


def a_configuration_of_deepspeed_diffusers_is_trained():
    status, log, same = train_alone("the-same", **THE_SAME)
    check(status == 0, f"the same job in latentd's own fields is trained: {log}")
    p = train_deepspeed(DEEPSPEED, "--name", "stripes")
    check(p.returncode == 0 and "zero_optimization has no effect: each process" in p.stderr, f"{p.stderr}")
    with open(os.path.join(root, "deepspeed", "stripes.safetensors"), "rb") as f:
        check(f.read() == same,
              "a DeepSpeed configuration trains the same adapter as latentd's own fields")
    for config, more, words in (
            ({**DEEPSPEED, "zero": 1}, ("--name", "x"), "zero: 1 is not allowed"),
            ({**DEEPSPEED, "wandb": {"enabled": True}}, ("--name", "x"), "wandb.enabled: true is not allowed"),
            (DEEPSPEED, (), "give --name NAME with --deepspeed-config"),
            (DEEPSPEED, ("--name", "x", "--config", "job.json"), "exactly one of --config")):
        p = train_deepspeed(config, *more)
        check(p.returncode != 0 and words in p.stderr, f"{words}: {p.returncode} {p.stderr}")


# Keys of train_network.py's --config_file, in sections as people write them.
KOHYA = """
[model]
pretrained_model_name_or_path = "runwayml/stable-diffusion-v1-5"
[dataset]
train_data_dir = "elsewhere"
cache_latents = true
flip_aug = true # half of them
[training]
output_dir = './out'
output_name = "stripes"
max_train_epochs = 1
save_every_n_epochs = 1
save_last_n_epochs = 1
train_batch_size = 1
seed = 42
learning_rate = 1e-3
unet_lr = 2e-3
lr_scheduler = "cosine"
lr_warmup_steps = 2
optimizer_type = "AdamW"
optimizer_args = ["weight_decay=0.02", "betas=0.8,0.99"]
network_module = "networks.lora"
network_dim = 4
network_alpha = 2
network_train_unet_only = true
noise_offset = 0.05
min_snr_gamma = 5.0
xformers = true
"""
KOHYA_SET = """
[general]
caption_extension = ".txt"
[[datasets]]
resolution = 64
batch_size = 2
  [[datasets.subsets]]
  image_dir = 'stripes'
  num_repeats = 3
"""
THE_SAME_AS_KOHYA = {
    "max_train_steps": 0, "num_train_epochs": 3, "checkpointing_steps": 0, "checkpointing_epochs": 3,
    "checkpoints_total_limit": 1, "seed": 42, "rank": 4, "alpha": 2, "init_lora_weights": "kaiming",
    "target_modules": ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out"],
    "save_format": "kohya", "center_crop": True, "cache_latents": True, "learning_rate": 2e-3, "lr_scheduler": "cosine",
    "lr_warmup_steps": 2, "adam_weight_decay": 0.02, "adam_beta1": 0.8, "adam_beta2": 0.99, "noise_offset": 0.05,
    "snr_gamma": 5, "caption_dropout": 0, "dropout": 0}


def train_kohya(config, dataset, *more):
    paths = [os.path.join(root, name) for name in ("lora.toml", "set.toml")]
    for path, text in zip(paths, (config, dataset)):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    return subprocess.run([executable, "train", "--model", model, "--kohya-config", paths[0], "--dataset-root",
                           os.path.join(root, "sets"), "--out", os.path.join(root, "kohya"),
                           *(["--kohya-dataset", paths[1]] if dataset else []), *more], capture_output=True, text=True)


def files_of_kohya_are_trained():
    status, log, same = train_alone("the-same-as-kohya", **THE_SAME_AS_KOHYA)
    check(status == 0, f"the same job: {log}")
    p = train_kohya(KOHYA, KOHYA_SET)
    check(p.returncode == 0 and "xformers has no effect: attention" in p.stderr and
          "num_repeats: an epoch" in p.stderr, f"{p.stderr}")
    with open(os.path.join(root, "kohya", "stripes.safetensors"), "rb") as f:
        check(f.read() == same, "its adapter is that of the same job in our words")
    names = [n for n in os.listdir(os.path.join(root, "kohya")) if n.startswith("checkpoint-")]
    check(names == ["checkpoint-9"], f"three batches an epoch, three repeats, one is kept: {names}")
    for config, dataset, more, words in (
            (KOHYA + "clip_skip = 2\n", KOHYA_SET, (), "clip_skip: 2 is not allowed; 1: captions"),
            (KOHYA + "learning_rat = 2\n", KOHYA_SET, (), "learning_rat: 2 is not allowed; it is no key"),
            (KOHYA + "x = \n", KOHYA_SET, (), "lora.toml: not valid TOML at line 29"),
            (KOHYA, KOHYA_SET + "flip_augs = true\n", (), "flip_augs: true is not allowed; it is no key of [[datasets"),
            (KOHYA, KOHYA_SET.replace("'stripes'", "'nowhere'"), (), "nowhere"),
            (KOHYA + 'sample_prompts = "/nowhere/p.txt"\n', KOHYA_SET, (), "sample_prompts: "),
            (KOHYA, KOHYA_SET, ("--config", "job.json"), "exactly one of --config")):
        p = train_kohya(config, dataset, *more)
        check(p.returncode != 0 and words in p.stderr, f"{words}: {p.returncode} {p.stderr}")
    p = subprocess.run([executable, "train", "--model", model, "--config", "job.json", "--kohya-dataset", "set.toml",
                        "--out", os.path.join(root, "kohya")], capture_output=True, text=True)
    check(p.returncode != 0 and "give --kohya-dataset SET.toml with" in p.stderr, f"{p.stderr}")


def parts_drawn_once_are_kept_for_the_next_job():
    """Pictures larger than the resolution: cropped anew each time, or only once with
    cache_latents."""
    def files(where):
        return {name for _, _, names in os.walk(os.path.join(root, where, "cache")) for name in names}
    _, _, once = train_alone("once", cache_latents=True)
    latents, texts = len(files("once")), len(files("alone"))
    check(latents == texts + 10,
          f"the cache keeps the latents of 5 pictures and of their mirror images: {latents} files, {texts} without latents")
    kept = files("once")
    for name in ("metrics.jsonl", "stripes.safetensors"):
        os.remove(os.path.join(root, "once", name))
    for name in os.listdir(os.path.join(root, "once")):
        if name.startswith("checkpoint-"):
            shutil.rmtree(os.path.join(root, "once", name))
    check(train_alone("once", cache_latents=True)[2] == once,
          "a job that uses the cache writes the same bytes")
    check(files("once") == kept, "the second job adds no files to the cache")


def pixels_of(file):
    """Returns a PNG's pixel data, whatever its text chunks say."""
    at, found = 8, b""
    while at < len(file):
        size, kind = struct.unpack(">I4s", file[at:at + 8])
        found += file[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return zlib.decompress(found)


def missing_class_pictures_are_drawn():
    """Prior preservation: missing class pictures are drawn once, as POST /generate draws them."""
    prior = {"with_prior_preservation": True, "class_prompt": "a house", "num_class_images": 4, "max_train_steps": 3}
    folder = os.path.join(root, "sets", "houses")
    os.makedirs(folder)
    shutil.copy(os.path.join(root, "sets", "stripes", "1.png"), os.path.join(folder, "own.png"))
    with Trainer() as d:
        id = d.start(class_data_dir="houses", **prior)
        check(wait_until(lambda: os.path.exists(os.path.join(folder, "drawn-0.png")), 60),
              "a class picture is drawn")
        d.kill()
    with Trainer(state=d.state) as d:
        d.wait(id)
        check(sorted(os.listdir(folder)) == ["drawn-0.png", "drawn-1.png", "drawn-2.png", "own.png"],
              f"three class pictures are drawn beside the existing one: {sorted(os.listdir(folder))}")
        for i in range(3):
            with open(os.path.join(folder, f"drawn-{i}.png"), "rb") as f:
                drawn = f.read()
            asked = d.generate({"prompt": "a house", "seed": JOB["seed"] + i, "width": 64, "height": 64, "loras": []},
                               {"Accept": "image/png"})
            check(pixels_of(drawn) == pixels_of(asked.body),
                  f"class picture {i} equals that of POST /generate")
        first = d.file(id)
        times = [os.stat(os.path.join(folder, name)).st_mtime_ns for name in sorted(os.listdir(folder))]
        again = d.start(name="again", class_data_dir="houses", **prior)
        d.wait(again)
        check(d.file(again, "again") == first, "the second job trains the same bytes")
        check(times == [os.stat(os.path.join(folder, name)).st_mtime_ns for name in sorted(os.listdir(folder))],
              "existing class pictures are not drawn again")
        own = d.start(name="own", **{**prior, "num_class_images": 2})
        d.wait(own)
        check(len(os.listdir(os.path.join(d.state, "jobs", own, "class"))) == 2,
              "without a folder the class pictures are in the job's folder")
    # Class pictures are training data, so options of the daemon do not change them.
    with Trainer("--default", "negative_prompt=snow", "--default", "num_inference_steps=3", "--default",
                 "scheduler=euler") as d:
        id = d.start(name="defaults", **{**prior, "num_class_images": 2})
        d.wait(id)
        for i in range(2):
            shown = []
            for where in (folder, os.path.join(d.state, "jobs", id, "class")):
                with open(os.path.join(where, f"drawn-{i}.png"), "rb") as f:
                    shown.append(pixels_of(f.read()))
            check(shown[0] == shown[1], f"class picture {i} is the same with `serve --default`")
    shutil.rmtree(folder)


def requests_and_the_job_leave_each_other_alone(alone):
    with Trainer() as d:
        plain = d.picture()
        id = d.start()
        drawn, waits = [], []

        def client():
            while not ended.is_set():
                begin = time.monotonic()
                drawn.append(d.picture())
                waits.append(time.monotonic() - begin)
        ended = threading.Event()
        threads = [threading.Thread(target=client) for _ in range(2)]
        for t in threads:
            t.start()
        check(wait_until(lambda: len(drawn) >= 6, 60), "pictures are drawn beside the job")
        ended.set()
        for t in threads:
            t.join()
        d.wait(id)
        check(all(p == plain for p in drawn), "pictures are the same beside a job")
        check(d.file(id) == alone, "the job's bytes are the same beside requests")
        print(f"{len(drawn)} pictures beside the job, {max(waits):.2f} s at most")


def a_kill_and_a_pause_change_no_byte(alone):
    d = Trainer()
    with d:
        id = d.start()
        check(wait_until(lambda: d.job(id)["step"] >= 6, 60), "the job has made six steps")
        d.kill()
    with Trainer(state=d.state) as d:
        check(wait_until(lambda: d.job(id)["step"] >= 8, 60),
              "the job resumes by itself after the restart")
        r = d.request("POST", f"/jobs/{id}/pause")
        check(r.status in (200, 202), f"pausing the job is accepted: {r.status} {r.body}")
        paused = d.wait(id, "paused")
        check(paused["step"] < STEPS, f"the job pauses before its last step: {paused['step']}")
        d.request("POST", f"/jobs/{id}/resume")
        job = d.wait(id)
        check(job["attempts"] == 3, f"{job['attempts']} attempts")
        check(d.file(id) == alone, "a killed, paused and resumed job writes the same bytes")


def a_stopped_daemon_keeps_the_step(alone):
    d = Trainer()
    with d:
        id = d.start(checkpointing_steps=0)
        check(wait_until(lambda: d.job(id)["step"] >= 5, 60), "the job has made five steps")
    kept = sorted(os.listdir(os.path.join(d.state, "jobs", id)))
    check(any(name.startswith("checkpoint-") for name in kept),
          f"SIGTERM writes a checkpoint: {kept}")
    with Trainer(state=d.state) as d:
        d.wait(id)
        check(d.file(id) == alone, "a job that was stopped by SIGTERM writes the same bytes")


def wrong_jobs_have_their_own_errors():
    cases = [  # fields, status, param or None, words of the message
        ({"name": "a\nb"}, 400, "name", "control characters"),
        ({"name": "../up"}, 400, "name", "FOLDER/NAME"),
        ({"name": None}, 400, "name", "missing"),
        ({"dataset": "nope"}, 400, "dataset", "--dataset-root"),
        ({"dataset": "../sets/stripes"}, 400, "dataset", "--dataset-root"),
        ({"dataset": "/etc"}, 400, "dataset", "--dataset-root"),
        ({"rnk": 4}, 400, "rnk", "nearest is rank"),
        ({"rank": 0}, 400, "rank", "from 1"),
        ({"rank": "big"}, 400, "rank", "an integer"),
        ({"max_train_steps": None}, 400, "max_train_steps", "num_train_epochs"),
        ({"mixed_precision": "fp16"}, 400, "mixed_precision", "bf16"),
        ({"mixed_precision": "fp8"}, 501, "mixed_precision", "fp8"),
        ({"method": "full"}, 400, "rank", "with method \"lora\" only"),
        ({"learning_rate": -1}, 400, "learning_rate", ""),
        ({"with_prior_preservation": True, "class_prompt": "x", "class_data_dir": "../x"}, 400, "class_data_dir",
         "--dataset-root"),
        ({"target_modules": ["no_such_layer"]}, 400, "target_modules", "no_such_layer"),
        ({"resume_from_checkpoint": "checkpoint-4"}, 400, "resume_from_checkpoint", "has no checkpoints"),
        ({"dataset": "empty"}, 400, None, "no PNG, JPEG or WebP"),
        ({"masks": "files"}, 400, None, "0.png: it has no mask"),
    ]
    with Trainer() as d:
        for fields, status, param, words in cases:
            r = d.train(**fields)
            error = r.json().get("error", {})
            check(r.status == status and (not param or error.get("param") == param) and
                  words in error.get("message", ""), f"{fields}: {r.status} {r.body[:300]}")
        check(d.get("/jobs").json()["jobs"] == [], "no refused job is stored")
        check(d.get("/health").status == 200 and d.picture(),
              "the daemon answers and draws after the refusals")
    with Daemon(executable, model, extra=["--state-dir", tempfile.mkdtemp(dir=root)]) as d:
        r = d.request("POST", "/train", json.dumps(JOB), {"Content-Type": "application/json"})
        check(r.status == 501 and "--dataset-root" in r.error()["message"],
              f"without --dataset-root the error names the option: {r.body}")


try:
    make_pictures()
    reference = trained_alone()
    it_goes_back_to_a_checkpoint(reference)
    decoding_threads_change_no_byte(reference)
    a_configuration_of_deepspeed_diffusers_is_trained()
    files_of_kohya_are_trained()
    parts_drawn_once_are_kept_for_the_next_job()
    missing_class_pictures_are_drawn()
    the_adapter_is_there_by_name(reference)
    requests_and_the_job_leave_each_other_alone(reference)
    a_kill_and_a_pause_change_no_byte(reference)
    a_stopped_daemon_keeps_the_step(reference)
    wrong_jobs_have_their_own_errors()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
