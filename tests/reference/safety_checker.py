"""Writes a tiny random safety checker, and the scores that diffusers' StableDiffusionSafetyChecker
gives some pictures with it; tests/models/safety_checker_test.c draws the same pictures. The files
are model.safetensors and the two configs, as in a checkpoint's folder, and scores.json.

usage: safety_checker.py OUT_FOLDER
"""
import json
import os
import shutil
import sys

import numpy
import torch
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker, cosine_distance
from PIL import Image
from transformers import CLIPConfig
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

SIZES = [(64, 64), (40, 56), (101, 33), (24, 24), (32, 32), (128, 128), (37, 91), (200, 64)]
ACTIVATIONS = ("quick_gelu", "gelu")
SIDE = 32


def picture(index, width, height):
    """Returns a picture of slopes and stripes that differ with the index."""
    y, x, c = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    slopes = (x * (3 + index) + y * (7 - index) + c * 40 * index) % 256
    stripes = ((x // (2 + index) + y // 5 + c) % 2) * 90
    return Image.fromarray(((slopes + stripes) % 256).astype(numpy.uint8))


def checker():
    config = CLIPConfig(projection_dim=16, text_config={"hidden_size": 8, "num_hidden_layers": 1,
                                                        "num_attention_heads": 1, "intermediate_size": 8},
                        vision_config={"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                                       "num_attention_heads": 4, "image_size": SIDE, "patch_size": 8,
                                       "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5})
    torch.manual_seed(7)
    model = StableDiffusionSafetyChecker(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.3 if p.ndim > 1 else 0.1
            p.copy_(torch.randn(p.shape) * scale + (1 if "norm.weight" in name or "norm1.weight" in name or
                                                    "norm2.weight" in name else 0))
            p.copy_(p.half().float())
    return model.eval()


def cosines(model, pixels):
    with torch.no_grad():
        embeds = model.visual_projection(model.vision_model(pixels)[1])
        return (cosine_distance(embeds, model.special_care_embeds).numpy(),
                cosine_distance(embeds, model.concept_embeds).numpy())


def scores(model, pixels, count):
    """Returns the checker's internal scores, and its verdict."""
    special, concepts = cosines(model, pixels)
    told = []
    images, flagged = model(clip_input=pixels, images=torch.ones(count, 3, 4, 4))
    for i in range(count):
        adjustment, s, k = 0.0, [], []
        for at, threshold in enumerate(model.special_care_embeds_weights):
            s.append(float(round(special[i][at] - threshold.item() + adjustment, 3)))
            adjustment = 0.01 if s[-1] > 0 else adjustment
        for at, threshold in enumerate(model.concept_embeds_weights):
            k.append(float(round(concepts[i][at] - threshold.item() + adjustment, 3)))
        assert flagged[i] == any(v > 0 for v in k) and (images[i].max().item() == 0) == flagged[i]
        told.append({"special": s, "concepts": k, "flagged": bool(flagged[i])})
    return told


def main(out):
    os.makedirs(out, exist_ok=True)
    model = checker()
    extractor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    pictures = [picture(i, *size) for i, size in enumerate(SIZES)]
    pixels = torch.cat([extractor(p, return_tensors="pt").pixel_values for p in pictures])
    # Sets thresholds inside the range of the pictures' values, so that some of each kind are above.
    special, concepts = cosines(model, pixels)
    model.special_care_embeds_weights.data = torch.tensor(numpy.quantile(special, 0.7, axis=0)).half().float()
    model.concept_embeds_weights.data = torch.tensor(numpy.quantile(concepts, 0.95, axis=0)).half().float()
    told = {"image_size": SIDE, "pixels": [float(v) for v in pixels[1, :, 3, 5:9].flatten()], "sizes": SIZES}
    for activation in ACTIVATIONS:
        for layer in model.vision_model.encoder.layers:
            layer.mlp.activation_fn = torch.nn.GELU() if activation == "gelu" else \
                type(model.vision_model.encoder.layers[0].mlp.activation_fn)()
        told[activation] = scores(model, pixels, len(pictures))
        print(activation, [t["flagged"] for t in told[activation]], [max(t["special"]) for t in told[activation]])
        if activation == "quick_gelu":
            folder = os.path.join(out, "safety_checker")
            model.half().save_pretrained(folder)
            model.float()
            config = json.load(open(folder + "/config.json"))
            config = {"projection_dim": config["projection_dim"], "architectures": config["architectures"],
                      "model_type": config["model_type"], "vision_config": config["vision_config"]}
            json.dump(config, open(folder + "/config.json", "w"), indent=1)
            extractor.save_pretrained(os.path.join(out, "feature_extractor"))
    with open(os.path.join(out, "scores.json"), "w") as f:
        json.dump(told, f)
        f.write("\n")


main(sys.argv[1])
