/* The room "Train": data sets, the form of a training job, and the jobs. */
import { getIfThere, postJson, request } from "./api.js";
import { announce, button, confirmed, element, find } from "./dom.js";
import { createDataset, listDatasets } from "./dataset.js";
import { control, drawer, optionControl, showFault } from "./fields.js";
import { createJobs } from "./jobs.js";
import { TRAIN_WORDS } from "./trainwords.js";

/* `sent`: the field is sent even if it has its default. Other fields are sent only if the user has
 * changed them, because the daemon refuses fields that have no effect beside the others. */
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

const watchFields = (info) => [
    { name: "validation_prompts", kind: "text", label: "Validation prompts", rows: 3, placeholder: "one a line" },
    { name: "validation_steps", kind: "integer", label: "Every", default: 100, min: 1, slide: [10, 500, 10],
        help: "steps between validation pictures" },
    { name: "validation_guidance_scale", kind: "number", label: "Guidance", default: info.model.defaults.guidance_scale, min: 1, max: 100,
        slide: [1, 20, 0.1] },
    { name: "validation_share", kind: "number", label: "Held out", default: 0, min: 0, max: 0.9, step: 0.05,
        slide: [0, 0.5, 0.05], help: "share of the pictures kept for a validation loss" },
];

const changed = (control) => control.get() !== undefined && control.get() !== control.default;

/* Returns the help text without the label at its beginning, which stands above it anyway. */
const withoutLabel = (help, label) => (help.toLowerCase().startsWith(label.toLowerCase())
    ? help.slice(label.length).replace(/^[;,]?\s*/, "") : help);

/* Returns controls for the schema's fields that are not in `known`, as [title, controls], in the
 * groups of trainwords.js. */
function groupsOf(schema, known) {
    const left = new Map(Object.entries(schema?.properties ?? {}).filter(([name]) => !known.has(name)));
    const take = (name, label = name.replaceAll("_", " "), words = "") => {
        const option = left.get(name), description = withoutLabel(option.description ?? "", label);
        const made = { ...optionControl(name, { ...option, description }, label), option };
        made.text = [label, name.replaceAll("_", " "), option.description, words].join(" ").toLowerCase();
        left.delete(name);
        return made;
    };
    const groups = TRAIN_WORDS.map(([title, fields]) => [title, Object.entries(fields)
        .filter(([name]) => left.has(name)).map(([name, [label, words]]) => take(name, label, words))]);
    groups.at(-1)[1].push(...[...left.keys()].map((name) => take(name)));
    return groups.filter(([, controls]) => controls.length);
}

/* Returns controls for all fields of a job that are not in `known`, with a search: { all, root,
 * showAll() }. At first only the fields that are often changed are shown, and those that the user
 * has changed. */
async function createOthers(known) {
    const api = await getIfThere("/openapi.json");
    const groups = groupsOf(api?.paths["/train"]?.post.requestBody.content["application/json"].schema, known);
    const sections = groups.map(([title, controls], index) => ({ controls, often: index === 0,
        root: element("section", { "aria-label": title }, element("h4", {}, title), ...controls.map((one) => one.root)) }));
    const all = sections.flatMap((one) => one.controls);
    const input = element("input", { type: "search", "aria-label": "Search the settings",
        placeholder: "search: memory, flip, learning rate …" });
    const count = element("span.hint", { role: "status" });
    const every = button("Show all", () => { every.hidden = true; input.value = ""; search(); });
    function search() {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const { controls, root, often } of sections) {
            for (const one of controls)
                one.root.hidden = words.length ? !words.every((word) => one.text.includes(word))
                                               : !often && !every.hidden && !changed(one);
            root.hidden = controls.every((one) => one.root.hidden);
        }
        const seen = all.filter((one) => !one.root.hidden).length;
        count.textContent = words.length || !every.hidden ? `${seen} of ${all.length} settings` : "";
    }
    input.addEventListener("input", search);
    search();
    return { all, showAll: () => every.click(), root: element("div.others", {}, input,
        element("div.row", {}, count, every), ...sections.map((one) => one.root)) };
}

/* Lists are entered as words or lines, objects as JSON. */
function listOf(text, option) {
    if (option?.items?.type !== "string")
        return JSON.parse(text);
    return text.includes("\n") ? lines(text) : text.split(/[\s,]+/).filter(Boolean);
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function createTrainForm(info, onstart) {
    const specs = [mainFields(info), watchFields(info)];
    const parts = specs.map((list) => list.map((spec) => ({ ...control(spec), sent: spec.sent })));
    const all = parts.flat(); /* the other fields are added once the schema is loaded */
    const named = Object.fromEntries(all.map((one) => [one.name, one]));
    const fault = element("p.fault", { role: "alert" });
    const roots = (list) => list.map((one) => one.root);
    const watch = drawer("Watching it", false, ...roots(parts[1]));
    const rest = drawer("All settings", false);
    let others = null;
    createOthers(new Set(all.map((one) => one.name))).then((found) => {
        others = found;
        all.push(...found.all);
        rest.root.querySelector(".inside").append(found.root);
        rest.root.hidden = !found.all.length;
    });
    rest.root.addEventListener("input", () => {
        const count = (others?.all ?? []).filter(changed).length;
        rest.say(count ? `${count} changed` : "");
    });
    const away = button("Delete it", deleteDataset, { "aria-label": "Delete this data set", hidden: true });
    named.dataset.root.append(element("div.row", {}, away));
    const root = element("form", { noValidate: true, "aria-labelledby": "training-title", onsubmit: submit },
        element("h3", { id: "training-title" }, "Training"),
        element("div.inside", {}, ...roots(parts[0])), watch.root, rest.root, fault,
        element("div.go", {}, element("button.primary", { type: "submit" }, "Train")));

    /* Returns the fields of the job. */
    function collect() {
        const fields = {};
        for (const one of all)
            if (one.get() !== undefined && (one.sent || changed(one)))
                fields[one.name] = one.get();
        for (const one of all)
            if (one.option?.type === "array" && one.name in fields)
                fields[one.name] = listOf(fields[one.name], one.option);
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
            if (others?.all.some((one) => one.name === error.param && one.root.closest("[hidden]")))
                others.showAll();
            if (!showFault(all, error))
                fault.textContent = error.message;
        }
    }

    async function deleteDataset() {
        const name = named.dataset.get();
        if (!await confirmed(`Delete the data set “${name}” and its pictures?`, "Delete"))
            return;
        try {
            await request("DELETE", `/datasets/${encodeURIComponent(name)}`);
            announce(`${name} is deleted`);
        } catch (error) {
            named.dataset.wrong(error.message);
        }
        await refresh();
        named.dataset.input.focus();
    }

    async function refresh(chosen) {
        const names = await listDatasets();
        away.hidden = !names?.length;
        named.dataset.setValues(names?.length ? names : [["", "none yet"]]);
        if (chosen)
            named.dataset.set(chosen);
        if (chosen && !named.name.get())
            named.name.set(chosen);
        return names !== null;
    }

    return { root, refresh };
}

/* `useAdapter(name)` goes to the drawing form with the trained adapter. */
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
