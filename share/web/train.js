/* The room where adapters are trained: pictures in, a job, and how it goes. */
import { getIfThere, postJson } from "./api.js";
import { announce, element, find } from "./dom.js";
import { createDataset, listDatasets } from "./dataset.js";
import { control, drawer, optionControl, showFault } from "./fields.js";
import { createJobs } from "./jobs.js";

/* `sent`: also where it is the default. The others are left to the daemon unless they are changed, since it
 * refuses what has no effect beside the rest. */
function mainFields(info) {
    return [
        { name: "dataset", kind: "choice", label: "Data set", values: [["", "none yet"]], sent: true },
        { name: "instance_prompt", kind: "text", label: "Caption of pictures without one" },
        { name: "name", kind: "text", label: "Name of the adapter", sent: true },
        { name: "max_train_steps", kind: "integer", label: "Steps", default: 400, min: 1, slide: [50, 3000, 50], sent: true },
        { name: "resolution", kind: "integer", label: "Resolution", default: info.model.default_width, min: 64, max: 2048,
            step: 8, slide: [64, Math.max(512, info.model.default_width), 64], sent: true },
        { name: "rank", kind: "integer", label: "Rank", default: 16, min: 1, slide: [1, 64, 1] },
        { name: "train_batch_size", kind: "integer", label: "Batch", default: 1, min: 1, max: 256, slide: [1, 8, 1] },
        { name: "learning_rate", kind: "number", label: "Learning rate", default: 1e-4, min: 0, max: 10 },
    ];
}

const watchFields = () => [
    { name: "validation_prompts", kind: "text", label: "Validation prompts", rows: 3, placeholder: "one a line" },
    { name: "validation_steps", kind: "integer", label: "Every", default: 100, min: 1, slide: [10, 500, 10],
        help: "steps between validation pictures" },
    { name: "validation_guidance_scale", kind: "number", label: "Guidance", default: 7.5, min: 0, max: 100,
        slide: [1, 20, 0.1] },
    { name: "validation_share", kind: "number", label: "Held out", default: 0, min: 0, max: 0.9, step: 0.05,
        slide: [0, 0.5, 0.05], help: "share of the pictures kept for a validation loss" },
];

const moreFields = () => [
    { name: "target_modules", kind: "text", label: "Layers", placeholder: "to_q to_k to_v to_out.0" },
    { name: "train_text_encoder", kind: "flag", label: "Train the text encoder too", default: false },
    { name: "lr_scheduler", kind: "choice", label: "Learning rate schedule", default: "constant",
        values: ["constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial"] },
    { name: "lr_warmup_steps", kind: "integer", label: "Warm-up steps", default: 0, min: 0 },
    { name: "snr_gamma", kind: "number", label: "Min-SNR gamma", default: 0, min: 0, max: 1000 },
    { name: "noise_offset", kind: "number", label: "Noise offset", default: 0, min: 0, max: 10 },
    { name: "caption_dropout", kind: "number", label: "Caption dropout", default: 0, min: 0, max: 1, step: 0.05,
        slide: [0, 1, 0.05] },
    { name: "random_flip", kind: "flag", label: "Mirror half of the pictures", default: false },
    { name: "center_crop", kind: "flag", label: "Crop the middle", default: false },
    { name: "enable_bucket", kind: "flag", label: "Keep aspect ratios", default: false },
    { name: "gradient_checkpointing", kind: "flag", label: "Gradient checkpointing (less memory, more work)", default: false },
    { name: "mixed_precision", kind: "choice", label: "Precision", default: "no", values: ["no", "bf16", "fp16"] },
    { name: "checkpointing_steps", kind: "integer", label: "Checkpoint every", default: 500, min: 0, help: "steps" },
    { name: "seed", kind: "integer", label: "Seed", min: 0, placeholder: "random" },
];

/* All that the daemon takes beside those. */
async function otherFields(known) {
    const api = await getIfThere("/openapi.json");
    const schema = api?.paths["/train"]?.post.requestBody.content["application/json"].schema;
    return Object.entries(schema?.properties ?? {}).filter(([name]) => !known.has(name))
        .map(([name, option]) => ({ ...optionControl(name, option), option }));
}

/* Lists are written in words or lines, objects as JSON. */
function listOf(text, option) {
    if (option?.items?.type !== "string")
        return JSON.parse(text);
    return text.includes("\n") ? lines(text) : text.split(/[\s,]+/).filter(Boolean);
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function createTrainForm(info, onstart) {
    const specs = [mainFields(info), watchFields(), moreFields()];
    const parts = specs.map((list) => list.map((spec) => ({ ...control(spec), sent: spec.sent })));
    const all = parts.flat(); /* and the rest, once it is known */
    const named = Object.fromEntries(all.map((one) => [one.name, one]));
    const fault = element("p.fault", { role: "alert" });
    const roots = (list) => list.map((one) => one.root);
    const watch = drawer("Watching it", false, ...roots(parts[1]));
    const more = drawer("More", false, ...roots(parts[2]));
    const rest = drawer("All the rest", false);
    otherFields(new Set(all.map((one) => one.name))).then((found) => {
        all.push(...found);
        rest.root.querySelector(".inside").append(...roots(found));
        rest.root.hidden = !found.length;
    });
    const root = element("form", { noValidate: true, "aria-labelledby": "training-title", onsubmit: submit },
        element("h3", { id: "training-title" }, "Training"),
        element("div.inside", {}, ...roots(parts[0])), watch.root, more.root, rest.root, fault,
        element("div.go", {}, element("button.primary", { type: "submit" }, "Train")));

    /* The fields of the job. */
    function collect() {
        const fields = {};
        for (const one of all)
            if (one.get() !== undefined && (one.sent || one.get() !== one.default))
                fields[one.name] = one.get();
        for (const one of all)
            if (one.option?.type === "array" && one.name in fields)
                fields[one.name] = listOf(fields[one.name], one.option);
        if (fields.target_modules)
            fields.target_modules = listOf(fields.target_modules, { items: { type: "string" } });
        if (fields.num_train_epochs)
            delete fields.max_train_steps;
        if (fields.validation_prompts) {
            fields.validation_prompts = lines(fields.validation_prompts);
            fields.validation_guidance_scale = named.validation_guidance_scale.get();
        }
        if (fields.validation_epochs)
            delete fields.validation_steps;
        else if (fields.validation_prompts || fields.validation_share)
            fields.validation_steps = named.validation_steps.get();
        else
            delete fields.validation_steps;
        return fields;
    }

    async function submit(event) {
        event.preventDefault();
        fault.textContent = "";
        try {
            const fields = collect();
            const job = await postJson("/train", fields);
            announce(`${fields.name} is in the queue`);
            onstart(job.id);
        } catch (error) {
            if (!showFault(all, error.param, error.message))
                fault.textContent = error.message;
        }
    }

    async function refresh(chosen) {
        const names = await listDatasets();
        named.dataset.setValues(names?.length ? names : [["", "none yet"]]);
        if (chosen)
            named.dataset.set(chosen);
        if (chosen && !named.name.get())
            named.name.set(chosen);
        return names !== null;
    }

    return { root, refresh };
}

/* `useAdapter(name)` goes and draws with what was trained. */
export function createTraining(info, useAdapter) {
    const jobs = createJobs(useAdapter);
    const form = createTrainForm(info, (id) => jobs.refresh().then(() => jobs.show(id)));
    const dataset = createDataset((name) => form.refresh(name));
    const closed = element("p.hint", { hidden: true },
        "This daemon does not train: start it with --state-dir, --dataset-root and --lora-dir.");
    const pictures = element("section", { "aria-labelledby": "pictures-title" },
        element("h3", { id: "pictures-title" }, "Pictures to learn from"), dataset.root);
    find("#train-forms").replaceChildren(closed, pictures, form.root);
    document.addEventListener("room", async (event) => {
        if (event.detail !== "train")
            return;
        const open = await form.refresh().catch(() => true);
        closed.hidden = open;
        pictures.hidden = form.root.hidden = !open;
    });
}
