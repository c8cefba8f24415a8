/* The pictures that this browser keeps, and the one that is shown. */
import { announce, base64ToBlob, button, download, element, find } from "./dom.js";
import { describeParameters } from "./form.js";
import { lookClosely } from "./lightbox.js";
import { keep, loadKept, forget } from "./store.js";
import { makeTar } from "./tar.js";

const TYPES = { png: "image/png", jpeg: "image/jpeg", webp: "image/webp" };
const ENDINGS = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp" };

const endingOf = ({ blob }) => ENDINGS[blob.type] ?? "png";

/* Splits an answer into its pictures, each with the parameters that draw it again by itself. */
export function picturesOf(answer, kept) {
    const { priority, timeout_s, ...rest } = answer.parameters;
    return answer.images.map((image, index) => ({
        id: `${answer.id}-${index}`, created: answer.created,
        blob: base64ToBlob(image.b64_json, TYPES[rest.output] ?? "image/png"),
        /* The pictures of a varied request have one seed, and subseeds that follow each other. */
        parameters: { ...rest, ...("subseed" in rest ? { subseed: rest.subseed + index } : {}), seed: image.seed,
            num_images: 1, width: image.width, height: image.height },
        timings: answer.timings, kept,
        warnings: image.nsfw ? [...answer.warnings, "The safety checker has blackened this picture."]
                             : answer.warnings,
    }));
}

/* Shows the previews of one request while it is drawn: { root, show(index, url) }. */
export function createSheet({ prompt, width, height, num_images: count = 1 }) {
    const places = Array.from({ length: count }, () => element("div.preview"));
    const grid = element("div.sheet", {}, ...places);
    const columns = Math.ceil(Math.sqrt(count)), rows = Math.ceil(count / columns);
    for (const [name, value] of [["columns", columns], ["shape", `${width} / ${height}`],
        ["whole", width * columns / (height * rows)]])
        grid.style.setProperty(`--${name}`, value);
    const root = element("figure", {}, element("div.canvas", {}, grid),
        element("figcaption", {}, element("p.said", {}, prompt)));
    const show = (index, url) => {
        if (!places[index].firstChild)
            places[index].append(element("img.picture", { alt: "Preview of the picture" }));
        places[index].firstChild.src = url;
    };
    return { root, show };
}

/* The buttons of the picture that is shown call `again(picture)` and `begin(picture)`. */
export function createGallery(schedulers, { again, begin }) {
    const viewer = find("#viewer"), section = find("#gallery"), list = section.querySelector("ul");
    let pictures = [], shown = null;

    function showEmpty() {
        shown = null;
        viewer.replaceChildren(element("div.canvas.empty", {}, element("p", {}, "Your picture appears here.")));
    }

    function actions(picture) {
        const save = element("a.button", { href: picture.url,
            download: `${picture.parameters.seed}.${endingOf(picture)}` }, "Download");
        return element("div.row.actions", {},
            button("Again with these", () => again(picture)),
            button("Start from this", () => begin(picture)), save,
            button("Remove", () => remove(picture)));
    }

    function show(picture) {
        shown = picture;
        const { parameters } = picture;
        const facts = element("dl.facts", {}, ...describeParameters(parameters, schedulers, picture.timings)
            .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
        const closer = button("", () => lookAt(picture), { className: "look", "aria-label": `Look closely at “${parameters.prompt}”` });
        closer.append(element("img.picture", { src: picture.url, alt: parameters.prompt, width: parameters.width,
            height: parameters.height }));
        const warnings = (picture.warnings ?? []).map((text) => element("p.warning", {}, text));
        viewer.replaceChildren(
            element("figure", {},
                element("div.canvas", {}, closer),
                element("figcaption", {}, element("p.said", {}, parameters.prompt), ...warnings, facts,
                    actions(picture))));
        mark();
    }

    async function lookAt(picture) {
        const all = [...pictures];
        const last = await lookClosely(all.map((one) => ({ url: one.url, alt: one.parameters.prompt })), all.indexOf(picture));
        show(all[last]);
        viewer.querySelector(".look").focus();
    }

    /* Downloads all pictures in one file, the latest first. */
    function downloadAll() {
        const digits = String(pictures.length).length;
        const files = pictures.map((picture, i) => ({ blob: picture.blob, time_s: picture.created,
            name: `${String(i + 1).padStart(digits, "0")}-${picture.parameters.seed}.${endingOf(picture)}` }));
        download(makeTar(files), "pictures.tar");
        announce(`${files.length} pictures in one file`);
    }

    /* Shows the previews of a drawing in progress. */
    function look(sheet) {
        shown = null;
        viewer.replaceChildren(sheet.root);
        mark();
    }

    function mark() {
        for (const item of list.children)
            item.firstChild.setAttribute("aria-current", String(item.dataset.id === shown?.id));
    }

    function thumbnail(picture) {
        picture.url ??= URL.createObjectURL(picture.blob);
        const look = button("", () => show(picture));
        look.append(element("img", { src: picture.url, loading: "lazy",
            alt: `${picture.parameters.prompt}, seed ${picture.parameters.seed}` }));
        return element("li", { "data-id": picture.id }, look);
    }

    function remove(picture) {
        const at = pictures.indexOf(picture);
        pictures.splice(at, 1);
        list.children[at].remove();
        forget(picture.id);
        URL.revokeObjectURL(picture.url);
        section.hidden = !pictures.length;
        const next = pictures[at] ?? pictures[at - 1];
        if (next) {
            show(next);
            list.children[Math.min(at, pictures.length - 1)].firstChild.focus();
        } else {
            showEmpty();
        }
        announce("Removed");
    }

    function add(picture) {
        pictures.unshift(picture);
        list.prepend(thumbnail(picture));
        section.hidden = false;
    }

    find("#gallery-title").after(button("Download all", downloadAll, { className: "quiet" }));
    list.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = step && [...list.children].indexOf(document.activeElement.closest("li")) + step;
        if (step === undefined || !list.children[next])
            return;
        event.preventDefault();
        list.children[next].firstChild.focus();
        show(pictures[next]);
    });

    showEmpty();
    loadKept().then((kept) => {
        pictures = [...pictures, ...kept];
        list.append(...kept.map(thumbnail));
        section.hidden = !pictures.length;
        if (!shown && pictures.length && viewer.querySelector(".empty"))
            show(pictures[0]);
    });
    return {
        /* Adds the pictures of an answer. The first one replaces the previews, unless the user has
         * chosen another picture meanwhile. */
        add(answer, kept, sheet) {
            const added = picturesOf(answer, kept);
            for (const picture of added.toReversed()) {
                add(picture);
                keep(picture);
            }
            if (viewer.contains(sheet.root) || !shown)
                show(added[0]);
            return added;
        },
        look,
        /* Removes the previews of a drawing that has failed or was cancelled. */
        leave(sheet) {
            if (viewer.contains(sheet.root))
                pictures.length ? show(pictures[0]) : showEmpty();
        },
    };
}
