/* Controls with a label, a help text and a place for an error. Each is { name, label, root, get,
 * set, fits, wrong }. `get` returns undefined if the value is left to the daemon. `fits(value)`
 * says whether the control can show this value. `wrong(text)` shows an error; "" removes it. */
import { element, freshId } from "./dom.js";

function frame(spec, input, ...more) {
    const id = freshId(spec.name);
    const help = spec.help ? element("small.help", { id: `${id}-help` }, spec.help) : null;
    const fault = element("small.fault", { id: `${id}-fault`, hidden: true });
    input.id = id;
    input.name = spec.name;
    input.setAttribute("aria-describedby", [help?.id, fault.id].filter(Boolean).join(" "));
    const label = element("label", { htmlFor: id }, spec.label);
    const root = element(`div.field.${spec.kind}`, {}, label, input, ...more, help, fault);
    const wrong = (text) => {
        fault.textContent = text;
        fault.hidden = !text;
        if (text)
            input.setAttribute("aria-invalid", "true");
        else
            input.removeAttribute("aria-invalid");
    };
    root.addEventListener("input", () => wrong(""));
    return { name: spec.name, label: spec.label, root, input, wrong };
}

const changed = (input) => input.dispatchEvent(new Event("input", { bubbles: true }));

/* A number. With `slide`, [from, to, step], it has a slider of this range beside it. */
function numberControl(spec) {
    const input = element("input", { type: "number", min: spec.min ?? "", max: spec.max ?? "",
        step: spec.step ?? (spec.kind === "integer" ? 1 : "any"), placeholder: spec.placeholder ?? "",
        inputMode: spec.kind === "integer" ? "numeric" : "decimal" });
    const slider = spec.slide ? element("input", { type: "range", "aria-label": spec.label }) : null;
    if (slider) {
        [slider.min, slider.max, slider.step] = spec.slide;
        slider.addEventListener("input", () => { input.value = slider.value; });
        input.addEventListener("input", () => { slider.value = input.value; });
    }
    /* An empty seed means a new random one for each drawing. This button empties the field. */
    const empty = spec.empty ? element("button.quiet", { type: "button", hidden: true,
        onclick: () => { control.set(); input.focus(); } }, spec.empty) : null;
    const control = frame(spec, input, slider, empty);
    control.root.classList.add("number");
    input.addEventListener("input", () => empty && (empty.hidden = input.value === ""));
    control.slider = slider;
    control.fits = (value) => typeof value === "number" && value >= (spec.min ?? -Infinity) &&
        value <= (spec.max ?? Infinity) &&
        (spec.kind !== "integer" || Number.isSafeInteger(value) && value % (spec.step ?? 1) === 0);
    control.get = () => (input.value === "" ? undefined : Number(input.value));
    control.set = (value) => {
        input.value = value ?? "";
        if (slider)
            slider.value = value ?? spec.default ?? 0;
        changed(input);
    };
    return control;
}

function textControl(spec) {
    const input = spec.rows ? element("textarea", { rows: spec.rows })
                            : element("input", { type: "text", autocomplete: "off" });
    input.placeholder = spec.placeholder ?? "";
    const control = frame(spec, input);
    control.get = () => (input.value === "" && !spec.required ? undefined : input.value);
    control.fits = (value) => typeof value === "string";
    control.set = (value) => {
        input.value = value ?? "";
        changed(input);
    };
    return control;
}

function choiceControl(spec) {
    const options = (values) => values.map((value) => (Array.isArray(value) ? value : [value, value]))
        .map(([value, text]) => element("option", { value }, String(text)));
    const input = element("select", {}, ...options(spec.values));
    const control = frame(spec, input);
    control.get = () => (input.value === "" ? undefined : input.value);
    control.set = (value) => {
        input.value = value ?? "";
        changed(input);
    };
    control.fits = (value) => [...input.options].some((option) => option.value === String(value));
    control.setValues = (values) => {
        const before = input.value;
        input.replaceChildren(...options(values));
        input.value = before;
        if (input.selectedIndex < 0)
            input.selectedIndex = 0;
    };
    return control;
}

function flagControl(spec) {
    const input = element("input", { type: "checkbox" });
    const control = frame(spec, input);
    control.get = () => input.checked;
    control.fits = (value) => typeof value === "boolean";
    control.set = (value) => {
        input.checked = Boolean(value);
        changed(input);
    };
    return control;
}

const makers = { integer: numberControl, number: numberControl, text: textControl,
    choice: choiceControl, flag: flagControl };

/* `spec` is { name, kind, label, help, default, ... }; the makers above read the further members. */
export function control(spec) {
    const made = makers[spec.kind](spec);
    made.default = spec.default;
    made.set(spec.default);
    return made;
}

/* Makes the control of an option that the daemon describes by a JSON schema (GET /schedulers,
 * /openapi.json). */
export function optionControl(name, option, label = name.replaceAll("_", " ")) {
    const kind = option.enum ? "choice" : { boolean: "flag", string: "text", array: "text" }[option.type] ?? option.type;
    const max = option.maximum ?? option.exclusiveMaximum;
    const made = control({ name, kind, label, help: option.description,
        values: option.enum, min: option.minimum, max, default: option.default ?? option["x-default"] });
    made.root.classList.add("option");
    return made;
}

/* A part of the form that can be opened. While it is closed, its title shows a summary of its
 * settings. */
export function drawer(title, open, ...children) {
    const digest = element("span.digest");
    const root = element("details.drawer", { open },
        element("summary", {}, element("span.title", {}, title), digest),
        element("div.inside", {}, ...children));
    return { root, say: (text) => { digest.textContent = text; } };
}

/* Shows an error beside the field that it names. Returns false if no control has this name. */
export function showFault(controls, { param, reason }) {
    const name = param?.replace(/\[.*/, "");
    const control = controls.find((one) => one.name === param) ??
        controls.find((one) => one.name === name);
    if (!control)
        return false;
    for (let node = control.root.parentElement; node; node = node.parentElement)
        if (node.tagName === "DETAILS")
            node.open = true;
    control.wrong(reason);
    control.input.focus();
    return true;
}
