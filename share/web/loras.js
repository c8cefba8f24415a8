/* The adapters of a picture, each with a switch, its weights and a menu for its file. */
import { getIfThere, postJson, request } from "./api.js";
import { announce, button, bytes, confirmed, element, freshId, number, takeFiles } from "./dom.js";

const RANGE = { min: -1, max: 2, step: 0.05 }, LIMIT = 100;
const LONG_NAME = 14; /* in letters; a longer name has a line of its own */
const SEARCH_FROM = 6; /* a list of this many adapters has a search */
const pathOf = (name) => `/loras/${encodeURIComponent(name)}`;

/* A weight, as a slider and as a number. */
function weight(label, value, oninput) {
    const id = freshId("weight");
    const slider = element("input", { type: "range", ...RANGE, "aria-label": label, value });
    const field = element("input", { type: "number", id, step: 0.05, min: -LIMIT, max: LIMIT, value,
        "aria-label": `${label}, as a number` });
    slider.addEventListener("input", () => { field.value = slider.value; oninput(); });
    field.addEventListener("input", () => { slider.value = field.value; oninput(); });
    return { slider, field, get: () => Number(field.value),
        set: (to) => { field.value = to; slider.value = to; } };
}

/* The details of an adapter, with buttons that change or delete it. `change(fields)` and `remove()`
 * resolve when the daemon has answered. */
function about(lora, unet, texts, { change, remove }) {
    const known = [lora.kinds?.join(", "), lora.ranks?.length ? `rank ${lora.ranks.map((one) => one.value).join(", ")}` : "",
        bytes(lora.file_bytes)].filter(Boolean).join(", ");
    const standing = lora.default_weight === null ? "" : `, used by default at ${number(lora.default_weight)}`;
    const weights = () => ({ default_weight: unet.get(), ...(texts ? { text_encoder_weight: texts.get() } : {}) });
    const buttons = [button("Use by default", () => change(weights()))];
    if (lora.default_weight !== null)
        buttons.push(button("Not by default", () => change({ default_weight: null })));
    buttons.push(button("Delete", remove));
    for (const one of buttons)
        one.setAttribute("aria-label", `${one.textContent}: ${lora.name}`);
    const panel = element("div.about", { hidden: true }, element("p.hint", {}, known + standing),
        element("div.row", {}, ...buttons));
    const more = button("…", () => {
        panel.hidden = !panel.hidden;
        more.setAttribute("aria-expanded", String(!panel.hidden));
    }, { className: "quiet", "aria-label": `… more about ${lora.name}`, "aria-expanded": "false" });
    return [more, panel];
}

function row(lora, actions) {
    const box = element("input", { type: "checkbox", id: freshId("lora") });
    const on = () => { box.checked = true; };
    const unet = weight(`Weight of ${lora.name}`, lora.default_weight ?? 1, on);
    const texts = lora.text_encoder_modules > 0
        ? weight(`Weight of ${lora.name} in the text encoder`, lora.text_encoder_weight ?? 1, on) : null;
    box.checked = lora.default_weight !== null;
    const root = element("li.lora", { "data-name": lora.name }, box,
        element("label", { htmlFor: box.id }, lora.name), unet.slider, unet.field,
        texts && element("span.sub", {}, "text encoder"), texts?.slider, texts?.field,
        lora.trigger_words && element("small.hint.trigger", {}, `Trigger words: ${lora.trigger_words}`),
        lora.error && element("small.fault", {}, lora.error.message), ...(actions ? about(lora, unet, texts, actions) : []));
    root.classList.toggle("long", lora.name.length > LONG_NAME);
    const get = () => ({ name: lora.name, weight: unet.get(),
        ...(texts ? { text_encoder_weight: texts.get() } : {}) });
    const set = (to) => {
        box.checked = Boolean(to);
        if (!to)
            return;
        unet.set(to.weight);
        texts?.set(to.text_encoder_weight ?? to.weight);
    };
    return { name: lora.name, known: `${lora.name} ${lora.trigger_words ?? ""}`.toLowerCase(), box, root, get, set };
}

/* Hides the rows whose names and trigger words lack one of the words, unless they are chosen. */
function createSearch(rows) {
    const input = element("input", { type: "search", "aria-label": "Search the LoRAs", placeholder: "search" });
    const apply = () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const { known, box, root } of rows())
            root.hidden = !box.checked && !words.every((word) => known.includes(word));
    };
    input.addEventListener("input", (event) => {
        event.stopPropagation();
        apply();
    });
    return { input, apply };
}

/* A control like those of fields.js: { name: "loras", root, get, set, fits, wrong }, and refresh(). */
export function createLoras() {
    const list = element("ul.loras");
    const empty = element("p.hint", {}, "None yet.");
    const fault = element("small.fault", { hidden: true, role: "alert" });
    const input = element("input", { type: "file", accept: ".safetensors", multiple: true,
        id: freshId("lora-file") });
    const add = element("p.drop", {},
        element("label.button", { htmlFor: input.id }, "Add a file"), input,
        element("span.hint", {}, "or drop .safetensors here"));
    let rows = [];
    const search = createSearch(() => rows);
    const root = element("div", {}, search.input, list, empty, add, fault);

    const wrong = (text) => {
        fault.textContent = text;
        fault.hidden = !text;
    };
    const chosen = () => rows.filter((one) => one.box.checked).map((one) => one.get());
    const tell = () => root.dispatchEvent(new Event("input", { bubbles: true }));
    const has = (name) => rows.some((one) => one.name === name);
    const weighs = (value) => value === undefined || Number.isFinite(value) && Math.abs(value) <= LIMIT;
    const fits = (lora) => has(lora?.name) && weighs(lora.weight) && weighs(lora.text_encoder_weight);

    /* Runs a change of an adapter, shows its error if it fails, and reads the list again. */
    async function attempt(name, work, done) {
        wrong("");
        try {
            await work();
            announce(done);
        } catch (error) {
            wrong(`${name}: ${error.message}`);
        }
        await refresh();
        list.querySelector(`[data-name="${CSS.escape(name)}"] .quiet`)?.focus();
    }

    const actionsOf = (name) => ({
        change: (fields) => attempt(name, () => postJson(pathOf(name), fields), `${name}: changed`),
        async remove() {
            if (await confirmed(`Delete the LoRA “${name}” and its file?`, "Delete"))
                await attempt(name, () => request("DELETE", pathOf(name)), `${name} is deleted`);
        },
    });

    async function refresh() {
        const before = new Map(rows.map((one) => [one.name, one.box.checked ? one.get() : null]));
        const answer = await getIfThere("/loras");
        const known = (answer?.loras ?? []).toSorted((a, b) => a.name.localeCompare(b.name));
        rows = known.map((lora) => row(lora, answer.folder ? actionsOf(lora.name) : null));
        for (const one of rows)
            if (before.has(one.name))
                one.set(before.get(one.name));
        list.replaceChildren(...rows.map((one) => one.root));
        empty.hidden = rows.length > 0;
        search.input.hidden = rows.length < SEARCH_FROM;
        search.apply();
        add.hidden = !answer?.folder;
        tell();
    }

    async function send(files) {
        wrong("");
        for (const file of files) {
            const name = file.name.replace(/\.safetensors$/, "");
            try {
                announce(`Sending ${name}`);
                await request("PUT", pathOf(name), { body: file });
                announce(`${name} can be used`);
            } catch (error) {
                wrong(`${name}: ${error.message}`);
            }
        }
        await refresh();
    }

    takeFiles(root, input, send);
    return {
        name: "loras", root, input, wrong, refresh, get: chosen, has, fits,
        names: () => rows.map((one) => one.name),
        /* Adapters that this daemon does not have are left out, and a message names them. */
        set(loras) {
            for (const one of rows)
                one.set((loras ?? []).find((lora) => lora?.name === one.name && fits(lora)));
            const missing = (loras ?? []).filter((lora) => !has(lora?.name));
            wrong(missing.length ? `no longer here: ${missing.map((lora) => lora?.name).join(", ")}` : "");
            search.apply();
            tell();
        },
        digest: () => chosen().map((lora) => `${lora.name} ${number(lora.weight)}`).join(", ") || "none",
    };
}
