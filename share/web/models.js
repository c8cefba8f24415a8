/* The choice of the checkpoint, if the daemon has several. */
import { getIfThere, request } from "./api.js";
import { announce, element, find, showTrouble } from "./dom.js";

const LOOK_MS = 500;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/* Waits until the switch has ended. Resolves to its last state. */
async function follow() {
    for (;;) {
        const answer = await getIfThere("/models");
        const now = answer?.switch;
        if (!now || now.state === "done" || now.state === "failed")
            return now;
        const share = now.state === "loading" && now.progress > 0 ? `, ${Math.round(100 * now.progress)} %` : "";
        const jobs = now.state === "draining" && now.waits_for_jobs > 0 ? `, ${now.waits_for_jobs} jobs` : "";
        find("#model-state").textContent = `${now.state}${share}${jobs}`;
        await pause(LOOK_MS);
    }
}

/* Calls `onswitched()` when another checkpoint is in use. */
export async function createModelPicker(info, onswitched) {
    const place = find("#model");
    const device = info.device?.name ?? info.model.device;
    const known = (await getIfThere("/models"))?.models ?? [];
    const other = known.some((one) => one.name !== info.model.name);
    if (!other) {
        place.textContent = `${info.model.name} on ${device}`;
        return;
    }
    const current = known.find((one) => one.current)?.name ?? info.model.name;
    const choice = element("select", { id: "model-choice" },
        ...known.map((one) => element("option", { value: one.name, disabled: Boolean(one.error) }, one.name)));
    choice.value = current;
    choice.addEventListener("change", async () => {
        showTrouble("");
        choice.disabled = true;
        announce(`Switching to ${choice.value}`);
        try {
            await request("PUT", "/model", { json: { name: choice.value } });
            const end = await follow();
            if (end?.state === "failed")
                throw new Error(end.error?.message ?? end.error ?? "the model could not be loaded");
            announce(`${choice.value} is there`);
            onswitched();
        } catch (error) {
            showTrouble(error.message);
            choice.value = current;
        } finally {
            choice.disabled = false;
            find("#model-state").textContent = `on ${device}`;
        }
    });
    place.replaceChildren(element("label.unseen", { htmlFor: choice.id }, "Model"), choice,
        element("span", { id: "model-state", role: "status" }, `on ${device}`));
}
