"""Generates a client from GET /openapi.json with openapi-python-client's default settings, then
draws and trains with it. On every route the client must have classes with attributes for
bodies and answers. usage: typed_client.py LATENTD MODEL"""
import base64
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
import typing

import picture
import trainer
from daemon import check, done

# Media types that the package does not support. It warns about them, but generates the calls; an
# answer of such a type is given as bytes.
UNKNOWN_MEDIA = {
    "PUT /datasets/{name}": {"application/x-tar", "application/gzip", "application/x-gzip"},
    "PUT /loras/{name}": {"application/x-safetensors", "application/safetensors"},
    "GET /jobs/{id}/preview": {"image/jpeg"}, "GET /jobs/{id}/metrics": {"application/x-ndjson"},
    "GET /jobs/{id}/plot.svg": {"image/svg+xml"}, "GET /jobs/{id}/validation/{file}": {"image/png"},
    "GET /v1/images/files/{id}": {"image/png, image/jpeg, image/webp"},
    "POST /hf": {"image/png, image/jpeg, image/webp"}}
LITTLE = {"width": 64, "height": 64, "num_inference_steps": 2, "seed": 7}


def generate(d, work):
    """Makes the package latentd_client in `work`."""
    path = os.path.join(work, "openapi.json")
    with open(path, "wb") as f:
        f.write(d.get("/openapi.json").body)
    r = subprocess.run([sys.executable, "-m", "openapi_python_client", "generate", "--path", path, "--output-path",
                        os.path.join(work, "made")], capture_output=True, text=True,
                       env={**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]})
    said = r.stdout + r.stderr
    check(r.returncode == 0 and "will not be generated" not in said, said[-3000:])
    warned = {}
    for route, why in re.findall(r"WARNING parsing (.+) within \w+\.\s+(.+)", said):
        kind = re.search(r"Unsupported content[_ ]type ([^)]+)", why)
        warned.setdefault(route, set()).add(kind[1] if kind else why)
    check(warned == UNKNOWN_MEDIA and said.count("WARNING") == sum(map(len, UNKNOWN_MEDIA.values())),
          f"warnings: {warned}: {said[-3000:]}")
    sys.path.insert(0, os.path.join(work, "made"))


def call(operation, tag="latentd"):
    return importlib.import_module(f"latentd_client.api.{tag}.{operation}")


def every_operation_is_typed(document):
    models = importlib.import_module("latentd_client.models")
    count = bodies = 0
    for path, item in document["paths"].items():
        for method, said in item.items():
            what = f"{method.upper()} {path}"
            hints = typing.get_type_hints(call(said["operationId"], said["tags"][0]).sync_detailed)
            parsed = typing.get_args(hints["return"])[0]
            kinds = set(typing.get_args(parsed) or [parsed])
            answers = [a for status, a in said["responses"].items() if not status.endswith("XX")]
            is_json = all("application/json" in a.get("content", ()) for a in answers)
            check(not is_json or typing.Any not in kinds, f"{what} answers {parsed}")
            content = said.get("requestBody", {}).get("content", {})
            count_of = len({"application/json", "multipart/form-data"} & set(content))
            if count_of:
                body = [k for k in typing.get_args(hints["body"]) or [hints["body"]] if k.__name__ != "Unset"]
                check(len(body) == count_of and all(hasattr(models, b.__name__) for b in body), f"{what} takes {body}")
                bodies += 1
            count += 1
    check(count > 80 and bodies > 15, f"{count} operations, {bodies} bodies")
    print(f"{count} operations, {bodies} with a body that is a class")


def draws(client, d):
    from latentd_client import models
    from latentd_client.types import File

    body = models.PostGenerateBody(prompt="a red house", **LITTLE, scheduler=models.PostGenerateBodySchedulerType1(
        name=models.PostGenerateBodySchedulerType1Name.EULER, use_karras_sigmas=True))
    drawn = call("post_generate").sync(client=client, body=body)
    png = base64.b64decode(drawn.images[0].b64_json)
    check(isinstance(drawn, models.Drawing) and drawn.images[0].seed == 7 and drawn.images[0].width == 64 and
          drawn.timings.steps == 2 and png.startswith(b"\x89PNG") and drawn.warnings == [], f"{drawn}"[:500])
    # The client sends every default that the document has. The result must be the same as without
    # them.
    check(len(body.to_dict()) > 10, f"{body.to_dict()}")
    plain = d.generate({"prompt": "a red house", **LITTLE,
                        "scheduler": {"name": "euler", "use_karras_sigmas": True}}).json()
    check(drawn.parameters.to_dict() == plain["parameters"] and drawn.images[0].b64_json == plain["images"][0]["b64_json"],
          f"{drawn.parameters.to_dict()}, not {plain['parameters']}")
    wrong = call("post_generate").sync(client=client, body=models.PostGenerateBody(prompt="x", width=65))
    check(isinstance(wrong, models.Error) and wrong.error.param == "width" and wrong.error.value == "65", f"{wrong}")
    job = call("post_generate").sync(client=client, body=body, async_=1)
    check(isinstance(job, models.Job) and job.type_ == "generate", f"{job}")
    job = call("get_jobs_id").sync(job.id, client=client, wait=60)
    check(job.state == models.JobState.SUCCEEDED and isinstance(job.result, models.StoredDrawing), f"{job}")
    file = call("get_jobs_id_images_file").sync_detailed(job.id, "0.png", client=client)
    check(file.status_code == 200 and file.content[:4] == b"\x89PNG", f"{file.status_code}")
    listed = call("get_jobs").sync(client=client, limit=1)
    check([one.id for one in listed.jobs] == [job.id] and listed.has_more is False, f"{listed}")
    edit = models.PostV1ImagesEditsFilesBody(image=File(io.BytesIO(png), "a.png", "image/png"), prompt="snow",
                                             size="64x64", num_inference_steps=2, seed=3)
    edited = call("post_v1_images_edits", "openai").sync(client=client, body=edit)
    check(isinstance(edited, models.OpenaiImages) and edited.data[0].seed == 3 and edited.size == "64x64", f"{edited}"[:500])
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    edit = models.PostV1ImagesEditsJsonBody(images=[models.PostV1ImagesEditsJsonBodyImagesItem(image_url=url)],
                                            prompt="snow", size="64x64", num_inference_steps=2, seed=3)
    again = call("post_v1_images_edits", "openai").sync(client=client, body=edit)
    check(again.data[0].b64_json == edited.data[0].b64_json,
          "the edit in JSON draws the same picture")
    order = models.PostV1ImagesGenerationsBody(prompt="snow", size="64x64",
                                               quality=models.PostV1ImagesGenerationsBodyQualityType0.LOW)
    drawn = call("post_v1_images_generations", "openai").sync(client=client, body=order)
    check(isinstance(drawn, models.OpenaiImages) and drawn.quality == "low", f"{drawn}"[:500])
    theirs = models.PostSdapiV1Txt2ImgBody(prompt="a red house", width=64, height=64, steps=2, seed=7)
    told = call("post_sdapi_v1_txt2img", "a1111").sync(client=client, body=theirs)
    check(isinstance(told, models.SdapiImages) and len(told.images) == 1, f"{told}"[:500])


def trains(client):
    from latentd_client import models
    from latentd_client.types import File

    body = models.PostTrainBody(name="typed", dataset="stripes", resolution=64, rank=4, max_train_steps=2, seed=1)
    job = call("post_train").sync(client=client, body=body)
    check(isinstance(job, models.Job) and job.request["rank"] == 4, f"{job}")
    job = call("get_jobs_id").sync(job.id, client=client, wait=60)
    check(isinstance(job.result, models.TrainedAdapter) and job.result.adapter == "typed" and job.metrics.step == 2,
          f"{job}")
    lora = call("post_loras_name").sync("typed", client=client, body=models.PostLorasNameBody(default_weight=0.5))
    check(isinstance(lora, models.Lora) and lora.default_weight == 0.5 and lora.ranks[0].value == 4, f"{lora}")
    bytes_ = call("get_jobs_id_adapter").sync(job.id, client=client)
    again = call("put_loras_name").sync("again", client=client, body=bytes_)
    check(again.name == "again" and again.unet_modules == lora.unet_modules, f"{again}")
    names = [one.name for one in call("get_loras").sync(client=client).loras]
    check(names == ["again", "typed", "typed@2"], f"{names}")  # typed@2 is the job's checkpoint
    gone = call("delete_loras_name").sync_detailed("again", client=client)
    check(gone.status_code == 204 and gone.parsed is None, f"{gone}")
    data = call("get_datasets_name").sync("stripes", client=client)
    check(isinstance(data, models.Dataset) and data.pictures == 5 and data.sizes.largest == [96, 80], f"{data}")


trainer.make_pictures()
with tempfile.TemporaryDirectory() as folder, trainer.Trainer() as daemon:
    generate(daemon, folder)
    from latentd_client import Client

    every_operation_is_typed(daemon.get("/openapi.json").json())
    with Client(base_url=f"http://{daemon.host}:{daemon.port}", timeout=100) as made:
        draws(made, daemon)
        trains(made)
done()
