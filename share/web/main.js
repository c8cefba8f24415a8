/* Starts the page: asks the daemon what it can do, builds the forms accordingly, and shows one of
 * the two rooms. */
import { getJson } from "./api.js";
import { createCompare } from "./compare.js";
import { announce, element, find, freshId, hasFiles, showTrouble, takeFiles } from "./dom.js";
import { createForm } from "./form.js";
import { createGallery } from "./gallery.js";
import { createModelPicker } from "./models.js";
import { createQueue } from "./queue.js";
import { recall } from "./recall.js";
import { createTraining } from "./train.js";

const ROOMS = ["draw", "train"];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/* Resolves to GET /info once the daemon has loaded its checkpoint. */
async function waitForModel() {
    for (;;) {
        try {
            const info = await getJson("/info");
            if (info.model) {
                showTrouble("");
                return info;
            }
            showTrouble(`The daemon is ${info.state}. The page continues once it is ready.`);
        } catch (error) {
            showTrouble(`${error.message}. Trying again.`);
        }
        await pause(1000);
    }
}

function showRoom() {
    const wanted = location.hash.slice(1);
    const room = ROOMS.includes(wanted) ? wanted : ROOMS[0];
    for (const name of ROOMS) {
        find(`#${name}`).hidden = name !== room;
        find(`nav a[href="#${name}"]`).toggleAttribute("aria-current", name === room);
        if (name === room)
            find(`nav a[href="#${name}"]`).setAttribute("aria-current", "page");
    }
    document.title = room === "draw" ? "latentd" : "Train - latentd";
    document.dispatchEvent(new CustomEvent("room", { detail: room }));
}

/* Takes the settings of a picture's file over into the form. The file is chosen with a button or
 * dropped on the prompt. */
function takeSettings(form, model) {
    const input = element("input", { type: "file", accept: "image/png,image/jpeg,image/webp", id: freshId("settings-of") });
    const said = element("p.hint", { role: "status" });
    async function take([file]) {
        if (!file)
            return;
        try {
            const { fields, left } = await recall(file, form.hasLora, model);
            left.push(...await form.take(fields));
            said.textContent = `The settings of ${file.name} are in the form.` +
                (left.length ? ` Not taken: ${left.join("; ")}.` : "");
        } catch (error) {
            said.textContent = `${file.name}: ${error.message}`;
        }
    }
    const root = element("div.recall", {}, element("p.drop", {},
        element("label.button", { htmlFor: input.id }, "Settings of a picture"), input,
        element("span.hint", {}, "or drop it on the prompt")), said);
    takeFiles(find("#prompt-fields"), input, take);
    takeFiles(find("#viewer"), null, take);
    find("#prompt-fields").append(root);
    /* Elsewhere the browser would replace the page by the dropped file. */
    for (const kind of ["dragover", "drop"])
        document.addEventListener(kind, (event) => {
            if (hasFiles(event))
                event.preventDefault();
        });
}

async function start() {
    const info = await waitForModel();
    const schedulers = await getJson("/schedulers");

    const form = createForm(info, schedulers);
    const gallery = createGallery(schedulers, {
        async again(picture) {
            await form.set(picture.parameters, picture.kept);
            announce("The form has the picture's parameters");
            form.focus();
        },
        begin: (picture) => form.begin(picture.blob),
    });
    const queue = createQueue(gallery, (error) => {
        const shown = form.fault(error);
        showTrouble(shown ? "" : error.message);
        if (shown)
            announce(error.message);
    });
    takeSettings(form, info.model.name);
    const compare = createCompare(form, schedulers, queue);
    find("#settings").append(compare.root);
    /* The forms depend on the model, so a switch reloads the page once the drawings in progress
     * have ended. */
    await createModelPicker(info, () => queue.whenEmpty(() => location.reload()));
    createTraining(info, (lora) => {
        location.hash = "#draw";
        form.refresh().then(() => form.use(lora)).then(compare.refresh);
    });

    const ask = find("#ask");
    ask.addEventListener("submit", async (event) => {
        event.preventDefault();
        showTrouble("");
        queue.start(await form.get());
        if (matchMedia("(max-width: 52rem)").matches)
            find("#viewer").scrollIntoView({ block: "start" });
    });
    ask.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            ask.requestSubmit();
        }
    });
    await form.refresh();
    compare.refresh();
    form.restore();
    addEventListener("hashchange", showRoom);
    showRoom();
    document.body.dataset.ready = "";
}

start().catch((error) => showTrouble(error.message));
