"""litellm, LangChain and LlamaIndex draw with the daemon and the bundled checkpoint, each with its
own defaults: it names one of OpenAI's models and reads the fields that this model answers. usage:
scripts/soak toolkits, or PYTHON toolkits.py LATENTD MODEL"""
import base64
import io
import os
import sys
import tempfile
import urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network
import litellm
import numpy as np
from langchain_community.utilities.dalle_image_generator import DallEAPIWrapper
from llama_index.tools.openai.image_generation.base import OpenAIImageGenerationToolSpec
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done

latentd, model = sys.argv[1:3]
PROMPT = "a red house on green hills"
FEW = {"seed": 7, "guidance_scale": 2.5, "num_inference_steps": 2}


def picture(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def fetched(url):
    with urllib.request.urlopen(url) as answer:
        return picture(answer.read())


def drawn_by_litellm(d, base):
    options = {"api_base": base, "api_key": "none"}
    got = litellm.image_generation(model="openai/dall-e-3", prompt=PROMPT, size="64x64", extra_body=FEW, **options)
    both = got.data[0]
    check((np.asarray(fetched(both.url)) == np.asarray(picture(base64.b64decode(both.b64_json)))).all(),
          "url and b64_json are the same picture")
    got = litellm.image_generation(model="openai/gpt-image-1", prompt=PROMPT, size="64x64", extra_body=FEW, **options)
    check(got.data[0].b64_json and not got.data[0].url, "gpt-image-1 answers in base64")
    file = io.BytesIO()
    fetched(both.url).save(file, "WEBP")
    edit = litellm.image_edit(model="openai/gpt-image-1", image=[io.BytesIO(file.getvalue())], prompt="a blue house",
                              size="64x64", **options, **FEW)
    check(picture(base64.b64decode(edit.data[0].b64_json)).size == (64, 64), "a WebP can be edited")
    vary = litellm.image_variation(model="openai/dall-e-2", image=io.BytesIO(file.getvalue()), **options)
    check(picture(base64.b64decode(vary.data[0].b64_json)).size == (64, 64),
          "a variation has the picture's size")


def drawn_by_langchain(d, base):
    for more in ({}, {"model": "sd15"}):  # its default is dall-e-2
        urls = DallEAPIWrapper(base_url=base, api_key="none", n=2, size="64x64", **more).run(PROMPT).split("\n")
        sizes = [fetched(url).size for url in urls]
        check(sizes == [(64, 64)] * 2,
              f"the client reads `url` although it does not ask for it: {urls} {sizes}")


def drawn_by_llama_index(d, base):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPENAI_BASE_URL"] = base
        tool = OpenAIImageGenerationToolSpec(api_key="none", cache_dir=folder)
        url = tool.image_generation(PROMPT, model="dall-e-2", size="256x256")
        check(fetched(url).size == (256, 256), url)
        path, = tool.image_generation(PROMPT, model="dall-e-2", size="256x256", num_images=1, download=True)
        check(Image.open(path).size == (256, 256), path)


served = ("dall-e-2", "dall-e-3", "gpt-image-1")
with Daemon(latentd, model, extra=tuple(f"--served-model-name={name}" for name in served)) as d:
    base = f"http://{d.host}:{d.port}/v1"
    drawn_by_litellm(d, base)
    drawn_by_langchain(d, base)
    drawn_by_llama_index(d, base)
done()
