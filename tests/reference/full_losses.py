"""Writes tests/train/data/full_losses.json for tests/train/full_test.c: the first 20 losses of full
fine-tunes in diffusers, how much the losses change when all initial weights change by one rounding,
and a few numbers of the weights that are saved at the end (with EMA, the averaged weights).

usage: python tests/reference/full_losses.py [NAME...]     (names of cases; the other cases keep
their recordings)
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0; float32 on the CPU, "bf16" in autocast)

The loop is that of train_text_to_image.py. Its random numbers are drawn as train_losses.py
describes. The UNet is that of the bundled checkpoint. The case "sd2" has a small UNet with the
structure of SD-2 instead; its weights are computed from their names (small_models.py).
"""

import contextlib
import re

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from transformers import CLIPTextModel, CLIPTokenizer

import small_models
from train_losses import CAPTIONS, MODEL, SEED, STEPS, endless, picture, weights_of, write

# name, config: fields of POST /train
CASES = {
    "plain": {"train_batch_size": 1, "learning_rate": 1e-4, "use_ema": True, "ema_decay": 0.9},
    "groups": {
        "train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-4, "max_grad_norm": 0.5,
        "max_grad_value": 0.002, "lr_scheduler": "linear", "lr_warmup_steps": 2,
        "parameter_groups": [{"pattern": ".bias", "weight_decay": 0},
                             {"pattern": "down_blocks.*.to_k", "learning_rate": 3e-4, "weight_decay": 0.1},
                             {"pattern": "norm", "learning_rate": 5e-5}]},
    "text": {"train_batch_size": 2, "learning_rate": 5e-5, "train_text_encoder": True,
             "text_encoder_learning_rate": 2e-5, "adam_weight_decay": 0.1, "prediction_type": "v_prediction"},
    "sd2": {"train_batch_size": 2, "learning_rate": 1e-4, "prediction_type": "v_prediction", "snr_gamma": 5.0},
    "bf16": {"train_batch_size": 2, "learning_rate": 1e-4, "mixed_precision": "bf16"},
}
# The saved tensors whose first four numbers are recorded.
FINALS = ["conv_in.bias", "mid_block.attentions.0.transformer_blocks.0.attn1.to_v.weight",
          "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj.weight", "conv_norm_out.weight",
          "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight"]


def fits(name, pattern):
    """Whether the name contains the pattern; '*' matches anything."""
    return re.search(".*".join(re.escape(part) for part in pattern.split("*")), name) is not None


def groups_of(model, config, rate):
    """Returns a group for each parameter, with the rate and weight decay of the first pattern
    that matches."""
    groups = []
    for name, parameter in model.requires_grad_(True).named_parameters():
        fitting = next((g for g in config.get("parameter_groups", []) if fits(name, g["pattern"])), {})
        groups.append({"params": [parameter], "lr": fitting.get("learning_rate", rate),
                       "weight_decay": fitting.get("weight_decay", config.get("adam_weight_decay", 1e-2))})
    return groups


def small_sd2(width):
    values = small_models.UNET["unet_sd2"]
    config = dict(values["config"])
    down = config.pop("down")
    return small_models.fill(UNet2DConditionModel(
        sample_size=8, out_channels=4, down_block_types=down, cross_attention_dim=width,
        up_block_types=[block.replace("Down", "Up") for block in reversed(down)], **config), "", values["gain"])


class Job:
    def __init__(self, name, config, scaling_factor, nudge):
        self.config, self.scaling_factor = config, scaling_factor
        self.tokenizer = CLIPTokenizer.from_pretrained(MODEL / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(MODEL / "text_encoder").requires_grad_(False).eval()
        self.scheduler = DDPMScheduler.from_pretrained(MODEL / "scheduler")
        width = self.text_encoder.config.hidden_size
        self.unet = small_sd2(width) if name == "sd2" else UNet2DConditionModel.from_pretrained(MODEL / "unet").eval()
        groups = groups_of(self.unet, config, config["learning_rate"])
        if config.get("train_text_encoder"):
            groups += groups_of(self.text_encoder, config, config["text_encoder_learning_rate"])
        self.params = [p for g in groups for p in g["params"]]
        with torch.no_grad():
            for p in self.params:
                p.mul_(1 + nudge)
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8, foreach=False)
        self.schedule = get_scheduler(config.get("lr_scheduler", "constant"), self.optimizer,
                                      num_warmup_steps=config.get("lr_warmup_steps", 0), num_training_steps=STEPS)
        self.average = None
        if config.get("use_ema"):
            self.average = EMAModel(self.unet.parameters(), decay=config["ema_decay"])

    def loss(self, posteriors, batch):
        """Returns the loss of a batch. `batch` lists the numbers of its pictures."""
        mean = torch.cat([posteriors[i].mean for i in batch])
        std = torch.cat([posteriors[i].std for i in batch])
        latents = (mean + std * torch.randn(mean.shape)) * self.scaling_factor
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (len(batch),)).long()
        ids = self.tokenizer([CAPTIONS[i] for i in batch], padding="max_length", truncation=True,
                             max_length=self.tokenizer.model_max_length, return_tensors="pt").input_ids
        noisy = self.scheduler.add_noise(latents, noise, timesteps)
        is_bf16 = self.config.get("mixed_precision") == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if is_bf16 else contextlib.nullcontext():
            prediction = self.unet(noisy, timesteps, self.text_encoder(ids)[0]).sample.float()
        target = noise
        if self.config.get("prediction_type") == "v_prediction":
            target = self.scheduler.get_velocity(latents, noise, timesteps)
        each = ((prediction - target) ** 2).mean(dim=(1, 2, 3))
        return weights_of(each, self.scheduler, timesteps, self.config).mean()

    def step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.params, self.config.get("max_grad_norm", 1.0)).item()
        if self.config.get("max_grad_value"):
            torch.nn.utils.clip_grad_value_(self.params, self.config["max_grad_value"])
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.step(self.unet.parameters())
        return norm

    def finals(self):
        if self.average:
            self.average.copy_to(self.unet.parameters())
        saved = dict(self.unet.named_parameters())
        return {name: saved[name].flatten()[:4].tolist() for name in FINALS if name in saved}


def run(name, config, posteriors, scaling_factor, nudge):
    job = Job(name, config, scaling_factor, nudge)
    torch.manual_seed(SEED)
    accumulation = config.get("gradient_accumulation_steps", 1)
    losses, window, norms = [], [], []
    for _, batch, ends in endless(len(CAPTIONS), config, SEED):
        loss = job.loss(posteriors, batch)
        (loss / accumulation).backward()
        window.append(loss.item())
        if ends:
            norms.append(job.step())
            losses.append(sum(window) / len(window))
            window = []
            if len(losses) == STEPS:
                break
    return {"config": config, "losses": losses, "grad_norms": norms, "finals": job.finals()}


def main():
    vae = AutoencoderKL.from_pretrained(MODEL / "vae").requires_grad_(False).eval()
    with torch.no_grad():
        posteriors = [vae.encode(picture(i).permute(2, 0, 1)[None]).latent_dist for i in range(len(CAPTIONS))]
    write("full_losses.json", {}, CASES,
          lambda name, config, nudge: run(name, config, posteriors, vae.config.scaling_factor, nudge))


if __name__ == "__main__":
    main()
