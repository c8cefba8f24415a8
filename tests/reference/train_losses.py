"""Writes tests/train/data/train_losses.json: the first 20 losses of LoRA jobs in diffusers + peft,
for tests/train/trainer_test.c, and how far a rounding of the start moves them.

usage: python tests/reference/train_losses.py [NAME...]     (names of cases; the other cases keep
their recordings)
(torch 2.15.0, diffusers 0.42.1, peft 0.21.2, transformers 5.23.0, lion-pytorch 0.2.5, prodigyopt 1.1.2,
lycoris-lora 4.1.3; the bundled checkpoint in float32 on the CPU; train_agreement.py runs the same loop for longer)

The loop is that of train_text_to_image_lora.py. All random numbers come from torch's CPU generator:
manual_seed, the adapter, then for each batch the crops and flips of the pictures, the posterior's
sample, noise, timesteps and dropped captions. The order of the pictures is that of accelerate's
seedable sampler. With prior preservation the loop is that of train_dreambooth.py; for a UNet of 9
channels (the bundled one with another first layer) it is that of train_dreambooth_inpaint.py, whose
random masks come from Python's generator. Pictures are generated from their names by the rule of
small_models.py and averaged over blocks, so that they are smooth.
"""

import itertools
import json
import pathlib
import random
import sys

import numpy
import torch
from accelerate.data_loader import SeedableRandomSampler
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_polynomial_decay_schedule_with_warmup, get_scheduler
from diffusers.training_utils import compute_snr
from peft import LoraConfig
from lion_pytorch import Lion
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from prodigyopt import Prodigy
from transformers import Adafactor, CLIPTextModel, CLIPTokenizer

import small_models
from captions import shuffle_caption, shuffle_key
from datasets import random_mask

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "share/tiny-sd"
CAPTIONS = ["a red house on green hills", "a blue boat in the middle of the sea at night",
            "a yellow car in front of a forest", "three trees by the sea", "a red house on green hills"]
CLASS_PROMPT = "a house"
CLASS_COUNT = 7
SEED, STEPS = 7, 20
ROUNDING = 2.0 ** -23
SIZE, BLOCK, MASK_BLOCK = 64, 8, 4
# name, config: fields of POST /train, and two keys for this script only. "_shape" is the size of
# the pictures before cropping, "_inpainting" asks for a UNet of 9 channels.
CASES = {
    "plain": {"train_batch_size": 1},
    "batch": {"train_batch_size": 2, "gradient_accumulation_steps": 2, "lr_scheduler": "cosine",
              "lr_warmup_steps": 3, "snr_gamma": 5.0, "random_flip": True, "caption_dropout": 0.3,
              "noise_offset": 0.1},
    "wide": {"train_batch_size": 3, "rank": 4, "alpha": 8, "init_lora_weights": "kaiming",
             "target_modules": ["to_q", "to_v", "conv1", "proj_in", "ff.net.2", "time_emb_proj"],
             "input_perturbation": 0.1, "max_grad_norm": 0.05, "adam_weight_decay": 0.1},
    "text": {"train_batch_size": 2, "train_text_encoder": True, "text_encoder_learning_rate": 3e-4},
    "crop": {"train_batch_size": 2, "random_flip": True, "_shape": [80, 72]},
    "prior": {"train_batch_size": 2, "with_prior_preservation": True, "class_prompt": CLASS_PROMPT,
              "class_data_dir": "class", "prior_loss_weight": 0.7, "num_class_images": CLASS_COUNT,
              "_shape": [64, 72]},
    "inpaint": {"train_batch_size": 2, "_inpainting": True, "_shape": [72, 64]},
    "masks": {"train_batch_size": 2, "_inpainting": True, "masks": "files", "random_flip": True,
              "snr_gamma": 5.0},
    # The optimizer gets the scaled rate, 4e-3, and polynomial decay starts from it. lr_end is above
    # the unscaled rate.
    "scaled": {"train_batch_size": 2, "gradient_accumulation_steps": 2, "scale_lr": True,
               "lr_scheduler": "polynomial", "lr_warmup_steps": 3, "lr_power": 2.0, "lr_end": 2e-3},
    # Lion steps by signs, so with its usual rate, a tenth of AdamW's, and a large decay.
    "lion": {"train_batch_size": 2, "optimizer": "lion", "learning_rate": 1e-4, "adam_weight_decay": 0.1},
    # With convolutions, whose kernels have states of their own.
    "adafactor": {"train_batch_size": 2, "optimizer": "adafactor", "rank": 4, "init_lora_weights": "kaiming",
                  "target_modules": ["to_q", "to_v", "conv1", "ff.net.2"], "adafactor_clip_threshold": 0.5},
    "relative": {"train_batch_size": 2, "optimizer": "adafactor", "learning_rate": None, "adam_weight_decay": 0.1,
                 "adafactor_scale_parameter": True, "adafactor_relative_step": True, "adafactor_decay_rate": -0.7},
    "relative_warmup": {"train_batch_size": 2, "optimizer": "adafactor", "learning_rate": None,
                        "adafactor_relative_step": True, "adafactor_warmup_init": True},
    "prodigy": {"train_batch_size": 2, "optimizer": "prodigy", "learning_rate": 1.0, "lr_scheduler": "cosine",
                "lr_warmup_steps": 3},
    "prodigy2": {"train_batch_size": 2, "optimizer": "prodigy", "learning_rate": 1.0, "prodigy_decouple": False,
                 "prodigy_use_bias_correction": False, "prodigy_safeguard_warmup": False, "prodigy_d0": 1e-5,
                 "prodigy_d_coef": 2.0, "prodigy_growth_rate": 1.3, "prodigy_beta3": 0.9, "train_text_encoder": True},
    # Words in place of tags. The scale of rsLoRA is alpha / sqrt(rank) = 2.
    "shuffled": {"train_batch_size": 2, "rank": 4, "alpha": 4, "use_rslora": True, "shuffle_caption": True,
                 "caption_separator": " ", "keep_tokens": 1},
    "shuffled_text": {"train_batch_size": 2, "train_text_encoder": True, "shuffle_caption": True,
                      "caption_separator": " ", "keep_tokens_separator": " in ", "caption_dropout": 0.2},
    "dora": {"train_batch_size": 2, "rank": 4, "alpha": 8, "use_dora": True, "gradient_accumulation_steps": 2,
             "target_modules": ["to_q", "to_v", "conv1", "ff.net.2"]},
    "dora_text": {"train_batch_size": 2, "rank": 4, "use_dora": True, "init_lora_weights": "kaiming",
                  "train_text_encoder": True, "target_modules": ["to_k", "to_out.0"]},
    "loha": {"train_batch_size": 2, "adapter_type": "loha", "rank": 4, "alpha": 2,
             "target_modules": ["to_q", "to_v", "conv1", "ff.net.2"]},
    "lokr": {"train_batch_size": 2, "adapter_type": "lokr", "rank": 2, "alpha": 1,
             "target_modules": ["to_q", "to_v", "conv1", "ff.net.2"]},
    # Rank 1 is below half of every factor, so all matrices are products.
    "lokr_both": {"train_batch_size": 2, "adapter_type": "lokr", "rank": 1, "alpha": 0.5, "lokr_factor": 6,
                  "lokr_decompose_both": True, "target_modules": ["to_q", "to_k", "conv2"]},
    "lokr_whole": {"train_batch_size": 2, "adapter_type": "lokr", "rank": 64, "lokr_factor": 8,
                   "target_modules": ["to_q", "conv1"]},
    # The list of train_dreambooth_lora.py; Stable Diffusion has no add_k_proj and add_v_proj.
    "targets": {"train_batch_size": 2, "rank": 4,
                "target_modules": ["to_k", "to_q", "to_v", "to_out.0", "add_k_proj", "add_v_proj"]},
}


RATED = ("scaled", "relative_warmup", "prodigy2")  # whose rates are recorded


def blocks(name, height, width, block, channels):
    rough = torch.from_numpy(small_models.number(name, channels * (height // block) * (width // block))).float()
    rough = rough.reshape(height // block, width // block, channels)
    return rough.repeat_interleave(block, 0).repeat_interleave(block, 1)  # [h][w][channels]


def picture(name, size=SIZE):
    return blocks(f"picture.{name}", size, size, BLOCK, 3)


def prepare(name, shape, config, picture=picture):
    """Crops and mirrors a picture and its mask at random, like the scripts' transforms. Returns
    pixels [h][w][3] and mask [h][w]."""
    pixels = picture(name) if shape == [SIZE, SIZE] else blocks(f"picture.{name}", *shape, BLOCK, 3)
    mask = (blocks(f"mask.{name}", *shape, MASK_BLOCK, 1)[:, :, 0] > 0).float()
    top = left = 0
    if shape != [SIZE, SIZE]:
        top = torch.randint(0, shape[0] - SIZE + 1, (1,)).item()
        left = torch.randint(0, shape[1] - SIZE + 1, (1,)).item()
    pixels, mask = (x[top:top + SIZE, left:left + SIZE] for x in (pixels, mask))
    if config.get("random_flip") and torch.rand(()) < 0.5:
        pixels, mask = pixels.flip(1), mask.flip(1)
    return pixels, mask


def load_unet(config):
    unet = UNet2DConditionModel.from_pretrained(MODEL / "unet")
    if config.get("_inpainting"):
        wide = torch.nn.Conv2d(9, unet.conv_in.out_channels, 3, padding=1)
        rule = torch.from_numpy(small_models.number("inpainting.conv_in", wide.weight.numel()))
        wide.weight.data = (0.2 * rule).float().reshape(wide.weight.shape)
        wide.bias.data = unet.conv_in.bias.data
        unet.conv_in = wide
        unet.register_to_config(in_channels=9)
    return unet.requires_grad_(False).eval()


def add_lycoris(model, config, targets):
    """Puts LyCORIS's modules on the target layers, in peft's order."""
    rank, out = config.get("rank", 16), []
    for name, module in list(model.named_modules()):
        if not any(name == target or name.endswith("." + target) for target in targets):
            continue
        if config["adapter_type"] == "loha":
            added = LohaModule(name, module, 1.0, rank, config.get("alpha", rank))
        else:
            added = LokrModule(name, module, 1.0, rank, config.get("alpha", rank), factor=config.get("lokr_factor", -1),
                               decompose_both=config.get("lokr_decompose_both", False))
        added.apply_to()
        out += [p for p in added.parameters() if p.requires_grad]
    return out


def add_adapter(model, config, targets):
    if config.get("adapter_type", "lora") != "lora":
        return add_lycoris(model, config, targets)
    init = {"gaussian": "gaussian", "kaiming": True}[config.get("init_lora_weights", "gaussian")]
    rank = config.get("rank", 16)
    model.add_adapter(LoraConfig(r=rank, lora_alpha=config.get("alpha", rank), init_lora_weights=init,
                                 use_rslora=config.get("use_rslora", False),
                                 use_dora=config.get("use_dora", False), target_modules=targets))
    return [p for p in model.parameters() if p.requires_grad]


def weights_of(each, scheduler, timesteps, config):
    """Weighs the losses of a batch's rows by their signal-to-noise ratio, if the job asks for
    it."""
    if not config.get("snr_gamma"):
        return each
    snr = compute_snr(scheduler, timesteps)
    divisor = snr + 1 if config.get("prediction_type") == "v_prediction" else snr
    return each * torch.clamp(snr, max=config["snr_gamma"]) / divisor


def ends_window(number, batches, accumulation):
    """Returns whether the optimizer steps after batch `number` of an epoch."""
    return (number + 1) % accumulation == 0 or number + 1 == batches


def endless(count, config, seed):
    """Yields (epoch, batch, whether the optimizer steps after it) for one epoch after the other,
    without end."""
    size, accumulation = config["train_batch_size"], config.get("gradient_accumulation_steps", 1)
    sampler = SeedableRandomSampler(range(count), data_seed=seed)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        items = list(sampler)
        batches = [items[i:i + size] for i in range(0, count, size)]
        for number, batch in enumerate(batches):
            yield epoch, batch, ends_window(number, len(batches), accumulation)


def write(file, record, cases, run_case):
    """Writes the record with the results of each case. For each case it also says how far the
    losses move when the start is moved by one rounding."""
    path = ROOT / "tests/train/data" / file
    names = sys.argv[1:] or list(cases)
    kept = json.loads(path.read_text(encoding="utf-8"))["cases"] if sys.argv[1:] else {}
    record = {"captions": CAPTIONS, "seed": SEED, "size": SIZE, "block": BLOCK} | record | {"cases": kept}
    for name in names:
        config = cases[name]
        result = run_case(name, config, 0.0)
        moved, losses = run_case(name, config, ROUNDING)["losses"], result["losses"]
        worst = max(abs(a / b - 1) for a, b in zip(moved, losses))
        print(f"{name}: {losses[0]:.6g} to {losses[-1]:.6g}; one rounding moves losses by {worst:.2g}", flush=True)
        record["cases"][name] = result | {"moved": worst}
    path.write_text(json.dumps(record, indent=0) + "\n", encoding="utf-8")
    print(path.stat().st_size, "bytes")


def optimizer_of(groups, config, rate):
    decay = config.get("adam_weight_decay", 1e-2)
    kind = config.get("optimizer", "adamw")
    if kind == "lion":
        return Lion(groups, lr=rate, betas=(0.9, 0.99), weight_decay=decay)
    if kind == "adafactor":
        relative = config.get("adafactor_relative_step", False)
        groups = [{"params": g["params"]} for g in groups] if relative else groups
        return Adafactor(groups, lr=None if relative else rate, eps=(1e-30, 1e-3), weight_decay=decay,
                         clip_threshold=config.get("adafactor_clip_threshold", 1.0),
                         decay_rate=config.get("adafactor_decay_rate", -0.8), relative_step=relative,
                         scale_parameter=config.get("adafactor_scale_parameter", False),
                         warmup_init=config.get("adafactor_warmup_init", False))
    if kind == "prodigy":
        return Prodigy(groups, lr=rate, betas=(0.9, 0.999), beta3=config.get("prodigy_beta3"), weight_decay=decay,
                       decouple=config.get("prodigy_decouple", True),
                       use_bias_correction=config.get("prodigy_use_bias_correction", True),
                       safeguard_warmup=config.get("prodigy_safeguard_warmup", True),
                       d0=config.get("prodigy_d0", 1e-6), d_coef=config.get("prodigy_d_coef", 1.0),
                       growth_rate=config.get("prodigy_growth_rate", float("inf")))
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay, foreach=False)


def schedule_of(optimizer, config, steps):
    lengths = {"num_warmup_steps": config.get("lr_warmup_steps", 0), "num_training_steps": steps}
    if config.get("lr_scheduler") == "polynomial":  # get_scheduler takes no lr_end
        return get_polynomial_decay_schedule_with_warmup(
            optimizer, lr_end=config["lr_end"], power=config["lr_power"], **lengths)
    return get_scheduler(config.get("lr_scheduler", "constant"), optimizer, **lengths)


def run(config, nudge=0.0, steps=STEPS, picture=picture):
    """Returns the losses and norms of the steps, and the trained models: {"unet": ...,
    "text_encoder": ...}."""
    tokenizer = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
    text_encoder = CLIPTextModel.from_pretrained(MODEL / "text_encoder").requires_grad_(False).eval()
    vae = AutoencoderKL.from_pretrained(MODEL / "vae").requires_grad_(False).eval()
    unet = load_unet(config)
    scheduler = DDPMScheduler.from_pretrained(MODEL / "scheduler")
    rate = config.get("learning_rate", 1e-3)
    if config.get("scale_lr"):
        rate *= config["train_batch_size"] * config.get("gradient_accumulation_steps", 1)
    torch.manual_seed(SEED)
    random.seed(SEED)
    groups = [{"params": add_adapter(unet, config, config.get("target_modules",
                                                              ["to_q", "to_k", "to_v", "to_out.0"])), "lr": rate}]
    if config.get("train_text_encoder"):
        groups.append({"params": add_adapter(text_encoder, config, ["q_proj", "k_proj", "v_proj", "out_proj"]),
                       "lr": config.get("text_encoder_learning_rate", rate)})
    params = [p for g in groups for p in g["params"]]
    if nudge:
        with torch.no_grad():
            for p in params:
                p.mul_(1 + nudge)
    optimizer = optimizer_of(groups, config, rate)
    relative = config.get("adafactor_relative_step")  # the optimizer has its own rate
    schedule = None if relative else schedule_of(optimizer, config, steps)
    prior = config.get("with_prior_preservation")
    count = CLASS_COUNT if prior else len(CAPTIONS)
    shape = config.get("_shape", [SIZE, SIZE])
    accumulation = config.get("gradient_accumulation_steps", 1)

    def sample(pixels):
        with torch.no_grad():
            return (vae.encode(pixels).latent_dist.sample() * vae.config.scaling_factor).contiguous()

    def encode(captions):
        ids = tokenizer(captions, padding="max_length", truncation=True, max_length=tokenizer.model_max_length,
                        return_tensors="pt").input_ids
        return text_encoder(ids)[0]

    losses, window, norms, rates = [], [], [], []
    for epoch, batch, ends in endless(count, config, SEED):
        instances, classes = [], []
        for item in batch:
            instance = item % len(CAPTIONS)
            caption = CAPTIONS[instance]
            if config.get("shuffle_caption"):
                caption = shuffle_caption(caption, shuffle_key(SEED, epoch, item), config.get("caption_separator", ","),
                                          config.get("keep_tokens", 0), config.get("keep_tokens_separator"))
            instances.append((*prepare(instance, shape, config, picture), caption))
            if prior:
                classes.append((*prepare(f"class.{item % CLASS_COUNT}", shape, config), CLASS_PROMPT))
        rows = instances + classes
        pixels = torch.stack([row[0] for row in rows]).permute(0, 3, 1, 2).contiguous()
        latents = sample(pixels)
        if config.get("_inpainting"):
            masks = torch.stack([row[1] if config.get("masks") == "files" else
                                 torch.from_numpy(numpy.array(random_mask((SIZE, SIZE))[1]) / 255).float()
                                 for row in rows])[:, None]
            masked_latents = sample(pixels * (masks < 0.5))
            masks = torch.nn.functional.interpolate(masks, size=latents.shape[2:])
        noise = torch.randn_like(latents)
        if config.get("noise_offset"):
            noise = noise + config["noise_offset"] * torch.randn(len(rows), latents.shape[1], 1, 1)
        used = noise
        if config.get("input_perturbation"):
            used = noise + config["input_perturbation"] * torch.randn_like(noise)
        timesteps = torch.randint(0, 1000, (len(rows),)).long()
        captions = [row[2] for row in rows]
        if config.get("caption_dropout"):
            dropped = torch.rand(len(rows)) < config["caption_dropout"]
            captions = ["" if d else c for d, c in zip(dropped, captions)]
        noisy = scheduler.add_noise(latents, used, timesteps)
        if config.get("_inpainting"):
            noisy = torch.cat([noisy, masks, masked_latents], dim=1)
        prediction = unet(noisy, timesteps, encode(captions)).sample
        each = ((prediction - noise) ** 2).mean(dim=(1, 2, 3))
        each = weights_of(each, scheduler, timesteps, config)
        loss = each.mean()
        if prior:
            loss = each[:len(batch)].mean() + config["prior_loss_weight"] * each[len(batch):].mean()
        (loss / accumulation).backward()
        window.append(loss.item())
        if ends:
            norms.append(torch.nn.utils.clip_grad_norm_(params, config.get("max_grad_norm", 1.0)).item())
            group = optimizer.param_groups[0]
            optimizer.step()
            rates.append(Adafactor._get_lr(group, optimizer.state[params[0]]) if relative else
                         group["lr"] * group.get("d", 1))  # d: Prodigy's factor, after the step
            if schedule:
                schedule.step()
            optimizer.zero_grad()
            losses.append(sum(window) / len(window))
            window = []
            if len(losses) == steps:
                break
    return losses, norms, rates, {"unet": unet, "text_encoder": text_encoder}


def run_case(name, config, nudge):
    losses, norms, rates, _ = run(config, nudge)
    return {"config": {k: v for k, v in config.items() if k[0] != "_"},
            "shape": config.get("_shape", [SIZE, SIZE]), "inpainting": config.get("_inpainting", False),
            "losses": losses, "grad_norms": norms} | ({"rates": rates} if name in RATED else {})


if __name__ == "__main__":
    write("train_losses.json", {"learning_rate": 1e-3, "mask_block": MASK_BLOCK, "class_count": CLASS_COUNT},
          CASES, run_case)
