/* Reads from a picture's file how it was drawn. latentd's pictures contain their whole request,
 * AUTOMATIC1111's contain an infotext. The daemon reads the file. */
import { postJson } from "./api.js";
import { blobToDataUrl } from "./dom.js";

/* AUTOMATIC1111's names of numbers, and ours. */
const NUMBERS = { "Steps": "num_inference_steps", "CFG scale": "guidance_scale", "Seed": "seed",
    "Variation seed": "subseed", "Variation seed strength": "subseed_strength",
    "Seed resize from-1": "seed_resize_from_w", "Seed resize from-2": "seed_resize_from_h", "Size-1": "width", "Size-2": "height" };
/* Entries of an infotext that are not settings, or that are handled below. */
const KNOWN = new Set([...Object.keys(NUMBERS), "Prompt", "Negative prompt", "Sampler", "Schedule type", "Eta", "Clip skip",
    "RNG", "Version", "Model", "Model hash", "VAE", "VAE hash", "Lora hashes", "TI hashes", "Hashes"]);
const TAG = /<lora:([^<>:]+)(?::[^<>]*)?>/g;

/* Returns latentd's request, or null if the file has none. */
function ownRequest(items) {
    for (const text of [items.latentd, items.ImageDescription]) {
        try {
            const fields = JSON.parse(text);
            if (typeof fields.prompt === "string" || fields.prompt_embeds)
                return fields;
        } catch { /* another program's text */ }
    }
    return null;
}

/* Makes fields of an infotext. Adds to `left` the settings that this daemon does not have.
 * `parameters` also has AUTOMATIC1111's defaults; only entries that occur in the text `info` are
 * from the file. */
function fromText({ info, parameters, scheduler }, hasLora, model, left) {
    const said = (name) => info.includes(`${name}: `);
    const fields = { prompt_syntax: "a1111", negative_prompt: parameters["Negative prompt"],
        rng: parameters.RNG === "CPU" ? "cpu" : "cuda", clip_skip: Math.max(0, Number(parameters["Clip skip"]) - 1) };
    fields.prompt = parameters.Prompt.replace(TAG, (tag, name) => {
        if (hasLora(name))
            return tag;
        left.push(`LoRA ${name}`);
        return "";
    }).trim();
    for (const [theirs, ours] of Object.entries(NUMBERS))
        if (theirs in parameters)
            fields[ours] = Number(parameters[theirs]);
    if (scheduler)
        fields.scheduler = scheduler;
    else if ("Sampler" in parameters)
        left.push(`sampler ${parameters.Sampler}, ${parameters["Schedule type"]}`);
    for (const [name, value] of Object.entries(parameters))
        if (!KNOWN.has(name) && said(name.replace(/-[12]$/, "")))
            left.push(`${name} ${value}`);
    if (said("Model") && parameters.Model !== model)
        left.push(`model ${parameters.Model}`);
    return fields;
}

/* Resolves to { fields, left }: fields of POST /generate, and descriptions of the settings that
 * could not be taken over. `hasLora(name)` says whether the daemon has this adapter. Throws if the
 * file has no parameters. */
export async function recall(file, hasLora, model) {
    const answer = await postJson("/sdapi/v1/png-info", { image: await blobToDataUrl(file) });
    const left = [], own = ownRequest(answer.items);
    if (own)
        return { fields: own, left };
    if (!answer.parameters || !("Steps" in answer.parameters))
        throw new Error("This file does not say how it was drawn.");
    return { fields: fromText(answer, hasLora, model, left), left };
}
