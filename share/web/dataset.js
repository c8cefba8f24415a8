/* Collects pictures with captions, lets the user check them, and sends them as a data set. */
import { getIfThere, request } from "./api.js";
import { announce, button, bytes, element, freshId, takeFiles } from "./dom.js";
import { control, showFault } from "./fields.js";
import { makeTar } from "./tar.js";

const SENT = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp" };
const stemOf = (name) => name.replace(/\.[^.]*$/, "");

/* Makes a file name of letters that every archive and file system accepts, different from all
 * earlier names. */
function freeName(name, taken) {
    const stem = stemOf(name).replace(/[^\w-]+/g, "_").slice(0, 80) || "picture";
    let free = stem;
    for (let i = 2; taken.has(free); i++)
        free = `${stem}-${i}`;
    taken.add(free);
    return free;
}

/* Converts formats that the daemon does not read to PNG. */
async function readable(file) {
    if (file.type in SENT)
        return file;
    const bitmap = await createImageBitmap(file);
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    return canvas.convertToBlob({ type: "image/png" });
}

/* Calls `onsent(name)` when a data set was sent. */
export function createDataset(onsent) {
    const input = element("input", { type: "file", accept: "image/*,.txt,.caption", multiple: true,
        id: freshId("pictures"), name: "pictures" });
    const drop = element("div.drop.large", {},
        element("p", {}, "Drop pictures here, or a folder of them. Text files of the same names are their captions."),
        element("label.button", { htmlFor: input.id }, "Choose pictures"), input);
    const list = element("ul.cards");
    const name = control({ name: "dataset_name", kind: "text", label: "Name of the data set", default: "" });
    const count = element("p.hint");
    const fault = element("small.fault", { role: "alert" });
    const report = element("p.hint", { role: "status" });
    const send = button("Send", sendAll, { className: "primary" });
    const rest = element("div.inside", { hidden: true }, list, count, name.root, element("div.row", {}, send,
        button("Take them away", () => { cards = []; show(); input.focus(); })), fault);
    const root = element("div", {}, drop, rest, report);
    let cards = [];

    function card(file, caption) {
        const url = URL.createObjectURL(file);
        const text = element("textarea", { rows: 2, value: caption, placeholder: "caption",
            "aria-label": `Caption of ${file.name}` });
        const made = { file, text };
        const remove = button("Remove", () => {
            cards = cards.filter((one) => one !== made);
            URL.revokeObjectURL(url);
            show();
        }, { "aria-label": `Remove ${file.name}` });
        made.root = element("li", {}, element("img", { src: url, alt: file.name }), text, remove);
        return made;
    }

    function show() {
        list.replaceChildren(...cards.map((one) => one.root));
        rest.hidden = !cards.length;
        const open = cards.filter((one) => !one.text.value.trim()).length;
        const size = cards.reduce((sum, one) => sum + one.file.size, 0);
        count.textContent = `${cards.length} pictures, ${bytes(size)}` +
            (open ? `, ${open} without a caption` : "");
    }

    async function take(files) {
        const captions = new Map();
        for (const file of files.filter((one) => /\.(txt|caption)$/i.test(one.name)))
            captions.set(stemOf(file.name), (await file.text()).trim());
        for (const one of cards)
            one.text.value ||= captions.get(stemOf(one.file.name)) ?? "";
        const pictures = files.filter((one) => one.type.startsWith("image/"))
            .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
        cards.push(...pictures.map((file) => card(file, captions.get(stemOf(file.name)) ?? "")));
        report.textContent = "";
        show();
        announce(count.textContent);
    }

    async function pack() {
        const taken = new Set(), files = [];
        for (const { file, text } of cards) {
            const blob = await readable(file), stem = freeName(file.name, taken);
            files.push({ name: `${stem}.${SENT[blob.type]}`, blob });
            if (text.value.trim())
                files.push({ name: `${stem}.txt`, blob: new Blob([`${text.value.trim()}\n`]) });
        }
        return makeTar(files);
    }

    async function sendAll() {
        fault.textContent = "";
        send.disabled = true;
        try {
            const wanted = name.get()?.trim() ?? "";
            if (!wanted) {
                name.wrong("It needs a name.");
                name.input.focus();
                return;
            }
            const body = await pack();
            report.textContent = `Sending ${bytes(body.size)}…`;
            const answer = await (await request("PUT", `/datasets/${encodeURIComponent(wanted)}`, { body,
                headers: { "Content-Type": "application/x-tar" } })).json();
            report.textContent = `${wanted}: ${answer.pictures} pictures are there` +
                (answer.captions.missing ? `, ${answer.captions.missing} without a caption` : "") +
                (answer.broken ? `, ${answer.broken} of them broken` : "");
            cards = [];
            name.set("");
            show();
            onsent(wanted);
        } catch (error) {
            report.textContent = "";
            if (!showFault([{ ...name, name: "name" }], error))
                fault.textContent = error.message;
        } finally {
            send.disabled = false;
        }
    }

    list.addEventListener("input", show);
    takeFiles(drop, input, take);
    show();
    return { root };
}

/* Returns the names of the data sets; null if the daemon keeps none. */
export async function listDatasets() {
    const answer = await getIfThere("/datasets");
    return answer && answer.datasets.map((one) => one.name ?? one);
}
