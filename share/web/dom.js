/* Creates elements, and has the helpers that all parts of the page use. */

/* element("button.primary", { type: "button", onclick }, "Draw") sets each entry as a property if
 * the element has one of this name, else as an attribute. Text is inserted as text: nothing here
 * parses HTML. */
export function element(what, properties = {}, ...children) {
    const [name, ...classes] = what.split(".");
    const node = document.createElement(name);
    if (classes.length)
        node.className = classes.join(" ");
    for (const [key, value] of Object.entries(properties)) {
        if (value === undefined || value === null)
            continue;
        if (key.startsWith("on"))
            node.addEventListener(key.slice(2), value);
        else if (key in node && !key.includes("-") && key !== "list")
            node[key] = value;
        else
            node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
}

export const find = (selector) => document.querySelector(selector);

let ids = 0;
export const freshId = (stem) => `${stem}-${++ids}`;

export const button = (text, onclick, properties = {}) =>
    element("button", { type: "button", onclick, ...properties }, text);

/* Lets screen readers speak the text once they are idle. */
export function announce(text) {
    find("#status").textContent = text;
}

/* Shows that something is wrong with the daemon or the connection, not with a field. "" removes the
 * message. */
export function showTrouble(text) {
    const place = find("#trouble");
    place.textContent = text;
    place.hidden = !text;
}

export function seconds(value) {
    if (value < 0.95)
        return `${Math.max(0.1, value).toFixed(1)} s`;
    if (value < 90)
        return `${Math.round(value)} s`;
    if (value < 5400)
        return `${Math.round(value / 60)} min`;
    return `${(value / 3600).toFixed(1)} h`;
}

export const number = (value, digits = 3) => String(Number(Number(value).toPrecision(digits)));

export function bytes(count) {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]])
        if (count >= size)
            return `${number(count / size)} ${unit}`;
    return `${count} bytes`;
}

/* Lets the browser download a blob. */
export function download(blob, name) {
    const url = URL.createObjectURL(blob);
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* Asks the user before something is deleted; `verb` labels the button. Resolves to true if the user
 * agrees. */
export function confirmed(question, verb) {
    const dialog = element("dialog", { "aria-label": question },
        element("form", { method: "dialog" }, element("p", {}, question),
            element("div.row", {}, element("button.primary", { value: "yes" }, verb),
                element("button", { value: "no", autofocus: true }, "Keep it"))));
    document.body.append(dialog);
    return new Promise((done) => {
        dialog.addEventListener("close", () => {
            dialog.remove();
            done(dialog.returnValue === "yes");
        });
        dialog.showModal();
    });
}

/* Returns whether files are dragged. Dragged text is left to the browser. */
export const hasFiles = (event) => event.dataTransfer.types.includes("Files");

/* Calls `take` with the files that are dropped on `place` or chosen with `input`, if there is one. */
export function takeFiles(place, input, take) {
    let depth = 0;
    const over = (step) => place.classList.toggle("over", (depth = Math.max(0, depth + step)) > 0);
    const listen = (kind, act) => place.addEventListener(kind, (event) => {
        if (hasFiles(event)) {
            event.preventDefault();
            act(event);
        }
    });
    listen("dragenter", () => over(1));
    listen("dragleave", () => over(-1));
    listen("dragover", () => {});
    listen("drop", async (event) => {
        depth = 0;
        over(0);
        take(await droppedFiles(event.dataTransfer));
    });
    input?.addEventListener("change", () => {
        take([...input.files]);
        input.value = "";
    });
}

/* Reads folders and all folders in them. */
async function droppedFiles(transfer) {
    const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (!entries.length)
        return [...transfer.files];
    const files = [];
    const open = async (entry) => {
        if (entry.isFile) {
            files.push(await new Promise((done, fail) => entry.file(done, fail)));
            return;
        }
        const reader = entry.createReader();
        for (;;) {
            const some = await new Promise((done, fail) => reader.readEntries(done, fail));
            if (!some.length)
                return;
            for (const one of some)
                await open(one);
        }
    };
    for (const entry of entries)
        await open(entry);
    return files;
}

export function base64ToBlob(text, type) {
    const binary = atob(text);
    const data = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++)
        data[i] = binary.charCodeAt(i);
    return new Blob([data], { type });
}

export const blobToDataUrl = (blob) => new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(blob);
});
