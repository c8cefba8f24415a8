/* The start picture, and the mask that is painted on it. */
import { announce, blobToDataUrl, button, element, freshId, takeFiles } from "./dom.js";
import { control } from "./fields.js";

const SENT = ["image/png", "image/jpeg", "image/webp"]; /* files of other types are converted */
const UNDO_STEPS = 20;
const PAINT = "#e5431c"; /* a colour that stands out on most pictures; only its opacity makes the
                          * mask */

/* Lets the user paint on `canvas`, which lies over a picture and has its size in pixels. The opaque
 * part is drawn anew. */
function createPainter(canvas, cursor, brush) {
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const past = [];
    let erasing = false, last = null, painted = false;

    const radius = () => Math.max(1, (brush.get() ?? 10) / 200 * Math.min(canvas.width, canvas.height));
    function stroke(from, to) {
        context.globalCompositeOperation = erasing ? "destination-out" : "source-over";
        context.strokeStyle = PAINT;
        context.lineWidth = 2 * radius();
        context.lineCap = context.lineJoin = "round";
        context.beginPath();
        context.moveTo(from.x, from.y);
        context.lineTo(to.x + 0.01, to.y);
        context.stroke();
    }
    /* Sets the opacity of each pixel to `opacity(data, i)`, where i is the pixel's index in `data`. */
    function repaint(opacity) {
        const image = context.getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < image.data.length; i += 4)
            image.data[i + 3] = opacity(image.data, i);
        context.putImageData(image, 0, 0);
        context.globalCompositeOperation = "source-in";
        context.fillStyle = PAINT;
        context.fillRect(0, 0, canvas.width, canvas.height);
        note();
    }
    function note() {
        const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
        painted = false;
        for (let i = 3; i < data.length && !painted; i += 4)
            painted = data[i] > 0;
        canvas.dispatchEvent(new Event("input", { bubbles: true }));
    }
    function remember() {
        past.push(context.getImageData(0, 0, canvas.width, canvas.height));
        if (past.length > UNDO_STEPS)
            past.shift();
    }
    function point(event) {
        const box = canvas.getBoundingClientRect();
        return { x: (event.clientX - box.left) * canvas.width / box.width,
            y: (event.clientY - box.top) * canvas.height / box.height };
    }
    const place = { x: 0, y: 0 };
    function showCursor(shown) {
        cursor.hidden = !shown;
        const share = 200 * radius() / canvas.width;
        cursor.style.left = `${100 * place.x / canvas.width}%`;
        cursor.style.top = `${100 * place.y / canvas.height}%`;
        cursor.style.width = `${share}%`;
    }
    function end() {
        if (last)
            note();
        last = null;
    }

    canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        remember();
        last = point(event);
        stroke(last, last);
    });
    canvas.addEventListener("pointermove", (event) => {
        Object.assign(place, point(event));
        showCursor(event.pointerType !== "touch");
        if (!last)
            return;
        stroke(last, place);
        last = { ...place };
    });
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => showCursor(document.activeElement === canvas));
    canvas.addEventListener("focus", () => showCursor(true));
    canvas.addEventListener("blur", () => showCursor(false));
    canvas.addEventListener("keydown", (event) => {
        const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
        const way = ways[event.key], before = { ...place };
        if (way) {
            const far = radius() * (event.shiftKey ? 2 : 0.5);
            place.x = Math.min(canvas.width, Math.max(0, place.x + way[0] * far));
            place.y = Math.min(canvas.height, Math.max(0, place.y + way[1] * far));
        } else if (event.key !== " ") {
            return;
        }
        event.preventDefault();
        if (!way || event.ctrlKey) {
            remember();
            stroke(before, place);
            note();
        }
        showCursor(true);
    });

    return {
        painted: () => painted,
        erase: (on) => { erasing = on; },
        resize(width, height) {
            canvas.width = width;
            canvas.height = height;
            past.length = 0;
            Object.assign(place, { x: width / 2, y: height / 2 });
            note();
        },
        undo() {
            const before = past.pop();
            if (before)
                context.putImageData(before, 0, 0);
            note();
        },
        clear() {
            remember();
            context.clearRect(0, 0, canvas.width, canvas.height);
            note();
        },
        invert() {
            remember();
            repaint((data, i) => 255 - data[i + 3]);
        },
        /* Returns the mask as a picture: white where it is drawn anew, black elsewhere. */
        async toPng() {
            const out = new OffscreenCanvas(canvas.width, canvas.height), flat = out.getContext("2d");
            flat.drawImage(canvas, 0, 0);
            for (const [operation, colour] of [["source-in", "#fff"], ["destination-over", "#000"]]) {
                flat.globalCompositeOperation = operation;
                flat.fillStyle = colour;
                flat.fillRect(0, 0, out.width, out.height);
            }
            return out.convertToBlob({ type: "image/png" });
        },
        async load(blob) {
            const bitmap = await createImageBitmap(blob);
            context.globalCompositeOperation = "copy";
            context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
            repaint((data, i) => data[i]);
        },
    };
}

/* Calls `onsize(width, height)` with the size of a new picture. */
export function createSource(onsize) {
    const input = element("input", { type: "file", accept: "image/*", id: freshId("init-image") });
    const drop = element("p.drop", {}, element("label.button", { htmlFor: input.id }, "Choose a picture"),
        input, element("span.hint", {}, "or drop one here"));
    const image = element("img", { alt: "The picture to begin with" });
    const canvas = element("canvas", { tabIndex: 0, role: "application",
        "aria-label": "Mask. Arrow keys move the brush, the space bar paints, Control with an arrow key " +
                      "paints a line." });
    const cursor = element("span.cursor", { hidden: true });
    const brush = control({ name: "brush", kind: "number", label: "Brush", default: 20, min: 1, max: 100,
        slide: [2, 60, 1] });
    const painter = createPainter(canvas, cursor, brush);
    const eraser = element("input", { type: "checkbox", id: freshId("eraser"),
        onchange: () => painter.erase(eraser.checked) });
    const strength = control({ name: "strength", kind: "number", label: "Strength", min: 0, max: 1,
        step: 0.01, slide: [0, 1, 0.01], help: "how much of the steps the picture goes through" });
    const resize = control({ name: "resize_mode", kind: "choice", label: "If its size differs", default: "crop",
        values: [["crop", "resize and crop"], ["default", "resize"], ["fill", "resize and fill the rest"],
            ["latent", "resize its latents"], ["none", "refuse"]] });
    const content = control({ name: "masked_content", kind: "choice", label: "The mask begins with", default: "original",
        values: [["original", "the picture"], ["noise", "noise"], ["nothing", "nothing"]] });
    const fault = element("small.fault", { hidden: true });
    const easel = element("div.easel", {}, image, canvas, cursor);
    const tools = element("div.row", {},
        element("span.check", {}, eraser, element("label", { htmlFor: eraser.id }, "Eraser")),
        button("Undo", () => painter.undo()), button("Invert", () => painter.invert()),
        button("Clear", () => painter.clear()));
    const open = element("div.opened", { hidden: true }, easel,
        element("p.hint", {}, "Paint over what is to be drawn anew; without paint, all of it is."),
        tools, brush.root, strength.root, content.root, resize.root,
        button("Take the picture away", () => { clear(); input.focus(); }));
    const root = element("div", {}, drop, open, fault);
    let file = null, strengthTouched = false;
    strength.root.addEventListener("input", () => { strengthTouched = true; });

    const wrong = (text) => {
        fault.textContent = text;
        fault.hidden = !text;
    };
    const tell = () => root.dispatchEvent(new Event("input", { bubbles: true }));
    /* The daemon's defaults: 1 with a mask, 0.8 without. */
    function followMask() {
        if (strengthTouched)
            return;
        strength.set(painter.painted() ? 1 : 0.8);
        strengthTouched = false;
    }
    canvas.addEventListener("input", followMask);

    function clear() {
        file = null;
        strengthTouched = false;
        URL.revokeObjectURL(image.src);
        open.hidden = true;
        wrong("");
        tell();
    }

    async function take(blob) {
        wrong("");
        let bitmap;
        try {
            bitmap = await createImageBitmap(blob);
        } catch {
            wrong("The browser cannot read this file as a picture.");
            return;
        }
        const { width, height } = bitmap;
        if (!SENT.includes(blob.type)) {
            const copy = new OffscreenCanvas(width, height);
            copy.getContext("2d").drawImage(bitmap, 0, 0);
            blob = await copy.convertToBlob({ type: "image/png" });
        }
        bitmap.close();
        URL.revokeObjectURL(image.src);
        file = blob;
        image.src = URL.createObjectURL(blob);
        strengthTouched = false;
        open.hidden = false;
        painter.resize(width, height);
        onsize(width, height);
        easel.scrollIntoView({ block: "center" });
        announce(`Begins with a picture of ${width} by ${height} pixels`);
        tell();
    }

    takeFiles(root, input, (files) => files[0] && take(files[0]));
    return {
        root, input, wrong, take, clear, controls: [strength, content, resize],
        digest: () => (!file ? "none" : painter.painted() ? "with a mask" : "whole"),
        /* Resolves to the fields of the request, and the blobs that they were made from. */
        async get() {
            if (!file)
                return { fields: {}, kept: null };
            const mask = painter.painted() ? await painter.toPng() : null;
            const fields = { init_image: await blobToDataUrl(file), strength: strength.get(),
                resize_mode: resize.get() };
            if (mask) {
                fields.mask_image = await blobToDataUrl(mask);
                fields.masked_content = content.get();
            }
            return { fields, kept: { file, mask } };
        },
        async set(kept, parameters) {
            if (!kept)
                return clear();
            await take(kept.file);
            if (kept.mask)
                await painter.load(kept.mask);
            strength.set(parameters.strength);
            content.set(parameters.masked_content ?? "original");
            resize.set(parameters.resize_mode);
        },
    };
}
