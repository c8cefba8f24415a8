/* The prompts: the number of their tokens, keys that change weights, and buttons for the words of
 * textual inversion. */
import { ApiError, getIfThere, postJson } from "./api.js";
import { announce, button, element, freshId } from "./dom.js";

const COUNT_MS = 250; /* pause after the last key before tokens are counted */
const CUT_SHOWN = 200; /* letters */
const STEP = 0.1, TAG_STEP = 0.05;
const TAG = /<lora:[^<>:]+:(-?\d*\.?\d+)>/g;
const WORD_END = /[\s,()[\]<>|]/;

/* --- weights, as AUTOMATIC1111 writes them: (words:1.1) --- */

const rounded = (weight) => Math.round(100 * weight) / 100;

/* Changes the weight of the <lora:...> tag around start .. end. Returns what reweigh returns; null
 * without such a tag. */
function reweighTag(text, start, end, way) {
    for (const { 0: tag, 1: number, index } of text.matchAll(TAG)) {
        const to = index + tag.length - 1, from = to - number.length;
        if (start < index || end > to + 1)
            continue;
        const weight = String(rounded(Number(number) + way * TAG_STEP));
        return { from, to, put: weight, start: from, end: from + weight.length };
    }
    return null;
}

/* Returns the range of the words at the cursor: all words in the brackets around it, else one. */
function wordsAt(text, at) {
    const open = Math.max(text.lastIndexOf("(", at - 1), -1), shut = text.indexOf(")", at);
    const inside = text.slice(open + 1, shut);
    if (at > 0 && open >= 0 && shut >= 0 && !/[()]/.test(inside))
        return [open + 1, open + 1 + inside.replace(/:-?[\d.]*$/, "").length];
    let start = at, end = at;
    while (start > 0 && !WORD_END.test(text[start - 1]))
        start--;
    while (end < text.length && !WORD_END.test(text[end]))
        end++;
    return [start, end];
}

/* Makes the words of start .. end in `text` weigh more (`way` 1) or less (-1). Returns { from, to,
 * put, start, end }: `put` replaces the range from .. to, and start .. end is then the range of the
 * words. Returns null if there are no words. */
export function reweigh(text, start, end, way) {
    const tag = reweighTag(text, start, end, way);
    if (tag)
        return tag;
    if (start === end)
        [start, end] = wordsAt(text, start);
    const whole = /^\(([^()]*?)(:-?\d*\.?\d+)?\)$/s.exec(text.slice(start, end));
    if (whole) /* the brackets are part of the selection */
        [start, end] = [start + 1, start + 1 + whole[1].length];
    while (start < end && /\s/.test(text[start]))
        start++;
    while (start < end && /\s/.test(text[end - 1]))
        end--;
    if (start === end)
        return null;
    const closed = text[start - 1] === "(" ? /^(?::(-?\d*\.?\d+))?\)/.exec(text.slice(end)) : null;
    const from = closed ? start - 1 : start, to = closed ? end + closed[0].length : end;
    const weight = Math.max(0, rounded((closed ? Number(closed[1] ?? 1.1) : 1) + way * STEP));
    const words = text.slice(start, end), begin = weight === 1 ? from : from + 1;
    return { from, to, put: weight === 1 ? words : `(${words}:${weight})`, start: begin, end: begin + words.length };
}

/* Inserts the text as if it had been typed, so that it can be undone. */
function write(input, from, to, text) {
    input.focus();
    input.setSelectionRange(from, to);
    if (document.execCommand?.("insertText", false, text))
        return;
    input.setRangeText(text, from, to, "end");
    input.dispatchEvent(new Event("input", { bubbles: true }));
}

function weighByKeys(input, syntax, say) {
    input.addEventListener("keydown", (event) => {
        const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
        if (!way || !(event.ctrlKey || event.metaKey) || event.altKey)
            return;
        event.preventDefault();
        const change = reweigh(input.value, input.selectionStart, input.selectionEnd, way);
        if (!change)
            return;
        write(input, change.from, change.to, change.put);
        input.setSelectionRange(change.start, change.end);
        announce(change.put);
        if (syntax.get() === "a1111")
            return;
        syntax.set("a1111");
        say("Brackets now set weights: the prompt syntax is AUTOMATIC1111's.");
    });
}

/* --- tokens --- */

function counter({ root, input }) {
    const count = element("span.count", { id: freshId("count") });
    const cut = element("small.warning", { id: freshId("cut"), hidden: true });
    root.classList.add("counted");
    root.querySelector("label").after(count);
    input.after(cut);
    input.setAttribute("aria-describedby", `${input.getAttribute("aria-describedby")} ${count.id} ${cut.id}`);
    return (found, room) => {
        count.textContent = !found?.tokens ? ""
            : found.chunks > 1 ? `${found.tokens} tokens, in ${found.chunks} pieces of ${room}`
                : `${found.tokens} of ${room} tokens`;
        cut.textContent = !found?.cut ? ""
            : `Too long. This is cut: ${found.cut.slice(0, CUT_SHOWN)}${found.cut.length > CUT_SHOWN ? "…" : ""}`;
        cut.hidden = !found?.cut;
    };
}

/* `controls`: those of the fields that count, by name. Steps and scheduler decide which edits of a
 * prompt are drawn. */
function countTokens(controls, sampler) {
    const { prompt, negative_prompt, prompt_syntax, long_prompt, num_inference_steps } = controls;
    const shown = [prompt, negative_prompt].map(counter);
    let timer = null, asked = 0;
    async function count() {
        const mine = ++asked;
        let answer = {};
        try {
            answer = await postJson("/tokens", { prompt: prompt.get(), negative_prompt: negative_prompt.get() ?? "",
                prompt_syntax: prompt_syntax.get(), num_inference_steps: num_inference_steps.get(), scheduler: sampler.get(),
                ...(long_prompt.root.hidden ? {} : { long_prompt: long_prompt.get() }) });
        } catch (error) {
            if (!(error instanceof ApiError)) /* a wrong text gets its error when it is drawn */
                return;
        }
        if (mine !== asked)
            return;
        shown[0](answer.prompt, answer.chunk_tokens);
        shown[1](answer.negative_prompt, answer.chunk_tokens);
    }
    for (const one of [prompt, negative_prompt, prompt_syntax, long_prompt, num_inference_steps, sampler])
        one.root.addEventListener("input", () => {
            clearTimeout(timer);
            timer = setTimeout(count, COUNT_MS);
        });
    count();
}

/* --- words --- */

/* Makes a button for each word of textual inversion. The button inserts the word at the cursor's
 * last place. */
async function wordsFor(inputs) {
    const known = (await getIfThere("/embeddings"))?.embeddings ?? [];
    let last = inputs[0];
    for (const input of inputs)
        input.addEventListener("focus", () => { last = input; });
    const add = (name) => {
        const before = last.value.slice(0, last.selectionStart);
        write(last, last.selectionStart, last.selectionEnd, before && !/\s$/.test(before) ? ` ${name}` : name);
    };
    return element("p.words", { hidden: !known.length }, "Embeddings",
        ...known.map(({ name }) => button(name, () => add(name), { className: "quiet" })));
}

/* Fills `place`, with the controls of the fields by name. `sampler` has { root, get }. */
export function createPrompts(place, controls, sampler) {
    const prompts = [controls.prompt, controls.negative_prompt], inputs = prompts.map((one) => one.input);
    const said = element("p.hint", { role: "status" }), words = element("p");
    place.replaceChildren(...prompts.map((one) => one.root),
        element("div", {}, element("p.hint.keys", {}, element("kbd", {}, "Ctrl"), " ", element("kbd", {}, "↑"), " ",
            element("kbd", {}, "↓"), " change the weight of the words at the cursor"), said, words));
    controls.prompt_syntax.root.addEventListener("input", () => { said.textContent = ""; });
    for (const input of inputs)
        weighByKeys(input, controls.prompt_syntax, (text) => { said.textContent = text; });
    countTokens(controls, sampler);
    wordsFor(inputs).then((known) => words.replaceWith(known));
}
