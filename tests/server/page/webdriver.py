"""Controls a browser over WebDriver (W3C), with Debian's chromium and chromium-driver. Standard
library only."""
import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"tab": "\ue004", "enter": "\ue007", "space": " ", "control": "\ue009", "left": "\ue012", "up": "\ue013",
        "right": "\ue014", "down": "\ue015", "escape": "\ue00c"}


def programs():
    """The paths of the browser and its driver, or None if one is missing."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    return found if all(found) else None


class WebDriverError(Exception):
    pass


class Browser:
    """`with Browser(1280, 900) as b: b.open(url)`. At the end stops all processes it started."""

    def __init__(self, width, height, patience_s=30):
        self.size, self.patience_s = (width, height), patience_s
        self.folder = tempfile.mkdtemp()
        self.session = None

    def __enter__(self):
        chromium, driver = programs()
        self.driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            raise WebDriverError("chromedriver does not start")
        options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                                "--no-first-run", "--disable-background-networking", "--disable-sync",
                                                "--disable-component-update", f"--user-data-dir={self.folder}"]}
        try:
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
            self.session = answer["sessionId"]
            self.call("POST", "/timeouts", {"script": int(self.patience_s * 1000)})
            self.look(*self.size, "light")
        except Exception:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        try:
            if self.session:
                self.call("DELETE", "")
        except (OSError, WebDriverError):
            pass
        self.driver.terminate()
        self.driver.wait()
        self.driver.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    def call(self, method, path, body=None):
        if not path.startswith("/session"):
            path = f"/session/{self.session}{path}"
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience_s + 60)
        try:
            c.request(method, path, json.dumps(body or {}) if method == "POST" else None,
                      {"Content-Type": "application/json"})
            answer = json.loads(c.getresponse().read())["value"]
        finally:
            c.close()
        if isinstance(answer, dict) and "error" in answer and "message" in answer:
            raise WebDriverError(f"{method} {path}: {answer['message'].splitlines()[0]}")
        return answer

    # --- what a person does ---

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def element(self, css):
        return self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.call("POST", f"/element/{self.element(css)}/click")

    def type(self, css, text):
        self.call("POST", f"/element/{self.element(css)}/value", {"text": text})

    def fill(self, css, text):
        """Replaces the field's text."""
        self.call("POST", f"/element/{self.element(css)}/clear")
        self.type(css, text)

    def choose_file(self, css, *paths):
        self.type(css, "\n".join(paths))

    def press(self, *names):
        """Presses keys in order, holding the earlier ones down."""
        keys = [KEYS.get(name, name) for name in names]
        actions = [{"type": "keyDown", "value": k} for k in keys] + [{"type": "keyUp", "value": k} for k in reversed(keys)]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def drag(self, css, points):
        """Drags the mouse over an element. Points are relative to its middle, in fractions of
        its width and height."""
        box = self.run("const one = document.querySelector(arguments[0]);"
                       "one.scrollIntoView({ block: 'center', behavior: 'instant' });"
                       "const b = one.getBoundingClientRect(); return [b.width, b.height];", css)
        origin = {ELEMENT: self.element(css)}
        moves = [{"type": "pointerMove", "duration": 20, "origin": origin, "x": round(x * box[0]), "y": round(y * box[1])}
                 for x, y in points]
        actions = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                                                    "actions": actions}]})

    # --- what a test sees ---

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        """`script` must call its last argument with the result."""
        return self.call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def text(self, css):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? null;", css)

    def count(self, css):
        return self.run("return document.querySelectorAll(arguments[0]).length;", css)

    def wait(self, what, script, *arguments, seconds=None):
        """Waits until the expression is true. Returns its value."""
        end = time.monotonic() + (seconds or self.patience_s)
        while True:
            value = self.run(f"return ({script});", *arguments)
            if value:
                return value
            if time.monotonic() > end:
                raise WebDriverError(f"waited in vain for: {what}")
            time.sleep(0.05)

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width, height, scheme=None, scale=1):
        """Emulates a screen of this size, a colour scheme ("dark" or "light") and the setting
        for reduced motion."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                      mobile=width < 600)
        if scheme:
            self.devtools("Emulation.setEmulatedMedia", features=[
                {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])

    def screenshot(self, path, whole=True):
        """Saves a screenshot of the window, or of the whole page."""
        if whole:
            width, height, all = self.run("return [innerWidth, innerHeight, document.documentElement.scrollHeight];")
            self.look(width, all, scale=self.run("return devicePixelRatio;"))
        data = self.devtools("Page.captureScreenshot", format="png")["data"]
        if whole:
            self.look(width, height, scale=self.run("return devicePixelRatio;"))
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
