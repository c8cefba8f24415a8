"""Trains with other projects' configurations, unchanged: a LoraConfig of peft and the
configuration of deepspeed-diffusers. usage: train_seeds_http.py EXECUTABLE MODEL"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done  # noqa: E402
from event_source import EventSource  # noqa: E402
from trainer import Trainer, executable, make_pictures, model, root  # noqa: E402

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
# LoraConfig(...) of a script based on diffusers' train_dreambooth_lora.py. Its list names two
# layers that Stable Diffusion 1.5 does not have.
LORA_CONFIG = {"r": 2, "lora_alpha": 2, "lora_dropout": 0.2, "init_lora_weights": "gaussian",
               "target_modules": [*ATTENTION, "add_k_proj", "add_v_proj"]}
OURS_LEFT_OUT = {"rank": None, "dropout": None}  # the same fields under JOB's names

# The whole cfg/default.json of deepspeed-diffusers, except use_fp16.enabled, which a CPU does not
# support.
DEEPSPEED = {
    "num_epochs": 1, "validation_epochs": 10, "max_train_steps": 0, "lr_warmup_steps": 500, "save_interval": 1000,
    "seed": 42, "validation_prompts": ["water turtle"],
    "pretrained_model_name_or_path": "model/stable-diffusion-v1-5", "dataset_dir": "datasets/pokemon-blip-captions",
    "imagefolder": False, "checkpoint_dir": "sd-result/checkpoint-test", "output_dir": "/sd-result/sd-pokemon",
    "use_lora": {"action": False, "rank": 32, "alpha": 32}, "dataloader_num_workers": 8,
    "resume_from_checkpoint": True, "use_ema": False, "offline": True, "resolution": 512, "center_crop": True,
    "random_flip": True,
    "use_fp16": {"enabled": False, "auto_cast": False, "loss_scale": 0, "initial_scale_power": 16,
                 "loss_scale_window": 1000, "hysteresis": 2, "consecutive_hysteresis": False, "min_loss_scale": 1},
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.0001, "warmup_num_steps": 1000}},
    "wall_clock_breakdown": False, "wandb": {"enabled": False, "group": "ddp", "project": "deepspeed-diffusers"},
    "flops_profiler": {"enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True,
                       "output_file": None},
    "zero_optimization": {"stage": 1, "offload_param": {"device": "auto"}, "offload_optimizer": {"device": "auto"}}}


def tensors(file):
    """Returns the header of a safetensors file without its metadata, and the tensors' bytes."""
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8:8 + size])
    header.pop("__metadata__")
    return header, file[8 + size:]


def a_lora_config_trains_what_the_model_has(d):
    id = d.start(**LORA_CONFIG, **OURS_LEFT_OUT)
    job = d.wait(id)
    r = d.get(f"/jobs/{id}/adapter/kohya")
    check(r.status == 404 and 'save_format "both"' in r.error()["message"] and "kohya_file" not in job["result"],
          f"without save_format both there is no kohya file: {r.status} {r.body} {job['result']}")
    warned = [json.loads(e.data)["message"] for e in EventSource(d, f"/jobs/{id}/events", 0).follow()
              if e.kind == "warning"]
    print(warned)
    check(len(warned) == 2 and "add_k_proj" in warned[0] and "add_v_proj" in warned[1],
          f"a warning names each target layer that does not exist: {warned}")
    got = d.file(id)
    d.forget()
    id = d.start(**{**LORA_CONFIG, "target_modules": ATTENTION}, **OURS_LEFT_OUT, save_format="both")
    job = d.wait(id)
    with open(job["result"]["kohya_file"], "rb") as f:
        second = f.read()
    r = d.get(f"/jobs/{id}/adapter/kohya")
    check(r.status == 200 and r.body == second and b"lora_unet_" in second,
          f"the second file has kohya's names: {r.status}")
    check(d.get(f"/jobs/{id}/adapter").body == d.file(id) != second,
          "the first file has diffusers' names")
    print(f"{len(second)} bytes in kohya's format, {len(d.file(id))} in diffusers'")
    check(tensors(got) == tensors(d.file(id)),
          "the adapter has the tensors of the four existing layers")
    r = d.train(name="none", target_modules=["add_k_proj", "add_v_proj"])
    check(r.status == 400 and r.error()["param"] == "target_modules" and
          "add_k_proj, add_v_proj is not allowed" in r.error()["message"],
          f"a job whose target layers do not exist is refused: {r.body}")


def deepspeed_diffusers_own_configuration_is_trained():
    stripes, folder = (os.path.join(root, "sets", name) for name in ("stripes", DEEPSPEED["dataset_dir"]))
    os.makedirs(folder)
    for name in ("0.png", "0.txt", "1.png", "1.txt"):
        shutil.copy(os.path.join(stripes, name), folder)
    config, out = os.path.join(root, "default.json"), os.path.join(root, "pokemon")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(DEEPSPEED, f)
    p = subprocess.run([executable, "train", "--model", model, "--deepspeed-config", config, "--name", "pokemon",
                        "--dataset-root", os.path.join(root, "sets"), "--out", out], capture_output=True, text=True)
    check(p.returncode == 0, f"latentd train succeeds: {p.stderr}")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    print(steps)
    check([(s["step"], s["learning_rate"]) for s in steps] == [(1, 0)],
          f"the run makes one step, the first of the warm-up: {steps}")
    check(os.path.exists(os.path.join(out, "model", "unet", "config.json")),
          "the whole UNet is saved")
    check(os.path.exists(os.path.join(out, "validation", "step-1", "0-0.png")),
          "the validation picture is saved")


try:
    make_pictures()
    with Trainer() as daemon:
        a_lora_config_trains_what_the_model_has(daemon)
    deepspeed_diffusers_own_configuration_is_trained()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
