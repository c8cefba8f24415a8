/* The form of a drawing. It has a control for each field of POST /generate, with the daemon's
 * ranges and defaults. */
import { element, find, number } from "./dom.js";
import { control, drawer, optionControl, showFault } from "./fields.js";
import { createLoras } from "./loras.js";
import { createPrompts } from "./prompt.js";
import { createSizes } from "./sizes.js";
import { createSource } from "./source.js";

const DRAFT = "latentd.draft";
/* Fields of a request that a picture does not have: taking over a picture's settings leaves them
 * unchanged. */
const NOT_OF_PICTURES = ["output", "quality", "priority", "timeout_s", "preview_every", "preview"];
const SEED_MAX = 2 ** 53 - 1; /* the largest integer that JavaScript holds exactly */

function promptFields() {
    return [
        { name: "prompt", kind: "text", label: "Prompt", rows: 3, default: "", required: true },
        { name: "negative_prompt", kind: "text", label: "Negative prompt", rows: 1, default: "" },
    ];
}

function sizeFields({ model, limits }) {
    const side = { kind: "integer", min: limits.width_min, max: limits.width_max, step: limits.size_multiple,
        slide: [limits.width_min, Math.min(limits.width_max, 2 * model.default_width), limits.size_multiple] };
    return [
        { ...side, name: "width", label: "Width", default: model.default_width },
        { ...side, name: "height", label: "Height", default: model.default_height },
        { name: "num_inference_steps", kind: "integer", label: "Steps", default: 25, min: 1,
            max: limits.num_inference_steps_max, slide: [1, 100, 1] },
        { name: "guidance_scale", kind: "number", label: "Guidance", default: 7.5, min: 0, slide: [1, 20, 0.1],
            step: 0.1 },
        { name: "num_images", kind: "integer", label: "Pictures", default: 1, min: 1, max: limits.images_max,
            slide: [1, limits.images_max, 1] },
        { name: "seed", kind: "integer", label: "Seed", min: 0, max: SEED_MAX, placeholder: "random",
            empty: "Random" },
    ];
}

function moreFields({ limits }) {
    const side = { kind: "integer", min: limits.width_min, max: limits.width_max, step: limits.size_multiple,
        placeholder: "the picture's" };
    return [
        { name: "guidance_rescale", kind: "number", label: "Guidance rescale", default: 0, min: 0, max: 1,
            step: 0.05, slide: [0, 1, 0.05], help: "for v-prediction models" },
        { name: "clip_skip", kind: "integer", label: "CLIP skip", default: 0, min: 0, slide: [0, 11, 1] },
        { name: "prompt_syntax", kind: "choice", label: "Prompt syntax", default: "plain",
            values: [["plain", "plain"], ["a1111", "AUTOMATIC1111's: (weights:1.2), [a:b:0.5], AND, BREAK, <lora:name:1>"]] },
        { name: "long_prompt", kind: "choice", label: "Long prompts", default: "truncate",
            values: [["truncate", "cut, with a warning"], ["chunk", "encode in pieces"]] },
        { name: "rng", kind: "choice", label: "Noise", default: "cpu",
            values: [["cpu", "torch's CPU generator"], ["cuda", "torch's CUDA generator"]] },
        { name: "subseed", kind: "integer", label: "Variation seed", min: 0, max: SEED_MAX, placeholder: "random",
            empty: "Random" },
        { name: "subseed_strength", kind: "number", label: "Variation strength", default: 0, min: 0, max: 1,
            step: 0.01, slide: [0, 1, 0.01], help: "how far the seed's noise is turned towards the variation seed's" },
        { ...side, name: "seed_resize_from_w", label: "Noise width",
            help: "a seed's pictures resemble each other only in one size; the seed is used as for this size" },
        { ...side, name: "seed_resize_from_h", label: "Noise height", help: "beside the width" },
        { name: "output", kind: "choice", label: "File", default: "png",
            values: [["png", "PNG"], ["jpeg", "JPEG"], ["webp", "WebP"]] },
        { name: "quality", kind: "integer", label: "Quality", min: 1, max: 100, placeholder: "90",
            help: "of JPEG and WebP" },
        { name: "vae_tiling", kind: "choice", label: "Large pictures", default: "auto",
            values: [["auto", "whole, if memory suffices"], ["on", "in tiles"], ["off", "always whole"]] },
        { name: "priority", kind: "integer", label: "Priority", default: 0, min: -3, max: 3, slide: [-3, 3, 1] },
        { name: "timeout_s", kind: "number", label: "Give up after", min: 1, placeholder: "never",
            help: "seconds" },
        { name: "preview_every", kind: "integer", label: "Preview every", default: 1, min: 0,
            help: "steps; 0 for none" },
        { name: "preview", kind: "choice", label: "Previews", default: "rgb",
            values: [["rgb", "quick"], ["vae", "exact, costs time"]] },
    ];
}

/* The scheduler and its options. */
function createSampler(schedulers, info) {
    const known = new Map(schedulers.schedulers.map((one) => [one.name, one]));
    const fallback = schedulers.default ?? schedulers.schedulers[0].name;
    const choice = control({ name: "scheduler", kind: "choice", label: "Scheduler",
        default: info.model.default_scheduler ?? fallback, help: " ",
        values: schedulers.schedulers.map((one) => [one.name, one.display_name]) });
    const place = element("div.options");
    const about = choice.root.querySelector(".help");
    let options = [];
    function follow() {
        const scheduler = known.get(choice.get());
        about.textContent = scheduler.description;
        options = Object.entries(scheduler.options).map(([name, option]) => optionControl(name, option));
        place.replaceChildren(...options.map((one) => one.root));
    }
    choice.input.addEventListener("change", follow);
    follow();
    return {
        root: element("div", {}, choice.root, place),
        controls: () => [choice, ...options.map((one) => ({ ...one, name: `scheduler.${one.name}` }))],
        digest: () => known.get(choice.get()).display_name,
        get() {
            const mine = options.filter((one) => one.get() !== undefined && one.get() !== one.default);
            const name = choice.get();
            return mine.length ? Object.fromEntries([["name", name], ...mine.map((one) => [one.name, one.get()])])
                               : name;
        },
        /* Returns the names of the options that the form cannot show. */
        set(scheduler) {
            const { name, ...values } = typeof scheduler === "string" ? { name: scheduler } : scheduler ?? {};
            if (!known.has(name))
                return name === undefined ? [] : [`scheduler ${name}`];
            choice.set(name);
            follow();
            const fits = new Map(options.filter((one) => one.name in values && one.fits(values[one.name]))
                .map((one) => [one.name, one]));
            for (const [option, one] of fits)
                one.set(values[option]);
            return Object.keys(values).filter((option) => !fits.has(option)).map((option) => `scheduler's ${option}`);
        },
    };
}

/* { get(), set(parameters, kept), take(fields), begin(blob), fault(error), refresh() }. */
export function createForm(info, schedulers) {
    const own = info.model.defaults; /* the checkpoint's, or the daemon's */
    const create = (field) => ({ ...control({ ...field, default: own[field.name] ?? field.default }),
        plain: field.default });
    const prompts = promptFields().map(create);
    const sizes = sizeFields(info).map(create);
    const more = moreFields(info).map(create);
    const plain = [...prompts, ...sizes, ...more];
    const named = Object.fromEntries(plain.map((one) => [one.name, one]));
    const sampler = createSampler(schedulers, info);
    const loras = createLoras();
    const multiple = info.limits.size_multiple;
    const source = createSource((width, height) => {
        for (const [name, value] of [["width", width], ["height", height]])
            named[name].set(Math.min(info.limits.width_max,
                Math.max(info.limits.width_min, value - value % multiple)));
    });

    /* With weights, long prompts are always encoded in pieces. */
    named.prompt_syntax.root.addEventListener("input", () => {
        named.long_prompt.root.hidden = named.prompt_syntax.get() === "a1111";
    });

    const roots = (controls) => controls.map((one) => one.root);
    const drawers = [
        [drawer("Size and steps", true, createSizes(info, named.width, named.height), ...roots(sizes)), () =>
            `${named.width.get()} × ${named.height.get()}, ${named.num_inference_steps.get()} steps`],
        [drawer("LoRAs", true, loras.root), loras.digest],
        [drawer("Start picture", info.model.needs_mask_image, source.root), source.digest],
        [drawer("Sampler", false, sampler.root), sampler.digest],
        [drawer("More", false, ...roots(more)), () => ""],
    ];
    const narrow = matchMedia("(max-width: 52rem)").matches;
    for (const [one] of drawers)
        one.root.open &&= !narrow;
    createPrompts(find("#prompt-fields"), named, sampler);
    find("#settings").replaceChildren(...drawers.map(([one]) => one.root));
    const tell = () => drawers.forEach(([one, digest]) => one.say(digest()));
    find("#settings").addEventListener("input", tell);
    find("#settings").addEventListener("change", tell);
    tell();

    /* Saves the values that differ from the defaults, so that a reload keeps them. Pictures are too
     * large to be saved. */
    function save() {
        const changed = plain.filter((one) => one.get() !== one.default).map((one) => [one.name, one.get()]);
        sessionStorage.setItem(DRAFT, JSON.stringify({ ...Object.fromEntries(changed), scheduler: sampler.get(),
            loras: loras.get() }));
    }

    /* Shows a picture's parameters. A field that is missing there had the API's default, which may
     * differ from this model's. Returns the names of the fields that the form cannot show. */
    function show(parameters) {
        const left = [];
        for (const one of plain) {
            const value = parameters[one.name];
            if (value === undefined && !NOT_OF_PICTURES.includes(one.name))
                one.set(one.plain);
            else if (value !== undefined && one.fits(value))
                one.set(value);
            else if (value !== undefined)
                left.push(`${one.label} ${JSON.stringify(value)}`);
        }
        left.push(...sampler.set(parameters.scheduler));
        const chosen = Array.isArray(parameters.loras) ? parameters.loras : [];
        loras.set(chosen);
        left.push(...chosen.filter((one) => !loras.fits(one)).map((one) => `LoRA ${one?.name}`));
        tell();
        return left;
    }

    return {
        refresh: loras.refresh,
        hasLora: loras.has,
        loras: loras.names,
        restore() {
            const { scheduler, loras: chosen, ...fields } = JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}");
            for (const one of plain)
                if (one.name in fields)
                    one.set(fields[one.name]);
            if (scheduler)
                sampler.set(scheduler);
            if (chosen)
                loras.set(chosen.filter((one) => loras.has(one.name)));
            for (const kind of ["input", "change"])
                find("#ask").addEventListener(kind, save);
        },
        async get() {
            const begun = await source.get();
            const fields = { scheduler: sampler.get(), loras: loras.get(), ...begun.fields };
            for (const one of plain)
                if (one.get() !== undefined && !one.root.hidden)
                    fields[one.name] = one.get();
            if (!fields.preview_every)
                delete fields.preview; /* the daemon refuses it without previews */
            return { fields, kept: begun.kept };
        },
        async set(parameters, kept) {
            await source.set(kept, parameters); /* first: it sets width and height */
            show(parameters);
        },
        /* Does what `set` does, for the fields of a file from anywhere. Fields that the form cannot
         * show are left out. Resolves to their names. */
        async take(fields) {
            const known = [...plain.map((one) => one.name), "scheduler", "loras", "init_image", "mask_image"];
            if (fields.init_image)
                known.push("strength", "masked_content", "resize_mode");
            await source.set(null);
            return [...show(fields), ...(fields.init_image ? ["the start picture"] : []),
                ...(fields.mask_image ? ["the mask"] : []),
                ...Object.keys(fields).filter((name) => !known.includes(name)).map((name) => name.replaceAll("_", " "))];
        },
        async begin(blob) {
            drawers[2][0].root.open = true;
            await source.take(blob);
        },
        use(lora) {
            loras.set([...loras.get().filter((one) => one.name !== lora), { name: lora, weight: 1 }]);
        },
        fault(error) {
            const all = [...plain, ...sampler.controls(), loras, ...source.controls,
                { ...source, name: "init_image" }, { ...source, name: "mask_image" }];
            return showFault(all, error);
        },
        focus: () => named.prompt.input.focus(),
    };
}

/* Describes how a picture was drawn, as a list of [name, text]. */
export function describeParameters(parameters, schedulers, timings) {
    const scheduler = parameters.scheduler?.name;
    const shown = schedulers.schedulers.find((one) => one.name === scheduler)?.display_name ?? scheduler;
    const list = [
        ["Seed", parameters.seed],
        ["Size", `${parameters.width} × ${parameters.height}`],
        ["Steps", parameters.num_inference_steps],
        ["Guidance", number(parameters.guidance_scale)],
        ["Sampler", shown],
    ];
    if (parameters.negative_prompt)
        list.push(["Negative prompt", parameters.negative_prompt]);
    if (parameters.loras?.length)
        list.push(["LoRAs", parameters.loras.map((one) => `${one.name} ${number(one.weight)}`).join(", ")]);
    if (parameters.init_image)
        list.push(["Start picture", parameters.mask_image ? "a picture and a mask" : "a picture"],
            ["Strength", number(parameters.strength)]);
    if (timings)
        list.push(["Took", `${number(timings.total_s)} s`]);
    return list;
}
