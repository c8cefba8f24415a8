/* A list of sizes to choose from, and a button that swaps width and height. */
import { button, element, freshId } from "./dom.js";

const RATIOS = [[4, 3], [3, 2], [16, 9]];

/* Returns the model's own size and common ratios with its short side, upright and wide, as [width,
 * height, label]. */
function sizesOf({ model, limits }) {
    const own = [model.default_width, model.default_height], short = Math.min(...own);
    const multiple = limits.size_multiple, found = [[...own, "default"]];
    const around = RATIOS.map(([a, b]) => [a, b, multiple * Math.round(short * a / b / multiple)]);
    for (const [a, b, long] of around)
        found.push([short, long, `${b}:${a}`]);
    for (const [a, b, long] of around)
        found.push([long, short, `${a}:${b}`]);
    return found.filter(([width, height]) => Math.max(width, height) <= limits.width_max);
}

/* `width` and `height` are the controls of these fields. */
export function createSizes(info, width, height) {
    const sizes = sizesOf(info), id = freshId("size");
    const choice = element("select", { id }, ...sizes.map(([w, h, what]) =>
        element("option", { value: `${w}x${h}` }, `${w} × ${h}, ${what}`)),
    element("option", { value: "" }, "another"));
    const set = (w, h) => {
        width.set(w);
        height.set(h);
    };
    const follow = () => {
        choice.value = `${width.get()}x${height.get()}`;
        if (choice.selectedIndex < 0)
            choice.value = "";
    };
    choice.addEventListener("change", () => choice.value && set(...choice.value.split("x").map(Number)));
    for (const one of [width, height])
        one.root.addEventListener("input", follow);
    follow();
    return element("div.field.sizes", {}, element("label", { htmlFor: id }, "Size"), choice,
        button("Swap", () => set(height.get(), width.get()), { "aria-label": "Swap width and height" }));
}
