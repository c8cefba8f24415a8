/* Pictures that differ in one or two settings, side by side. Each is an ordinary request. */
import { announce, button, download, element, find } from "./dom.js";
import { control, drawer } from "./fields.js";
import { lookClosely } from "./lightbox.js";

const PICTURES_MAX = 36;
const AT_ONCE = 4; /* requests of a comparison in progress */
const FULL_MS = 1000; /* pause before a request that found the queue full is sent again */
const NUMBERS = [["num_inference_steps", "Steps"], ["guidance_scale", "Guidance"], ["seed", "Seed"],
    ["clip_skip", "CLIP skip"], ["guidance_rescale", "Guidance rescale"], ["strength", "Strength"]];
const LORA = "lora:";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const partsOf = (text) => (text ?? "").split(",").map((part) => part.trim()).filter(Boolean);

function numberOf(text) {
    if (!Number.isFinite(Number(text)))
        throw new Error(`“${text}” is no number.`);
    return Number(text);
}

/* The settings that can be compared, by name. `read(text)` returns a value or throws. `put(fields,
 * value, first)` writes the value into a request; `first` is the first value of its axis. */
function settingsOf(form, schedulers) {
    const settings = new Map();
    for (const [name, label] of NUMBERS)
        settings.set(name, { label, read: numberOf, put: (fields, value) => { fields[name] = value; } });
    settings.set("scheduler", { label: "Scheduler",
        read(text) {
            const is = (one) => [one.name, one.display_name].some((name) => name.toLowerCase() === text.toLowerCase());
            const found = schedulers.schedulers.find(is);
            if (!found)
                throw new Error(`There is no scheduler “${text}”.`);
            return found.name;
        },
        put: (fields, value) => { fields.scheduler = value; } });
    settings.set("prompt", { label: "Words of the prompt", read: (text) => text,
        put(fields, value, first) {
            if (!fields.prompt.includes(first))
                throw new Error(`The prompt does not have “${first}”, which the others would replace.`);
            fields.prompt = fields.prompt.replaceAll(first, () => value);
        } });
    for (const name of form.loras())
        settings.set(LORA + name, { label: `Weight of ${name}`, read: numberOf,
            put: (fields, weight) => {
                fields.loras = [...fields.loras.filter((one) => one.name !== name), { name, weight }];
            } });
    return settings;
}

/* A row of the form: the choice of a setting, and its values. */
function createAxis(name, label, none) {
    const choice = control({ name, kind: "choice", label, values: [["", none]] });
    const values = control({ name: `${name}_values`, kind: "text", label: `Values ${label.toLowerCase()}`,
        placeholder: "one, two, three" });
    return { choice, values, root: element("div.axis", {}, choice.root, values.root) };
}

/* Draws the table as one picture. `pictures` are listed row by row, undefined where one is missing;
 * `columns` and `rows` are the headings. */
async function paintGrid(pictures, columns, rows) {
    const bitmaps = await Promise.all(pictures.map((one) => one && createImageBitmap(one.blob)));
    const sideOf = (side) => Math.max(...bitmaps.map((one) => one?.[side] ?? 0));
    const width = sideOf("width"), height = sideOf("height"), gap = 8, line = Math.max(14, Math.round(width / 20));
    const measure = new OffscreenCanvas(1, 1).getContext("2d");
    measure.font = `${line}px sans-serif`;
    const left = Math.max(...rows.map((text) => Math.ceil(measure.measureText(text).width))) + 2 * gap, top = line + 2 * gap;
    const canvas = new OffscreenCanvas(left + columns.length * (width + gap), top + rows.length * (height + gap));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = "#000";
    context.font = measure.font;
    context.textBaseline = "top";
    columns.forEach((text, x) => context.fillText(text, left + x * (width + gap), gap, width));
    rows.forEach((text, y) => context.fillText(text, gap, top + y * (height + gap)));
    bitmaps.forEach((one, i) => one && context.drawImage(one, left + i % columns.length * (width + gap),
        top + Math.floor(i / columns.length) * (height + gap)));
    return canvas.convertToBlob({ type: "image/png" });
}

/* The table: a heading for each column and each row, and a cell for each picture. */
function createTable(title, across, down, onstop, onclose) {
    const cells = [], pictures = [];
    const rows = down.values.map((y) => element("tr", {}, element("th", { scope: "row" }, down.say(y)),
        ...across.values.map((x) => {
            const cell = element("td", {}, element("span.how", {}, "waits"));
            cells.push({ x, y, cell, index: cells.length });
            return cell;
        })));
    const head = element("tr", {}, element("td"), ...across.values.map((x) => element("th", { scope: "col" }, across.say(x))));
    const save = button("Save as a picture", async () => download(
        await paintGrid(pictures, across.values.map(across.say), down.values.map(down.say)), "comparison.png"), { hidden: true });
    const stop = button("Stop", onstop), grid = element("table", {}, element("caption", {}, title),
        element("thead", {}, head), element("tbody", {}, ...rows));
    grid.style.setProperty("--columns", across.values.length);
    const root = element("div", {},
        element("div.scroller", { tabIndex: 0, role: "region", "aria-label": "The comparison" }, grid),
        element("div.row", {}, stop, save, button("Put it away", () => {
            pictures.forEach((one) => one && URL.revokeObjectURL(one.url));
            onclose();
        })));
    /* Shows the picture of a cell. A click on it shows it in full size, with the others as
     * neighbours. */
    function show({ cell, index, x, y }, blob) {
        const url = URL.createObjectURL(blob);
        pictures[index] = { url, blob, alt: [across.say(x), down.say(y)].filter(Boolean).join(", ") };
        const look = button("", async () => {
            const there = pictures.filter(Boolean);
            await lookClosely(there, there.indexOf(pictures[index]));
        }, { className: "look", "aria-label": `Look closely at ${pictures[index].alt}` });
        look.append(element("img", { src: url, alt: "" }));
        cell.replaceChildren(look);
    }
    const tell = ({ cell }, text, wrong) => cell.replaceChildren(element(wrong ? "span.fault" : "span.how", {}, text));
    const end = () => {
        stop.remove();
        save.hidden = !pictures.some(Boolean);
    };
    return { root, cells, show, tell, end };
}

/* `form` gives the request that all cells have in common; `queue` draws. */
export function createCompare(form, schedulers, queue) {
    const axes = [createAxis("across", "Across", "choose a setting"), createAxis("down", "Down", "nothing else")];
    const fault = element("p.fault", { role: "alert" }), count = element("p.hint");
    const open = drawer("Compare", false,
        element("p.hint", {}, "Draws a picture for each value, or for each two, with the settings above for the rest."),
        ...axes.map((one) => one.root), count, fault,
        element("div.row", {}, button("Draw all", () => draw().catch((error) => { fault.textContent = error.message; }))));
    const section = find("#comparison");
    open.root.classList.add("compare");

    function refresh() {
        const settings = [...settingsOf(form, schedulers)].map(([name, { label }]) => [name, label]);
        axes[0].choice.setValues([["", "choose a setting"], ...settings]);
        axes[1].choice.setValues([["", "nothing else"], ...settings]);
    }

    function tellCount() {
        const sizes = axes.map(({ choice, values }) => (choice.get() ? partsOf(values.get()).length : 1));
        const total = sizes[0] * sizes[1];
        count.textContent = axes[0].choice.get() && total ? `${sizes.join(" × ")} = ${total} pictures` : "";
        fault.textContent = "";
        return total;
    }

    /* Reads an axis from the form. An axis without a setting has a single value that changes
     * nothing. */
    function read({ choice, values }, settings) {
        const setting = settings.get(choice.get());
        if (!setting)
            return { label: "", values: [null], put: () => {}, say: () => "" };
        const list = partsOf(values.get()).map(setting.read);
        if (!list.length)
            throw new Error(`${setting.label}: write the values, with commas between them.`);
        return { label: setting.label, values: list, say: (value) => `${setting.label} ${value}`,
            put: (fields, value) => setting.put(fields, value, list[0]) };
    }

    async function draw() {
        const settings = settingsOf(form, schedulers);
        if (!axes[0].choice.get())
            throw new Error("Choose a setting to compare.");
        if (tellCount() > PICTURES_MAX)
            throw new Error(`At most ${PICTURES_MAX} pictures in one comparison.`);
        const [across, down] = axes.map((axis) => read(axis, settings));
        const { fields: all, kept } = await form.get();
        const base = { ...all, num_images: 1, seed: all.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] };
        const requestOf = ({ x, y }) => {
            const fields = structuredClone(base);
            across.put(fields, x);
            down.put(fields, y);
            return fields;
        };
        requestOf({ x: across.values[0], y: down.values[0] }); /* throws before anything is drawn */
        run(base.prompt, across, down, requestOf, kept);
    }

    async function run(title, across, down, requestOf, kept) {
        const underWay = new Set();
        let stopped = false;
        const stop = () => {
            stopped = true;
            underWay.forEach((one) => one.abort());
        };
        const table = createTable(title, across, down, stop, () => {
            stop();
            section.hidden = true;
        });
        section.hidden = false;
        section.querySelector("div").replaceChildren(table.root);
        section.scrollIntoView({ block: "nearest" });
        const waiting = [...table.cells];
        async function drawSome() {
            for (let cell = waiting.shift(); cell; cell = waiting.shift()) {
                if (stopped) {
                    table.tell(cell, "not drawn");
                    continue;
                }
                table.tell(cell, "is drawn");
                let fields;
                try {
                    fields = requestOf(cell);
                } catch (error) {
                    table.tell(cell, error.message, true);
                    continue;
                }
                let failed = null;
                const drawing = queue.start({ fields, kept }, (error) => { failed = error; });
                underWay.add(drawing);
                const pictures = await drawing.done;
                underWay.delete(drawing);
                if (pictures) {
                    table.show(cell, pictures[0].blob);
                } else if (stopped || !failed) {
                    table.tell(cell, "not drawn");
                } else if (failed.status === 429) { /* the daemon's queue is full */
                    table.tell(cell, "waits");
                    waiting.push(cell);
                    await pause(FULL_MS);
                } else {
                    table.tell(cell, failed.reason ?? failed.message, true);
                }
            }
        }
        await Promise.all(Array.from({ length: AT_ONCE }, drawSome));
        table.end();
        announce("The comparison is done");
    }

    open.root.addEventListener("toggle", refresh);
    open.root.addEventListener("input", tellCount);
    refresh();
    return { root: open.root, refresh };
}
