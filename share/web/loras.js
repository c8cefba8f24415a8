/* The adapters of a picture: each with a switch and its weight. */
import { getIfThere, request } from "./api.js";
import { announce, element, freshId, number, takeFiles } from "./dom.js";

const RANGE = { min: -1, max: 2, step: 0.05 };

/* One weight: a slider for the hand, a number for whoever knows it. */
function weight(label, value, oninput) {
    const id = freshId("weight");
    const slider = element("input", { type: "range", ...RANGE, "aria-label": label, value });
    const field = element("input", { type: "number", id, step: 0.05, min: -100, max: 100, value,
        "aria-label": `${label}, as a number` });
    slider.addEventListener("input", () => { field.value = slider.value; oninput(); });
    field.addEventListener("input", () => { slider.value = field.value; oninput(); });
    return { slider, field, get: () => Number(field.value),
        set: (to) => { field.value = to; slider.value = to; } };
}

function row(lora) {
    const box = element("input", { type: "checkbox", id: freshId("lora") });
    const on = () => { box.checked = true; };
    const unet = weight(`Weight of ${lora.name}`, lora.default_weight ?? 1, on);
    const texts = lora.text_encoder_modules > 0
        ? weight(`Weight of ${lora.name} in the text encoder`, lora.text_encoder_weight ?? 1, on) : null;
    box.checked = lora.default_weight !== null;
    const root = element("li.lora", { "data-name": lora.name }, box,
        element("label", { htmlFor: box.id }, lora.name), unet.slider, unet.field,
        texts && element("span.sub", {}, "text encoder"), texts?.slider, texts?.field,
        lora.error && element("small.fault", {}, lora.error.message));
    const get = () => ({ name: lora.name, weight: unet.get(),
        ...(texts ? { text_encoder_weight: texts.get() } : {}) });
    const set = (to) => {
        box.checked = Boolean(to);
        if (!to)
            return;
        unet.set(to.weight);
        texts?.set(to.text_encoder_weight ?? to.weight);
    };
    return { name: lora.name, box, root, get, set };
}

/* A control as those of fields.js: { name: "loras", root, get, set, wrong }, and refresh(). */
export function createLoras() {
    const list = element("ul.loras");
    const empty = element("p.hint", {}, "None yet.");
    const fault = element("small.fault", { hidden: true });
    const input = element("input", { type: "file", accept: ".safetensors", multiple: true,
        id: freshId("lora-file") });
    const add = element("p.drop", {},
        element("label.button", { htmlFor: input.id }, "Add a file"), input,
        element("span.hint", {}, "or drop .safetensors here"));
    const root = element("div", {}, list, empty, add, fault);
    let rows = [];

    const wrong = (text) => {
        fault.textContent = text;
        fault.hidden = !text;
    };
    const chosen = () => rows.filter((one) => one.box.checked).map((one) => one.get());
    const tell = () => root.dispatchEvent(new Event("input", { bubbles: true }));

    async function refresh() {
        const before = new Map(rows.map((one) => [one.name, one.box.checked ? one.get() : null]));
        const answer = await getIfThere("/loras");
        const known = (answer?.loras ?? []).toSorted((a, b) => a.name.localeCompare(b.name));
        rows = known.map(row);
        for (const one of rows)
            if (before.has(one.name))
                one.set(before.get(one.name));
        list.replaceChildren(...rows.map((one) => one.root));
        empty.hidden = rows.length > 0;
        add.hidden = !answer?.folder;
        tell();
    }

    async function send(files) {
        wrong("");
        for (const file of files) {
            const name = file.name.replace(/\.safetensors$/, "");
            try {
                announce(`Sending ${name}`);
                await request("PUT", `/loras/${encodeURIComponent(name)}`, { body: file });
                announce(`${name} can be used`);
            } catch (error) {
                wrong(`${name}: ${error.message}`);
            }
        }
        await refresh();
    }

    takeFiles(root, input, send);
    return {
        name: "loras", root, input, wrong, refresh, get: chosen,
        set(loras) {
            for (const one of rows)
                one.set((loras ?? []).find((lora) => lora.name === one.name));
            const missing = (loras ?? []).filter((lora) => !rows.some((one) => one.name === lora.name));
            wrong(missing.length ? `no longer here: ${missing.map((lora) => lora.name).join(", ")}` : "");
            tell();
        },
        has: (name) => rows.some((one) => one.name === name),
        digest: () => chosen().map((lora) => `${lora.name} ${number(lora.weight)}`).join(", ") || "none",
    };
}
