"""Writes tests/train/data/train_losses.json: the first 20 losses of LoRA jobs in diffusers + peft, for
tests/train/trainer_test.c, and what a rounding of the start moves them by.

usage: python tests/reference/train_losses.py
(torch 2.15.0, diffusers 0.42.1, peft 0.21.2; the bundled checkpoint in float32 on the CPU; train_agreement.py
runs the same loop for longer)

The loop is that of train_text_to_image_lora.py with everything random from torch's CPU generator: manual_seed,
the adapter, then for each batch whether pictures are mirrored, the posterior's sample, noise, timesteps and
dropped captions; the order of the pictures is accelerate's seedable sampler's. Pictures follow from their names
by the rule of small_models.py, averaged over blocks so that they are smooth.
"""

import json
import pathlib

import torch
from accelerate.data_loader import SeedableRandomSampler
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import compute_snr
from peft import LoraConfig
from transformers import CLIPTextModel, CLIPTokenizer

import small_models

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "share/tiny-sd"
CAPTIONS = ["a red house on green hills", "a blue boat in the middle of the sea at night",
            "a yellow car in front of a forest", "three trees by the sea", "a red house on green hills"]
STEPS = 20
ROUNDING = 2.0 ** -23
# name, config: fields of POST /train
CASES = {
    "plain": {"train_batch_size": 1},
    "batch": {"train_batch_size": 2, "gradient_accumulation_steps": 2, "lr_scheduler": "cosine",
              "lr_warmup_steps": 3, "snr_gamma": 5.0, "random_flip": True, "caption_dropout": 0.3,
              "noise_offset": 0.1},
    "wide": {"train_batch_size": 3, "rank": 4, "alpha": 8, "init_lora_weights": "kaiming",
             "target_modules": ["to_q", "to_v", "conv1", "proj_in", "ff.net.2", "time_emb_proj"],
             "input_perturbation": 0.1, "max_grad_norm": 0.05, "adam_weight_decay": 0.1},
    "text": {"train_batch_size": 2, "train_text_encoder": True, "text_encoder_learning_rate": 3e-4},
}


def picture(item, size=64, block=8):
    rough = torch.from_numpy(small_models.number(f"picture.{item}", 3 * (size // block) ** 2)).float()
    rough = rough.reshape(size // block, size // block, 3)
    return rough.repeat_interleave(block, 0).repeat_interleave(block, 1)  # [h][w][3]


def add_adapter(model, config, targets):
    init = {"gaussian": "gaussian", "kaiming": True}[config.get("init_lora_weights", "gaussian")]
    rank = config.get("rank", 16)
    model.add_adapter(LoraConfig(r=rank, lora_alpha=config.get("alpha", rank), init_lora_weights=init,
                                 target_modules=targets))
    return [p for p in model.parameters() if p.requires_grad]


def ends_window(number, batches, accumulation):
    """Whether the optimizer steps after batch `number` of an epoch."""
    return (number + 1) % accumulation == 0 or number + 1 == batches


def run(config, nudge=0.0, steps=STEPS, picture=picture):
    """Losses and norms of the steps, and what was trained: {"unet": ..., "text_encoder": ...}."""
    tokenizer = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
    text_encoder = CLIPTextModel.from_pretrained(MODEL / "text_encoder").requires_grad_(False).eval()
    vae = AutoencoderKL.from_pretrained(MODEL / "vae").requires_grad_(False).eval()
    unet = UNet2DConditionModel.from_pretrained(MODEL / "unet").requires_grad_(False).eval()
    scheduler = DDPMScheduler.from_pretrained(MODEL / "scheduler")
    seed, rate = 7, 1e-3
    torch.manual_seed(seed)
    groups = [{"params": add_adapter(unet, config, config.get("target_modules",
                                                              ["to_q", "to_k", "to_v", "to_out.0"])), "lr": rate}]
    if config.get("train_text_encoder"):
        groups.append({"params": add_adapter(text_encoder, config, ["q_proj", "k_proj", "v_proj", "out_proj"]),
                       "lr": config["text_encoder_learning_rate"]})
    params = [p for g in groups for p in g["params"]]
    if nudge:
        with torch.no_grad():
            for p in params:
                p.mul_(1 + nudge)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=config.get("adam_weight_decay", 1e-2), foreach=False)
    schedule = get_scheduler(config.get("lr_scheduler", "constant"), optimizer,
                             num_warmup_steps=config.get("lr_warmup_steps", 0), num_training_steps=steps)
    count, batch_size = len(CAPTIONS), config["train_batch_size"]
    accumulation = config.get("gradient_accumulation_steps", 1)
    sampler = SeedableRandomSampler(range(count), data_seed=seed)
    posteriors = {}
    with torch.no_grad():
        for item in range(count):
            for mirrored in (False, True):
                pixels = picture(item)
                pixels = pixels.flip(1) if mirrored else pixels
                posteriors[item, mirrored] = vae.encode(pixels.permute(2, 0, 1)[None]).latent_dist

    def encode(captions):
        ids = tokenizer(captions, padding="max_length", truncation=True, max_length=tokenizer.model_max_length,
                        return_tensors="pt").input_ids
        return text_encoder(ids)[0]

    losses, window, norms, epoch = [], [], [], 0
    while len(losses) < steps:
        sampler.set_epoch(epoch)
        items = list(sampler)
        batches = [items[i:i + batch_size] for i in range(0, count, batch_size)]
        for number, batch in enumerate(batches):
            mirrored = [bool(torch.rand(()) < 0.5) if config.get("random_flip") else False for _ in batch]
            mean = torch.cat([posteriors[i, m].mean for i, m in zip(batch, mirrored)])
            std = torch.cat([posteriors[i, m].std for i, m in zip(batch, mirrored)])
            latents = (mean + std * torch.randn(mean.shape)) * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            if config.get("noise_offset"):
                noise = noise + config["noise_offset"] * torch.randn(len(batch), latents.shape[1], 1, 1)
            used = noise
            if config.get("input_perturbation"):
                used = noise + config["input_perturbation"] * torch.randn_like(noise)
            timesteps = torch.randint(0, 1000, (len(batch),)).long()
            captions = [CAPTIONS[i] for i in batch]
            if config.get("caption_dropout"):
                dropped = torch.rand(len(batch)) < config["caption_dropout"]
                captions = ["" if d else c for d, c in zip(dropped, captions)]
            noisy = scheduler.add_noise(latents, used, timesteps)
            prediction = unet(noisy, timesteps, encode(captions)).sample
            each = ((prediction - noise) ** 2).mean(dim=(1, 2, 3))
            if config.get("snr_gamma"):
                snr = compute_snr(scheduler, timesteps)
                each = each * torch.clamp(snr, max=config["snr_gamma"]) / snr
            loss = each.mean()
            (loss / accumulation).backward()
            window.append(loss.item())
            if ends_window(number, len(batches), accumulation):
                norms.append(torch.nn.utils.clip_grad_norm_(params, config.get("max_grad_norm", 1.0)).item())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(sum(window) / len(window))
                window = []
                if len(losses) == steps:
                    break
        epoch += 1
    return losses, norms, {"unet": unet, "text_encoder": text_encoder}


def main():
    record = {"captions": CAPTIONS, "seed": 7, "learning_rate": 1e-3, "size": 64, "block": 8, "cases": {}}
    for name, config in CASES.items():
        losses, norms, _ = run(config)
        moved, _, _ = run(config, nudge=ROUNDING)
        worst = max(abs(a / b - 1) for a, b in zip(moved, losses))
        print(f"{name}: {losses[0]:.6g} to {losses[-1]:.6g}; one rounding moves losses by {worst:.2g}", flush=True)
        record["cases"][name] = {"config": config, "losses": losses, "grad_norms": norms, "moved": worst}
    path = ROOT / "tests/train/data/train_losses.json"
    path.write_text(json.dumps(record, indent=0) + "\n", encoding="utf-8")
    print(path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
