"""Drives the daemon's web page in a browser, as a person who draws and trains with it."""
import base64
import importlib.util
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import check
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
        self.open("about:blank")  # otherwise only the fragment may change, and nothing is loaded
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


def is_accessible(p, view):
    """On a desktop's and a phone's screen, light and dark, the page must break no rule of axe-core
    and must not be wider than the window."""
    package = importlib.util.find_spec("axe_playwright_python").submodule_search_locations[0]
    with open(os.path.join(package, "axe.min.js"), encoding="utf-8") as f:
        p.run(f.read())
    for scheme in ("light", "dark"):
        for width, height in ((1280, 900), (390, 844)):
            p.look(width, height, scheme)
            answer = p.run_async("const done = arguments[arguments.length - 1];"
                                 "axe.run(document).then(done, (e) => done({ error: String(e) }));")
            broken = [(v["id"], v["impact"], [n["target"] for n in v["nodes"]][:3]) for v in answer.get("violations", [answer])]
            print(f"axe, {view}, {scheme}, {width} px: {len(answer.get('passes', []))} rules passed, broken {broken}")
            check(not broken, f"{view}, {scheme}, {width} px: {broken}")
            check(p.run("return document.documentElement.scrollWidth <= innerWidth;"),
                  f"{view}, {width} px: the page is not wider than the window")
    p.look(1280, 900, "light")


def nobody_else_is_asked(p):
    """All requests of the page go to the host that the page came from."""
    urls, foreign = set(), set()
    for entry in p.log("performance"):
        message = json.loads(entry["message"])["message"]
        asked = message["params"]
        if message["method"] == "Network.requestWillBeSent" and asked["documentURL"].startswith("http"):
            url, origin = asked["request"]["url"], "/".join(asked["documentURL"].split("/")[:3]) + "/"
            urls.add(url) # not those of the browser's first tab
            if not url.startswith((origin, "blob:" + origin)) or not origin.startswith("http://127.0.0.1:"):
                foreign.add(url)
    check(len(urls) > 15 and not foreign, f"{len(urls)} requests, all to the daemon: {foreign}")


def no_errors(p, *provoked):
    """The browser's console holds only its messages about requests that the test made fail.
    `provoked` lists patterns of these."""
    lines = [e["message"] for e in p.log("browser") if e["level"] in ("SEVERE", "WARNING")]
    lines = [line for line in lines if not any(re.search(pattern + " - Failed to load resource", line) for pattern in provoked)]
    check(not lines, f"the browser's console is empty: {lines}")
