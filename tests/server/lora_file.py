"""LoRA files for the attention layers of a checkpoint, in kohya's format, written with the standard
library: random pairs, so that each file draws its own picture."""
import array
import json
import os
import random
import struct
import sys


def read_header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def safetensors(tensors, metadata=None):
    """The bytes of a file of f32 tensors {name: (shape, values)}."""
    header, data = {"__metadata__": metadata} if metadata else {}, []
    at = 0
    for name, (shape, values) in tensors.items():
        values = array.array("f", values)
        if sys.byteorder == "big":
            values.byteswap()
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        data.append(values.tobytes())
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def targets(model):
    """[(kohya's module name, outputs, inputs)] of a diffusers folder's attention layers."""
    found = []
    for part, prefix in (("unet", "lora_unet_"), ("text_encoder", "lora_te_text_model_")):
        folder = os.path.join(model, part)
        for file in sorted(os.listdir(folder)):
            if not file.endswith(".safetensors"):
                continue
            for name, entry in sorted(read_header(os.path.join(folder, file)).items()):
                if name.endswith(("to_q.weight", "to_v.weight", "q_proj.weight", "v_proj.weight")):
                    module = name[:-len(".weight")].removeprefix("text_model.").replace(".", "_")
                    found.append((prefix + module, *entry["shape"]))
    return found


def kohya_lora(model, seed, rank=4, strength=0.3):
    """The bytes of a LoRA whose numbers follow from the seed."""
    draw = random.Random(seed)
    tensors = {}
    for module, outputs, inputs in targets(model):
        down = [draw.gauss(0, 1) / inputs ** 0.5 for _ in range(rank * inputs)]
        up = [draw.gauss(0, strength) for _ in range(outputs * rank)]
        tensors[module + ".lora_down.weight"] = ([rank, inputs], down)
        tensors[module + ".lora_up.weight"] = ([outputs, rank], up)
        tensors[module + ".alpha"] = ([], [rank / 2])
    return safetensors(tensors, {"ss_network_dim": str(rank)})
