"""LoRA files in kohya's format for the attention layers of a checkpoint, written with the
standard library. Their numbers are random, so each file changes the picture in its own way."""
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
    """Returns the bytes of a safetensors file of f32 tensors, given as {name: (shape, values)}."""
    raw = {}
    for name, (shape, values) in tensors.items():
        values = array.array("f", values)
        if sys.byteorder == "big":
            values.byteswap()
        raw[name] = ("F32", shape, values.tobytes())
    return join(raw, metadata)


def join(tensors, metadata=None):
    """Returns the bytes of a safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = {"__metadata__": metadata} if metadata else {}, []
    at = 0
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        data.append(values)
        at += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def read_tensors(data):
    """Returns {name: (dtype, shape, bytes)} of a file's bytes, in the form that `join` takes."""
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def targets(model, leaves=("to_q", "to_v", "q_proj", "v_proj")):
    """Returns [(kohya's module name, outputs, inputs)] for the attention layers of a diffusers
    folder."""
    found = []
    for part, prefix in (("unet", "lora_unet_"), ("text_encoder", "lora_te_text_model_")):
        folder = os.path.join(model, part)
        for file in sorted(os.listdir(folder)):
            if not file.endswith(".safetensors"):
                continue
            for name, entry in sorted(read_header(os.path.join(folder, file)).items()):
                if name.endswith(tuple(f"{leaf}.weight" for leaf in leaves)):
                    module = name[:-len(".weight")].removeprefix("text_model.").replace(".", "_")
                    found.append((prefix + module, *entry["shape"]))
    return found


def kohya_lora(model, seed, rank=4, strength=0.3):
    """Returns the bytes of a LoRA with random numbers from the seed."""
    draw = random.Random(seed)
    tensors = {}
    for module, outputs, inputs in targets(model):
        down = [draw.gauss(0, 1) / inputs ** 0.5 for _ in range(rank * inputs)]
        up = [draw.gauss(0, strength) for _ in range(outputs * rank)]
        tensors[module + ".lora_down.weight"] = ([rank, inputs], down)
        tensors[module + ".lora_up.weight"] = ([outputs, rank], up)
        tensors[module + ".alpha"] = ([], [rank / 2])
    return safetensors(tensors, {"ss_network_dim": str(rank)})


def kohya_loha(model, seed, rank=2, strength=0.3):
    """Returns the bytes of a LoHa. The daemon has to copy the weights that a LoHa changes."""
    draw = random.Random(seed)
    tensors = {}
    for module, outputs, inputs in targets(model):
        for pair in ("hada_w1", "hada_w2"):
            tensors[f"{module}.{pair}_a"] = ([outputs, rank],
                                             [draw.gauss(0, strength) for _ in range(outputs * rank)])
            tensors[f"{module}.{pair}_b"] = ([rank, inputs], [draw.gauss(0, 1) / inputs ** 0.25
                                                              for _ in range(rank * inputs)])
        tensors[module + ".alpha"] = ([], [rank])
    return safetensors(tensors)


def half_lora(model, rank):
    """Returns the bytes of an f16 LoRA for to_q, to_k, to_v and to_out of the UNet's attentions,
    for measurements. Its numbers repeat every 4096."""
    draw = random.Random(rank)
    some = struct.pack("<4096e", *(draw.gauss(0, 0.02) for _ in range(4096)))

    def half(*shape):
        size = 2 * shape[0] * shape[1]
        return ("F16", list(shape), (some * (size // len(some) + 1))[:size])

    tensors = {}
    for module, outputs, inputs in targets(model, ("to_q", "to_k", "to_v", "to_out.0")):
        tensors[module + ".lora_down.weight"] = half(rank, inputs)
        tensors[module + ".lora_up.weight"] = half(outputs, rank)
    return join(tensors)
