/* Plots the losses of a job: a faint line of all steps, their running mean, and dots for the
 * validation losses. */
const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 14, 14, 30];
const MEAN_SHARE = 0.08; /* share of all steps that the running mean covers */

function shape(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes))
        node.setAttribute(key, value);
    if (text !== undefined)
        node.textContent = text;
    return node;
}

function runningMean(records) {
    const keep = 1 - 1 / Math.max(1, records.length * MEAN_SHARE);
    let mean = records[0].loss, list = [];
    for (const { step, loss } of records) {
        mean = keep * mean + (1 - keep) * loss;
        list.push({ step, loss: mean });
    }
    return list;
}

/* Returns three to six round values between two others. */
function ticks(from, to) {
    const raw = (to - from) / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= raw);
    const list = [];
    for (let value = Math.ceil(from / step) * step; value <= to + step * 1e-6; value += step)
        list.push(Number(value.toPrecision(6)));
    return list;
}

/* `records` are the lines of /jobs/ID/metrics; `steps` is the number of steps of the whole job. */
export function createPlot() {
    const root = shape("svg", { class: "plot", role: "img" });
    let last = null;
    /* The viewBox has the size of the element in pixels, so that the letters keep their size. */
    new ResizeObserver(() => last && draw(...last)).observe(root);
    const draw = (records, steps) => {
        last = [records, steps];
        const width = root.clientWidth || 640, height = root.clientHeight || 240;
        root.setAttribute("viewBox", `0 0 ${width} ${height}`);
        const losses = records.filter((one) => Number.isFinite(one.loss));
        const held = records.filter((one) => Number.isFinite(one.validation_loss))
            .map((one) => ({ step: one.step, loss: one.validation_loss }));
        root.replaceChildren();
        if (!losses.length) {
            root.setAttribute("aria-label", "No loss yet");
            root.append(shape("text", { x: width / 2, y: height / 2, class: "axis", "text-anchor": "middle" },
                "The loss appears here with the first step."));
            return;
        }
        const { loss, step } = losses.at(-1);
        root.setAttribute("aria-label", `Loss by step; ${loss.toPrecision(3)} at step ${step} of ${steps}`);
        const top = Math.max(...losses.map((one) => one.loss), ...held.map((one) => one.loss)) * 1.05;
        const end = Math.max(steps, step, 1);
        const x = (step) => LEFT + (width - LEFT - RIGHT) * step / end;
        const y = (loss) => TOP + (height - TOP - BOTTOM) * (1 - loss / top);
        const path = (list) => list.map((one, i) => `${i ? "L" : "M"}${x(one.step).toFixed(1)} ${y(one.loss).toFixed(1)}`).join("");
        for (const value of ticks(0, top))
            root.append(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
                shape("text", { class: "axis", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, value));
        for (const value of ticks(0, end))
            root.append(shape("text", { class: "axis", x: x(value), y: height - 10,
                "text-anchor": value >= end * 0.98 ? "end" : "middle" }, value));
        root.append(shape("path", { class: "each", d: path(losses) }),
            shape("path", { class: "mean", d: path(runningMean(losses)) }),
            ...held.map((one) => shape("circle", { class: "held", cx: x(one.step), cy: y(one.loss), r: 3.5 })));
    };
    return { root, draw };
}
