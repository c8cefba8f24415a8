/* The list of the daemon's jobs, and one job in detail: its loss, its pictures and its result. */
import { events, getIfThere, getJson, getText, getUrl, postJson, request } from "./api.js";
import { announce, button, element, find, number, seconds } from "./dom.js";
import { lookClosely } from "./lightbox.js";
import { createPlot } from "./plot.js";

const LIST_MS = 3000, RETRY_MS = 2000;
const ENDS = ["succeeded", "failed", "cancelled"];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const nameOf = ({ request: asked, type }) => asked?.name ?? [asked?.prompt ?? type].flat().join(", ");

/* Shows one job and follows it until `close`. `useAdapter(name)` goes to the drawing form with the
 * trained adapter. */
function createJob(job, useAdapter, onchange) {
    const plot = createPlot(), abort = new AbortController();
    const title = element("h4", {}, nameOf(job)), trains = job.type === "train";
    const how = element("p.how", { role: "status" });
    const bar = element("progress", { max: 1, "aria-label": "Progress of the job" });
    const row = element("div.row.actions");
    const fault = element("p.fault", { role: "alert" });
    const pictures = element("div.validations");
    const urls = [];
    const root = element("article.job", {}, title, how, bar, row, fault, plot.root, pictures);
    let records = [], state = job;

    async function ask(what) {
        fault.textContent = "";
        try {
            if (what === "delete")
                await request("DELETE", `/jobs/${job.id}`);
            else
                update(await postJson(`/jobs/${job.id}/${what}`));
            onchange();
        } catch (error) {
            fault.textContent = error.message;
        }
    }

    function showActions() {
        const can = [];
        if (state.state === "queued" || state.state === "running")
            can.push(["Pause", "pause"], ["Cancel", "cancel"]);
        if (state.state === "paused" || state.state === "failed")
            can.push(["Resume", "resume"]);
        if (state.state === "paused")
            can.push(["Cancel", "cancel"]);
        if (ENDS.includes(state.state))
            can.push(["Forget", "delete"]);
        const buttons = can.map(([text, what]) => button(text, () => ask(what)));
        if (state.result?.adapter)
            buttons.unshift(button(`Draw with ${state.result.adapter}`, () => useAdapter(state.result.adapter),
                { className: "primary" }));
        if (row.textContent !== buttons.map((one) => one.textContent).join(""))
            row.replaceChildren(...buttons);
    }

    function update(change) {
        const before = state.state;
        state = { ...state, ...change };
        const parts = [state.asked_to && !ENDS.includes(state.state) ? `asked to ${state.asked_to}` : state.state];
        if (state.position > 1)
            parts.push(`number ${state.position} in the queue`);
        if (state.steps)
            parts.push(`step ${state.step} of ${state.steps}`);
        if (state.state === "running" && state.eta_s > 0)
            parts.push(`${seconds(state.eta_s)} left`);
        if (state.metrics?.loss !== undefined)
            parts.push(`loss ${number(state.metrics.loss)}`);
        how.textContent = parts.join(", ");
        bar.value = state.steps ? state.step / state.steps : 0;
        bar.hidden = ENDS.includes(state.state);
        if (state.error)
            fault.textContent = state.error.message ?? state.error;
        if (state.state !== before)
            onchange();
        showActions();
    }

    function note(line) {
        const known = records.find((one) => one.step === line.step);
        if (known)
            Object.assign(known, line);
        else
            records.push(line);
        showPlot();
    }

    function showPlot() {
        plot.root.toggleAttribute("hidden", !trains || ENDS.includes(state.state) && !records.length);
        plot.draw(records, state.steps);
    }

    async function readMetrics() {
        if (!trains)
            return showPlot();
        const text = await getText(`/jobs/${job.id}/metrics`).catch(() => "");
        records = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
        showPlot();
    }

    function lookAt(image) {
        const all = [...pictures.querySelectorAll("img")];
        lookClosely(all.map((one) => ({ url: one.src, alt: one.alt })), all.indexOf(image));
    }

    async function figure(url, alt, text) {
        const src = await getUrl(url);
        urls.push(src);
        const image = element("img", { src, alt }), look = button("", () => lookAt(image), { className: "look" });
        look.append(image);
        return element("li", {}, element("figure", {}, look,
            text && element("figcaption", {}, text)));
    }

    /* The pictures of a job that draws. The daemon keeps them for a limited time. */
    async function readDrawn() {
        const images = state.result?.images ?? [];
        const shown = await Promise.allSettled(images.map((one) => figure(one.url, `${title.textContent}, seed ${one.seed}`)));
        pictures.replaceChildren(element("ul", {}, ...shown.map((one) => one.value).filter(Boolean)));
    }

    async function readPictures() {
        if (!trains)
            return readDrawn();
        const answer = await getIfThere(`/jobs/${job.id}/validation`);
        const steps = (answer?.validation ?? []).toReversed();
        const shown = await Promise.all(steps.map(async (one) => element("section", {},
            element("h5", {}, `After step ${one.step}` +
                (one.loss !== undefined && one.loss !== null ? `, loss ${number(one.loss)}` : "")),
            element("ul", {}, ...await Promise.all((one.pictures ?? []).map((picture) =>
                figure(picture.url, `Drawn after step ${one.step}`, picture.prompt)))))));
        pictures.replaceChildren(...shown);
    }

    function hear(event, data) {
        if (event === "progress") {
            update(data);
            if (data.metrics?.loss !== undefined)
                note({ step: data.step, loss: data.metrics.loss });
        } else if (event === "validation") {
            if (data.loss !== undefined && data.loss !== null)
                note({ step: data.step, validation_loss: data.loss });
            readPictures();
        } else if (event === "job" || event === "state") {
            update(data);
        }
    }

    /* The stream ends with the job. If it breaks off earlier, it is opened again after the last
     * event that was received. */
    async function follow() {
        let last = "";
        while (!abort.signal.aborted && !ENDS.includes(state.state)) {
            try {
                const response = await request("GET", `/jobs/${job.id}/events`, { signal: abort.signal,
                    headers: last ? { "Last-Event-ID": last } : {} });
                if (response.status === 204)
                    break;
                for await (const { event, id, data } of events(response)) {
                    last = id;
                    hear(event, data);
                }
            } catch {
                await pause(RETRY_MS);
            }
            if (!abort.signal.aborted)
                update(await getJson(`/jobs/${job.id}`).catch(() => ({})));
        }
        if (abort.signal.aborted)
            return;
        announce(`${title.textContent}: ${state.state}`);
        await Promise.all([readMetrics(), readPictures()]);
    }

    update(job);
    readMetrics().then(follow);
    readPictures();
    return {
        id: job.id, root,
        close() {
            abort.abort();
            urls.forEach((url) => URL.revokeObjectURL(url));
        },
    };
}

export function createJobs(useAdapter) {
    const body = find("#jobs-body");
    const list = element("ul.joblist"), place = element("div");
    const names = new Map(); /* requests by job id; the list of jobs does not have them */
    let open = null, kept = true;
    body.replaceChildren(list, place);

    async function show(id) {
        const job = await getJson(`/jobs/${id}`);
        open?.close();
        open = createJob(job, useAdapter, refresh);
        place.replaceChildren(open.root);
        mark();
    }

    function mark() {
        for (const item of list.children)
            item.firstChild?.setAttribute("aria-current", String(item.dataset.id === open?.id));
    }

    function item(job) {
        const share = job.steps && !ENDS.includes(job.state) ? `${Math.floor(100 * job.step / job.steps)} %` : "";
        const look = button("", () => show(job.id));
        look.append(element("span.said", {}, names.get(job.id)),
            element("span.how", {}, [job.asked_to && !ENDS.includes(job.state) ? `asked to ${job.asked_to}` : job.state,
                share].filter(Boolean).join(", ")));
        return element("li", { "data-id": job.id }, look);
    }

    async function refresh() {
        const answer = await getIfThere("/jobs?limit=20");
        kept = answer !== null;
        if (!kept) {
            list.replaceChildren(element("li.hint", {}, "This daemon keeps no jobs: start it with --state-dir FOLDER."));
            return;
        }
        await Promise.all(answer.jobs.filter((job) => !names.has(job.id)).map(async (job) => {
            names.set(job.id, nameOf(await getJson(`/jobs/${job.id}`)));
        }));
        const focused = document.activeElement.closest?.(".joblist li")?.dataset.id;
        list.replaceChildren(...answer.jobs.map(item));
        if (!answer.jobs.length)
            list.append(element("li.hint", {}, "None yet."));
        if (focused)
            list.querySelector(`[data-id="${focused}"] button`)?.focus();
        if (open && !answer.jobs.some((job) => job.id === open.id)) {
            open.close();
            open = null;
            place.replaceChildren();
        }
        mark();
        if (!open && answer.jobs.length)
            await show(answer.jobs[0].id);
    }

    let seen = false;
    document.addEventListener("room", (event) => {
        seen = event.detail === "train";
        if (seen)
            refresh().catch(() => {});
    });
    setInterval(() => seen && kept && !document.hidden && refresh().catch(() => {}), LIST_MS);
    return { refresh, show };
}
