"""Wrong training jobs and data sets over HTTP: each is refused with its own error, which names
what is wrong, the given value and what would be right. None starts a job, and the daemon goes
on. usage: train_refusals.py EXECUTABLE MODEL"""
import gzip
import io
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import lora_file  # noqa: E402
from daemon import check, done  # noqa: E402
from picture import encode  # noqa: E402
from trainer import JOB, Trainer, make_pictures, model, root  # noqa: E402

SETS = os.path.join(root, "sets")
ABSOLUTE = os.path.join(root, "absolute.png")  # an absolute path in an archive; must not be written
JSON, TAR = {"Content-Type": "application/json"}, {"Content-Type": "application/x-tar"}
WARM = {"lr_scheduler": "linear"}
EMA = {"use_ema": True}
PICTURE = encode(64, 64, lambda x, y: (4 * x, 4 * y, 90))

# Wrong fields in a job that is otherwise right (None: left out), the status, the field named by the
# error, words about what would be right.
FIELDS = [
    ({"name": None}, 400, "name", "a string"),
    ({"name": 7}, 400, "name", "a string"),
    ({"name": ""}, 400, "name", "1 to"),
    ({"name": "a\nb"}, 400, "name", "control characters"),
    ({"name": "../up"}, 400, "name", "FOLDER/NAME"),
    ({"name": "x" * 300}, 400, "name", "FOLDER/NAME"),
    ({"name": "rescan"}, 400, "name", "rescan"),
    ({"name": "taken"}, 409, "name", "DELETE /loras/taken"),
    ({"dataset": None}, 400, "dataset", "a string"),
    ({"dataset": ["stripes"]}, 400, "dataset", "a string"),
    ({"dataset": "nope"}, 400, "dataset", "that is there"),
    ({"dataset": "a_file"}, 400, "dataset", "that is there"),
    ({"dataset": "../sets/stripes"}, 400, "dataset", "--dataset-root"),
    ({"dataset": "/etc"}, 400, "dataset", "--dataset-root"),
    ({"dataset": "linked_out"}, 400, "dataset", "leads out of it"),
    ({"dataset": "linked_out/deeper"}, 400, "dataset", "leads out of it"),
    ({"dataset": "dangling"}, 400, "dataset", "that is there"),
    ({"with_prior_preservation": True, "class_prompt": "x", "class_data_dir": "linked_out"}, 400, "class_data_dir",
     "leads out of it"),
    ({"data_parallel": "sum"}, 400, "data_parallel", '"share"'),
    ({"max_train_steps": None}, 400, "max_train_steps", "num_train_epochs"),
    ({"max_train_steps": -3}, 400, "max_train_steps", "from 0"),
    ({"max_train_steps": 1.5}, 400, "max_train_steps", "an integer"),
    ({"num_train_epochs": "two"}, 400, "num_train_epochs", "an integer"),
    ({"method": "dreambooth"}, 400, "method", '"lora"'),
    ({"method": "full"}, 400, "rank", 'method "lora" only'),
    ({"rank": 0}, 400, "rank", "from 1"),
    ({"rank": 1e9}, 400, "rank", "to 4096"),
    ({"rank": "big"}, 400, "rank", "an integer"),
    ({"rank": [4]}, 400, "rank", "an integer"),
    ({"rank": True}, 400, "rank", "an integer"),
    ({"rnk": 4}, 400, "rnk", "nearest is rank"),
    ({"learnig_rate": 1}, 400, "learnig_rate", "nearest is learning_rate"),
    ({"alpha": -1}, 400, "alpha", "from 0"),
    ({"alpha": 4, "lora_alpha": 4}, 400, "lora_alpha", "only one"),
    ({"dropout": 1}, 400, "dropout", "below 1"),
    ({"target_modules": []}, 400, "target_modules", "a list"),
    ({"target_modules": "to_q"}, 400, "target_modules", "a list"),
    ({"target_modules": ["to_q", 3]}, 400, "target_modules", "a list"),
    ({"target_modules": ["to_qq", "no_such_layer"]}, 400, "target_modules", "a layer's name: "),
    ({"train_text_encoder": True, "text_encoder_target_modules": ["to_q"]}, 400, "text_encoder_target_modules",
     "q_proj"),
    ({"init_lora_weights": "pissa"}, 400, "init_lora_weights", "kaiming"),
    ({"text_encoder_target_modules": ["fc1"]}, 400, "text_encoder_target_modules", "train_text_encoder"),
    ({"text_encoder_learning_rate": 1e-5}, 400, "text_encoder_learning_rate", "train_text_encoder"),
    ({"seed": -1}, 400, "seed", "from 0"),
    ({"seed": 1e17}, 400, "seed", "to 9"),
    ({"resolution": 100}, 400, "resolution", "multiple of 8"),
    ({"resolution": 16}, 400, "resolution", "from 64"),
    ({"resolution": 100000}, 400, "resolution", "to 2048"),
    ({"center_crop": "yes"}, 400, "center_crop", "true or false"),
    ({"random_flip": 1}, 400, "random_flip", "true or false"),
    ({"image_interpolation_mode": "area"}, 400, "image_interpolation_mode", "lanczos"),
    ({"bucket_reso_steps": 64}, 400, "bucket_reso_steps", "enable_bucket"),
    ({"enable_bucket": True, "bucket_reso_steps": 20}, 400, "bucket_reso_steps", "multiple of 8"),
    ({"enable_bucket": True, "min_bucket_reso": 1032}, 400, "min_bucket_reso", "max_bucket_reso"),
    ({"validation_share": 0.95}, 400, "validation_share", "0.9"),
    ({"max_train_samples": -1}, 400, "max_train_samples", "from 0"),
    ({"dataloader_num_workers": 1000}, 400, "dataloader_num_workers", "to 64"),
    ({"caption_dropout": 1.5}, 400, "caption_dropout", "to 1"),
    ({"masks": "circles"}, 400, "masks", "random"),
    ({"instance_prompt": ""}, 400, "instance_prompt", "1 to"),
    ({"with_prior_preservation": True}, 400, "class_prompt", "with_prior_preservation"),
    ({"with_prior_preservation": True, "class_prompt": "x", "class_data_dir": "damaged", "num_class_images": 1}, 400,
     None, "class_data_dir: 1 of 1 pictures"),
    ({"prior_loss_weight": 1}, 400, "prior_loss_weight", "with_prior_preservation"),
    ({"train_batch_size": 0}, 400, "train_batch_size", "from 1"),
    ({"train_batch_size": 100000}, 400, "train_batch_size", "from 1 to"),
    ({"batch_size": 2}, 400, "batch_size", "only one"),
    ({"gradient_accumulation_steps": 0}, 400, "gradient_accumulation_steps", "from 1"),
    ({"gradient_checkpointing": None, "gradient_checkpointing ": True}, 400, "gradient_checkpointing ", "nearest"),
    ({"mixed_precision": "fp16"}, 400, "mixed_precision", "on cpu"),
    ({"mixed_precision": "fp8"}, 501, "mixed_precision", "no operations"),
    ({"mixed_precision": 16}, 400, "mixed_precision", '"bf16"'),
    ({"loss_scale": 128}, 400, "loss_scale", 'mixed_precision "fp16"'),
    ({"adapter_type": "locon"}, 400, "adapter_type", '"lora", "loha" or "lokr"'),
    ({"adapter_type": "loha", "use_dora": True}, 400, "use_dora", 'adapter_type "lora"'),
    ({"adapter_type": "lokr", "dropout": None, "lokr_factor": 0}, 400, "lokr_factor", "from 1"),
    ({"lokr_decompose_both": True}, 400, "lokr_decompose_both", 'adapter_type "lokr"'),
    ({"use_rslora": 1}, 400, "use_rslora", "true or false"),
    ({"shuffle_caption": "yes"}, 400, "shuffle_caption", "true or false"),
    ({"keep_tokens": 1}, 400, "keep_tokens", "shuffle_caption true"),
    ({"shuffle_caption": True, "keep_tokens": -1}, 400, "keep_tokens", "from 0"),
    ({"caption_separator": ";"}, 400, "caption_separator", "shuffle_caption true"),
    ({"shuffle_caption": True, "keep_tokens_separator": ""}, 400, "keep_tokens_separator", "a string"),
    ({"optimizer": "sgd"}, 400, "optimizer", '"adamw", "lion", "adafactor" or "prodigy"'),
    ({"optimizer": "lion", "lion_beta1": 1}, 400, "lion_beta1", "below 1"),
    ({"lion_beta2": 0.9}, 400, "lion_beta2", 'optimizer "lion"'),
    ({"optimizer": "adafactor", "adafactor_scale_parameter": 1}, 400, "adafactor_scale_parameter", "true or false"),
    ({"optimizer": "adafactor", "adafactor_relative_step": True, "learning_rate": 1e-3}, 400, "learning_rate",
     "adafactor_relative_step"),
    ({"adafactor_relative_step": True}, 400, "adafactor_relative_step", 'optimizer "adafactor"'),
    ({"optimizer": "adafactor", "adafactor_warmup_init": True}, 400, "adafactor_warmup_init",
     "adafactor_relative_step true"),
    ({"optimizer": "adafactor", "adafactor_clip_threshold": 0}, 400, "adafactor_clip_threshold", "above 0"),
    ({"optimizer": "adafactor", "adafactor_decay_rate": 0.8}, 400, "adafactor_decay_rate", "from -10 to 0"),
    ({"optimizer": "prodigy", "learning_rate": None}, 400, "learning_rate", "usually 1"),
    ({"optimizer": "prodigy", "learning_rate": 1, "prodigy_d0": 0}, 400, "prodigy_d0", "above 0"),
    ({"optimizer": "prodigy", "learning_rate": 1, "prodigy_d_coef": 0}, 400, "prodigy_d_coef", "above 0"),
    ({"optimizer": "prodigy", "learning_rate": 1, "prodigy_growth_rate": -1}, 400, "prodigy_growth_rate", "from 0"),
    ({"optimizer": "prodigy", "learning_rate": 1, "prodigy_beta3": 1}, 400, "prodigy_beta3", "below 1"),
    ({"prodigy_decouple": False}, 400, "prodigy_decouple", 'optimizer "prodigy"'),
    ({"prodigy_use_bias_correction": True}, 400, "prodigy_use_bias_correction", 'optimizer "prodigy"'),
    ({"prodigy_safeguard_warmup": True}, 400, "prodigy_safeguard_warmup", 'optimizer "prodigy"'),
    ({"learning_rate": -1}, 400, "learning_rate", "from 0"),
    ({"learning_rate": "1e-4"}, 400, "learning_rate", "a number"),
    ({"parameter_groups": [{"pattern": "x"}]}, 400, "parameter_groups", "learning_rate"),
    ({"adam_beta2": 1}, 400, "adam_beta2", "below 1"),
    ({"adam_epsilon": 0}, 400, "adam_epsilon", "above 0"),
    ({"max_grad_norm": -1}, 400, "max_grad_norm", "from 0"),
    ({"lr_scheduler": "cosine_annealing"}, 400, "lr_scheduler", '"cosine"'),
    ({"lr_warmup_steps": 10}, 400, "lr_warmup_steps", '"linear"'),
    ({**WARM, "lr_warmup_steps": 10, "lr_warmup_ratio": 0.1}, 400, "lr_warmup_ratio", "lr_warmup_steps"),
    ({"lr_scheduler": "polynomial", "lr_end": 1}, 400, "lr_end", "below the learning_rate"),
    ({"lr_scheduler": "piecewise_constant"}, 400, "lr_step_rules", "MULTIPLE:STEP"),
    ({"prediction_type": "sample"}, 400, "prediction_type", '"v_prediction"'),
    ({"snr_gamma": -5}, 400, "snr_gamma", "from 0"),
    ({"noise_offset": 11}, 400, "noise_offset", "to 10"),
    ({"ema_decay": 0.9}, 400, "ema_decay", "use_ema"),
    ({**EMA, "ema_power": 0.9}, 400, "ema_power", "use_ema_warmup"),
    ({**EMA, "ema_decay": 0.5, "ema_min_decay": 0.6}, 400, "ema_min_decay", "at most ema_decay"),
    ({"checkpointing_steps": -1}, 400, "checkpointing_steps", "from 0"),
    ({"checkpoints_total_limit": 1e9}, 400, "checkpoints_total_limit", "to 100000"),
    ({"resume_from_checkpoint": "out/checkpoint-4"}, 400, "resume_from_checkpoint", '"checkpoint-STEP"'),
    ({"resume_from_checkpoint": "checkpoint-4"}, 400, "resume_from_checkpoint", "has no checkpoints"),
    ({"save_format": "ckpt"}, 400, "save_format", '"kohya"'),
    ({"save_precision": "fp64"}, 400, "save_precision", '"fp32"'),
    ({"validation_steps": 5}, 400, "validation_prompts", "prompts"),
    ({"validation_prompts": ["x"]}, 400, "validation_steps", "from 1"),
    ({"report_to": "wandb"}, 501, "report_to", "nothing is sent"),
    ({"push_to_hub": True}, 501, "push_to_hub", "nothing is uploaded"),
    ({"output_dir": "/tmp"}, 501, "output_dir", "the daemon decides"),
    ({"network_module": "x"}, 501, "network_module", '"lora"'),
]
# Values of a wrong type for the other fields.
for wrong, words, names in (
        ("maybe", "true or false", "train_text_encoder cache_latents enable_bucket bucket_no_upscale skip_broken_images "
         "with_prior_preservation gradient_checkpointing use_8bit_adam scale_lr use_ema use_ema_warmup"),
        (3, "a string", "model image_column caption_column validation_negative_prompt validation_scheduler"),
        ("many", "an integer", "max_bucket_reso num_class_images initial_scale_power loss_scale_window hysteresis "
         "lr_num_cycles ema_update_after_step checkpointing_epochs validation_epochs num_validation_images "
         "validation_inference_steps validation_seed"),
        ("much", "a number", "min_loss_scale adam_beta1 adam_weight_decay max_grad_value lr_power lr_start_factor "
         "lr_eta_min input_perturbation ema_inv_gamma validation_guidance_scale")):
    FIELDS += [({name: wrong}, 400, name, words) for name in names.split()]
DOCUMENTED = os.path.join(os.path.dirname(__file__), "../../../docs/training-fields.md")
GOOD = json.dumps(JOB)
BODIES = [  # request body, headers, status, words
    (b"", JSON, 400, ""),
    (b"{", JSON, 400, "line 1"),
    (GOOD[:-1].encode() + b', "rank": 5}', JSON, 400, "duplicate"),
    (b"[]", JSON, 400, "object"),
    (GOOD.encode() + b"}", JSON, 400, "end"),
    (b'{"name": "\xff"}', JSON, 400, "decode"),
    (b"[" * 100000, JSON, 400, "nested deeper"),
    (GOOD.replace("0.002", "1e999").encode(), JSON, 400, "overflow"),
    (b'{"name": "' + b"x" * (8 << 20) + b'"}', JSON, 413, "bytes"),
    (GOOD.encode(), {"Content-Type": "text/plain"}, 415, "application/json"),
]


def entry(name, data=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def tar(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for e in entries:
            info, data = e if isinstance(e[0], tarfile.TarInfo) else entry(*e)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def announced(size):
    info = tarfile.TarInfo("a.png")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + PICTURE


ARCHIVES = [  # name and body of a PUT, status, words
    ("new", b"", 400, "0 bytes"),
    ("new", b"no archive at all" * 99, 400, "cannot be read"),
    ("new", tar(), 400, "archive is empty"),
    ("new", tar(("a.png", PICTURE * 20))[:9000], 400, "cannot be read"),
    ("new", gzip.compress(tar(("a.png", os.urandom(9000))))[:5000], 400, "cannot be read"),
    ("new", tar(("../a.png", PICTURE)), 400, "../a.png leads out"),
    ("new", tar(("b/../../a.png", PICTURE)), 400, "b/../../a.png leads out"),
    ("new", tar((ABSOLUTE, PICTURE)), 400, f"{ABSOLUTE} is absolute"),
    ("new", tar(entry("a.png", kind=tarfile.SYMTYPE, link="/etc/passwd")), 400, "symbolic link"),
    ("new", tar(("a.png", PICTURE), entry("b.png", kind=tarfile.LNKTYPE, link="a.png")), 400, "to another file"),
    ("new", tar(entry("a.png", kind=tarfile.CHRTYPE)), 400, "a device"),
    ("new", tar(entry("a.png", kind=tarfile.FIFOTYPE)), 400, "a FIFO"),
    ("new", tar(("a.png", PICTURE), ("a.png", PICTURE)), 400, "comes twice"),
    ("new", tar(("a\x01.png", PICTURE)), 400, "control character"),
    ("new", announced(1 << 50), 413, "more than"),
    ("new", tar(("a.txt", b"a string")), 400, "no PNG, JPEG or WebP"),
    ("new", tar(("a.png", PICTURE[:99])), 400, "cut short"),
    ("stripes", tar(("a.png", PICTURE)), 409, "stripes already"),
    ("..%2fup", tar(("a.png", PICTURE)), 400, "name"),
]


def head(width, height):
    """Returns a PNG whose header claims this size, with too few bytes of pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9)) + chunk(b"IEND", b""))


CAPTION = {"a.txt": b"a picture"}
FOLDERS = {  # files of a data set, words of the error
    "nothing": ({}, "its folder is empty"),
    "texts": ({"notes.txt": b"x"}, "notes.txt is none of these"),
    "no_png": ({"a.png": b"GIF89a" + bytes(99), **CAPTION}, "this is a GIF"),
    "cut": ({"a.png": PICTURE[:len(PICTURE) // 2], **CAPTION}, "cut short"),
    "damaged": ({"a.png": PICTURE[:60] + bytes(40) + PICTURE[100:], **CAPTION}, "damaged"),
    "bomb": ({"a.png": head(60000, 60000), **CAPTION}, "60000x60000 px"),
    "lying": ({"a.png": head(8000, 8000), **CAPTION}, "damaged"),
    "no_caption": ({"a.png": PICTURE}, "no caption"),
    "latin1": ({"a.png": PICTURE, "a.txt": b"caf\xe9"}, "UTF-8"),
    "two_captions": ({"a.png": PICTURE, "metadata.jsonl": b"", "metadata.csv": b""}, "there both"),
    "lost": ({"a.png": PICTURE, "metadata.jsonl": b'{"file_name": "b.png", "text": "x"}\n'}, "b.png"),
    "leads_out": ({"metadata.csv": b"file_name,text\n../stripes/0.png,x\n"}, "../stripes/0.png"),
    "not_json": ({"a.png": PICTURE, "metadata.jsonl": b'{"file_name": \n'}, "line 1"),
    "linked": ({"a.png": "/etc/hostname", **CAPTION}, "leads out"),
    "looped": ({"a.png": "a.png", **CAPTION}, "a.png"),
}


def make_folder(name, files):
    os.makedirs(os.path.join(SETS, name))
    for file, data in files.items():
        path = os.path.join(SETS, name, file)
        if isinstance(data, str):
            os.symlink(data, path)
        else:
            with open(path, "wb") as f:
                f.write(data)


def make_folders():
    outside = os.path.join(root, "outside", "deeper")
    os.makedirs(outside)
    os.symlink(os.path.dirname(outside), os.path.join(SETS, "linked_out"))
    os.symlink("nowhere", os.path.join(SETS, "dangling"))
    with open(os.path.join(SETS, "a_file"), "w", encoding="utf-8") as f:
        f.write("x")
    for name, (files, _) in FOLDERS.items():
        make_folder(name, files)


class Messages:
    """Collects all errors and checks that no two faults have the same message."""

    def __init__(self):
        self.seen = {}

    def note(self, what, error, words, param=None):
        message = error.get("message", "")
        check(words in message, f"{what}: {words!r} is not in {error}")
        if param:
            check(error.get("param") == param and param in message and error.get("value") and
                  error.get("allowed"),
                  f"{what}: the error has the field, its value and what is allowed: {error}")
        check(message not in self.seen, f"{what} and {self.seen.get(message)} have the same error: {message}")
        self.seen[message] = what


def no_field_is_left_out():
    with open(DOCUMENTED, encoding="utf-8") as f:
        names = re.findall(r"^\| `(\w+)` \|", f.read(), re.M)
    left_out = set(names) - {param for _, _, param, _ in FIELDS if param}
    check(len(names) > 70 and not left_out,
          f"of {len(names)} fields, {left_out} have no wrong value in the test")


def refused_at_once(d, messages):
    for fields, status, param, words in FIELDS:
        r = d.train(**fields)
        check(r.status == status, f"{fields}: {r.status} {r.body[:300]}")
        messages.note(f"{fields}", r.json().get("error", {}), words, param)
    for body, headers, status, words in BODIES:
        r = d.request("POST", "/train", body, headers)
        check(r.status == status, f"{body[:60]}: {r.status} {r.body[:300]}")
        messages.note(f"{body[:60]}", r.json().get("error", {}), words)
    for name, data, status, words in ARCHIVES:
        r = d.request("PUT", "/datasets/" + name, data, TAR)
        check(r.status == status, f"{name} {words}: {r.status} {r.body[:300]}")
        messages.note(f"an archive: {words}", r.json().get("error", {}), words)
    check(d.get("/jobs").json()["jobs"] == [], "refused requests leave no job")
    check("new" not in os.listdir(SETS) and not os.path.exists(ABSOLUTE),
          "refused requests leave no data set")


def inpainting_checkpoint():
    """Makes the bundled checkpoint with a first layer of 9 channels; the weights of the five new
    channels are 0."""
    path = os.path.join(root, "inpainting")
    shutil.copytree(model, path, ignore=shutil.ignore_patterns("loras", "train"))
    weights, config = (os.path.join(path, "unet", name)
                       for name in ("diffusion_pytorch_model.safetensors", "config.json"))
    with open(weights, "rb") as f:
        data = f.read()
    tensors = {name: (t["dtype"], t["shape"], t["data_offsets"])
               for name, t in lora_file.read_header(weights).items() if name != "__metadata__"}
    data = data[8 + struct.unpack("<Q", data[:8])[0]:]
    tensors = {name: (dtype, shape, data[slice(*at)]) for name, (dtype, shape, at) in tensors.items()}
    dtype, (outputs, _, *kernel), values = tensors["conv_in.weight"]
    each = len(values) // outputs
    wide = b"".join(values[i * each:(i + 1) * each] + bytes(each // 4 * 5) for i in range(outputs))
    tensors["conv_in.weight"] = dtype, [outputs, 9, *kernel], wide
    with open(weights, "wb") as f:
        f.write(lora_file.join(tensors))
    with open(config, encoding="utf-8") as f:
        fields = json.load(f)
    with open(config, "w", encoding="utf-8") as f:
        json.dump({**fields, "in_channels": 9}, f)
    return path


def refused_for_the_checkpoint(messages):
    prior = {"with_prior_preservation": True, "class_prompt": "a boat"}
    with Trainer(model=inpainting_checkpoint()) as d:
        for fields, param, words in (
                ({"validation_prompts": ["a boat"], "validation_steps": 4}, "validation_prompts",
                 "this checkpoint inpaints"),
                ({**prior, "num_class_images": 4}, "num_class_images", "at most 0, the pictures in class_data_dir"),
                ({**prior, "class_data_dir": "stripes", "num_class_images": 6}, "num_class_images",
                 "at most 5, the pictures in class_data_dir"),
                ({**prior, "class_data_dir": "nowhere", "num_class_images": 1}, "num_class_images",
                 "this checkpoint inpaints")):
            r = d.train(**fields)
            check(r.status == 400, f"{fields}: {r.status} {r.body[:300]}")
            messages.note(f"{fields}", r.json().get("error", {}), words, param)
        check(d.get("/jobs").json()["jobs"] == [], "refused requests leave no job")


def refused_for_what_the_checkpoint_predicts(messages):
    """A checkpoint that predicts "sample" is refused as in diffusers' scripts ("Unknown
    prediction type sample"), unless the job names another type."""
    path = os.path.join(root, "predicts-sample")
    shutil.copytree(model, path, ignore=shutil.ignore_patterns("loras", "train"))
    config = os.path.join(path, "scheduler", "scheduler_config.json")
    with open(config, encoding="utf-8") as f:
        fields = json.load(f)
    with open(config, "w", encoding="utf-8") as f:
        json.dump({**fields, "_class_name": "DDIMScheduler", "prediction_type": "sample"}, f)
    with Trainer(model=path) as d:
        r = d.train()
        check(r.status == 400, f"refused: {r.status} {r.body[:300]}")
        messages.note("a checkpoint that predicts sample", r.json().get("error", {}), 'predicts "sample"',
                      "prediction_type")
        check(d.get("/jobs").json()["jobs"] == [], "refused requests leave no job")
        d.wait(d.start(prediction_type="epsilon", max_train_steps=1))


def data_sets_refused_at_once(d, messages):
    for name, (_, words) in FOLDERS.items():
        r = d.train(dataset=name)
        check(r.status == 400, f"{name}: {r.status} {r.body[:300]}")
        messages.note(f"the data set {name}", r.json().get("error", {}), words)
    check(d.get("/jobs").json()["jobs"] == [], "refused requests leave no job")


def too_large_to_be_decoded_at_once(d, messages):
    """Pictures with so many pixels are not decoded before the job is accepted; only the files'
    headers are read. The job then fails before its first step."""
    make_folder("large", {f"{i}.{end}": data for i in range(2)
                          for end, data in (("png", head(8000, 8000)), ("txt", b"a picture"))})
    job = d.wait(d.start(dataset="large"), "failed")
    check(job["step"] == 0, f"{job}")
    messages.note("large", job["error"], "2 of 2 pictures")


def main():
    make_pictures()
    make_folders()
    with Trainer() as d:
        plain = d.picture()
        job = d.wait(d.start(name="taken", max_train_steps=1))
        check(d.request("DELETE", "/jobs/" + job["id"]).status in (200, 204),
              "the job can be deleted")
        messages = Messages()
        no_field_is_left_out()
        refused_at_once(d, messages)
        data_sets_refused_at_once(d, messages)
        refused_for_the_checkpoint(messages)
        refused_for_what_the_checkpoint_predicts(messages)
        refused = len(messages.seen)
        too_large_to_be_decoded_at_once(d, messages)
        check(d.get("/health").status == 200 and d.picture(loras=[]) == plain, "the daemon draws as before")
        check(d.wait(d.start())["step"] == JOB["max_train_steps"],
              "the daemon accepts a right job after the refusals")
        print(f"{refused} refused, each with its own error, and none of them a job; one of 128 million pixels taken "
              "and ended before its first step")


try:
    main()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
