"""Drives the daemon's web page in a browser, as a person who draws and trains with it."""
import base64
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from webdriver import Browser

# Reads a gallery picture's bytes from the browser's IndexedDB, by its id: the page's policy forbids
# it to fetch its own blob: URLs.
KEPT = """const done = arguments[arguments.length - 1], id = arguments[0], opening = indexedDB.open("latentd");
opening.onsuccess = () => {
    const look = () => {
        const asked = opening.result.transaction("pictures").objectStore("pictures").index("id").get(id);
        asked.onsuccess = () => {
            if (!asked.result)
                return setTimeout(look, 20);
            const reader = new FileReader();
            reader.onload = () => { opening.result.close(); done(reader.result.split(",")[1]); };
            reader.readAsDataURL(asked.result.blob);
        };
    };
    look();
};"""


class Page(Browser):
    def __init__(self, daemon, width=1280, height=900, patience_s=60):
        super().__init__(width, height, patience_s)
        self.origin = f"http://{daemon.host}:{daemon.port}"

    def start(self, room="draw"):
        self.open(f"{self.origin}/#{room}")
        self.wait("the page", "document.body.dataset.ready !== undefined")

    def go(self, room):
        self.click(f'nav a[href="#{room}"]')
        self.wait(room, f'!document.querySelector("#{room}").hidden')

    def open_drawer(self, title):
        self.run("""for (const one of document.querySelectorAll("details.drawer"))
            if (one.querySelector(".title").textContent === arguments[0]) one.open = true;""", title)

    def set(self, **fields):
        """Sets controls of the visible form, by the names of their fields."""
        for name, value in fields.items():
            self.run("""const input = [...document.querySelectorAll(`[name="${arguments[0]}"]`)]
                .find((one) => !one.closest("main").hidden);
            if (input.type === "checkbox") input.checked = arguments[1]; else input.value = arguments[1];
            input.dispatchEvent(new Event("input", { bubbles: true }));
            input.dispatchEvent(new Event("change", { bubbles: true }));""", name, value)

    def press_button(self, text, within="body"):
        self.wait(f"the button {text}", """[...document.querySelector(arguments[1]).querySelectorAll("button")]
            .some((one) => one.textContent === arguments[0] && one.offsetParent)""", text, within)
        self.run("""[...document.querySelector(arguments[1]).querySelectorAll("button")]
            .find((one) => one.textContent === arguments[0] && one.offsetParent).click();""", text, within)

    def pictures(self):
        return self.count("#gallery li")

    def draw(self, seconds=None):
        """Draws with the form's values and waits for the picture. Returns the file's bytes."""
        before = self.pictures()
        self.click("#ask button.primary")
        self.wait("the picture", f'document.querySelectorAll("#gallery li").length > {before}', seconds=seconds)
        return self.shown()

    def shown(self):
        """Returns the bytes of the picture in the viewer."""
        self.wait("a picture", 'document.querySelector("#viewer figcaption .facts")')
        id = self.run('return document.querySelector("#gallery [aria-current=true]").closest("li").dataset.id;')
        return base64.b64decode(self.run_async(KEPT, id))

    def facts(self):
        return self.run("""return Object.fromEntries([...document.querySelectorAll("#viewer .facts div")]
            .map((one) => [one.children[0].textContent, one.children[1].textContent]));""")
