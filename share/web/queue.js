/* The drawings that this page has ordered, each with its progress and a button to cancel it. */
import { ApiError, generate } from "./api.js";
import { announce, base64ToBlob, button, element, find, seconds } from "./dom.js";
import { createSheet } from "./gallery.js";

function line(prompt, look, cancel) {
    const image = element("img", { alt: "", hidden: true });
    const thumb = button("", look, { "aria-label": `Look at “${prompt}”`, className: "thumb" });
    thumb.append(image);
    const bar = element("progress", { max: 1, value: 0, "aria-label": `Progress of “${prompt}”` });
    const text = element("span.how", {}, "sending");
    const stop = button("Cancel", cancel, { "aria-label": `Cancel “${prompt}”` });
    const root = element("li", {}, thumb,
        element("span.what", {}, element("span.said", {}, prompt), bar, text), stop);
    return { root, image, bar, text, stop };
}

/* `gallery` shows the pictures, `fault(error)` shows why a request was refused. */
export function createQueue(gallery, fault) {
    const section = find("#queue"), list = section.querySelector("ol");
    const drawings = [];
    let onempty = null;

    function end(drawing) {
        drawings.splice(drawings.indexOf(drawing), 1);
        const focused = drawing.line.root.contains(document.activeElement);
        drawing.line.root.remove();
        section.hidden = !drawings.length;
        drawing.urls.forEach((url) => url && URL.revokeObjectURL(url));
        if (!drawings.length)
            onempty?.();
        if (focused)
            (list.querySelector("button") ?? find("#ask button.primary")).focus();
    }

    function follow(drawing, event, data) {
        const { line: { bar, text, image }, urls } = drawing;
        if (event === "queued") {
            text.textContent = data.position > 1 ? `number ${data.position} in the queue` : "next";
            drawing.id = data.id;
        } else if (event === "progress") {
            const share = data.steps ? data.step / data.steps : 0;
            bar.value = share;
            text.textContent = `step ${data.step} of ${data.steps}` +
                (data.eta_s > 0 ? `, ${seconds(data.eta_s)} left` : "");
            const quarter = Math.floor(share * 4);
            if (quarter > drawing.told && quarter < 4)
                announce(`${quarter * 25} percent`);
            drawing.told = Math.max(drawing.told, quarter);
        } else if (event === "preview") {
            const url = URL.createObjectURL(base64ToBlob(data.b64_json, `image/${data.format ?? "jpeg"}`));
            if (urls[data.image])
                URL.revokeObjectURL(urls[data.image]);
            urls[data.image] = url;
            image.src = urls[0] ?? url;
            image.hidden = false;
            drawing.sheet.show(data.image, url);
        }
    }

    /* Resolves to the pictures; null if there are none. */
    async function run(drawing, onfault) {
        const { fields, kept, abort } = drawing;
        try {
            const answer = await generate(fields, (event, data) => follow(drawing, event, data), abort.signal);
            const pictures = gallery.add(answer, kept, drawing.sheet);
            end(drawing);
            announce(`Done, in ${seconds(answer.timings.total_s)}`);
            return pictures;
        } catch (error) {
            gallery.leave(drawing.sheet);
            end(drawing);
            if (error.name === "AbortError")
                announce("Cancelled");
            else
                onfault(error instanceof ApiError ? error : new Error(`The daemon cannot be reached: ${error.message}`));
            return null;
        }
    }

    return {
        /* Returns { abort(), done }; `done` resolves to the pictures, or to null. */
        start({ fields, kept }, onfault = fault) {
            const abort = new AbortController();
            const sheet = createSheet(fields);
            const drawing = { fields, kept, abort, sheet, told: 0, urls: [],
                line: line(fields.prompt, () => gallery.look(sheet), () => abort.abort()) };
            drawings.push(drawing);
            list.append(drawing.line.root);
            section.hidden = false;
            if (drawings.length === 1)
                gallery.look(sheet);
            return { abort: () => abort.abort(), done: run(drawing, onfault) };
        },
        /* Calls `then` when no drawing is in progress: at once, or when the last one ends. */
        whenEmpty(then) {
            onempty = then;
            if (!drawings.length)
                then();
        },
    };
}
