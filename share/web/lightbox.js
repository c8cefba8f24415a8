/* Shows a picture as large as the window, or pixel for pixel. The arrow keys go to its neighbours,
 * Escape closes it. */
import { button, element } from "./dom.js";

/* `pictures` is [{ url, alt }]; the one at `index` is shown first. Resolves at the end to the index
 * of the picture that was shown last. The browser gives the focus back. */
export function lookClosely(pictures, index) {
    const image = element("img"), where = element("span.how", { role: "status" });
    const frame = element("div.frame", {}, image);
    const own = button("1:1", () => showPixels(own.getAttribute("aria-pressed") !== "true"),
        { "aria-label": "1:1, pixel for pixel" });
    const steps = [button("Previous", () => go(index - 1)), button("Next", () => go(index + 1))];
    const dialog = element("dialog.closely", { "aria-label": "The picture, closely" }, frame,
        element("div.row", {}, ...(pictures.length > 1 ? [steps[0], where, steps[1]] : []), own,
            button("Close", () => dialog.close(), { autofocus: true })));

    function showPixels(on) {
        own.setAttribute("aria-pressed", String(on));
        frame.classList.toggle("pixels", on);
        frame.tabIndex = on ? 0 : -1; /* only if there is something to scroll */
    }

    function go(to) {
        index = (to + pictures.length) % pictures.length;
        image.src = pictures[index].url;
        image.alt = pictures[index].alt;
        where.textContent = `${index + 1} of ${pictures.length}`;
    }

    dialog.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: pictures.length - 1 }[event.key];
        if (to === undefined || document.activeElement === frame)
            return;
        event.preventDefault();
        go(to);
    });
    frame.addEventListener("click", (event) => event.target === frame && dialog.close());
    showPixels(false);
    go(index);
    document.body.append(dialog);
    return new Promise((done) => {
        dialog.addEventListener("close", () => {
            dialog.remove();
            done(index);
        });
        dialog.showModal();
    });
}
