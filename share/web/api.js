/* The daemon's routes: its errors as exceptions, its event streams as iterators, its key. */
import { find } from "./dom.js";

const KEY = "latentd.key";

/* The daemon's error answer to a request. */
export class ApiError extends Error {
    constructor(status, error = {}) {
        super(error.message || `the daemon answered ${status}`);
        this.status = status;
        this.code = error.code;
        this.param = error.param;
        this.allowed = error.allowed;
        /* The message without the field's name, to be shown beside the field. */
        this.reason = error.param ? this.message.replace(`${error.param}: `, "") : this.message;
    }
}

let asking = null;

/* Asks the user for an API key. `tried`: whether a key was just refused. Resolves to true if the
 * user gave a key. All requests that are refused while the dialog is open wait for its answer. */
function askForKey(tried) {
    asking ??= new Promise((done) => {
        const dialog = find("#key-dialog"), input = find("#key");
        input.value = "";
        find("#key-fault").hidden = !tried;
        dialog.returnValue = "";
        dialog.addEventListener("close", () => {
            const given = dialog.returnValue === "ok" && input.value !== "";
            if (given)
                sessionStorage.setItem(KEY, input.value);
            asking = null;
            done(given);
        }, { once: true });
        dialog.showModal();
    });
    return asking;
}

function send(method, path, { body, json, headers = {}, signal }) {
    const all = { ...headers };
    const key = sessionStorage.getItem(KEY);
    if (key)
        all.Authorization = `Bearer ${key}`;
    if (json !== undefined)
        all["Content-Type"] = "application/json";
    return fetch(path, { method, headers: all, signal, credentials: "omit", cache: "no-store",
        body: json !== undefined ? JSON.stringify(json) : body });
}

/* Resolves to the answer if it is a success; throws an ApiError otherwise. */
export async function request(method, path, options = {}) {
    let response = await send(method, path, options);
    while (response.status === 401 && await askForKey(sessionStorage.getItem(KEY) !== null))
        response = await send(method, path, options);
    if (response.ok)
        return response;
    const answer = await response.json().catch(() => ({}));
    /* AUTOMATIC1111's routes put the message into `detail`. */
    throw new ApiError(response.status, answer.error ?? { message: answer.detail });
}

export const getJson = async (path, options) => (await request("GET", path, options)).json();
export const getText = async (path, options) => (await request("GET", path, options)).text();
export const postJson = async (path, json) => (await request("POST", path, { json })).json();

/* Fetches a file and returns a URL of it for <img>, which could not send the key itself. Call
 * URL.revokeObjectURL when the picture is no longer shown. */
export const getUrl = async (path) => URL.createObjectURL(await (await request("GET", path)).blob());

/* Fetches what not every daemon has; null if this daemon does not have it. */
export async function getIfThere(path) {
    try {
        return await getJson(path);
    } catch (error) {
        if (error instanceof ApiError && error.status < 500)
            return null;
        throw error;
    }
}

/* Yields the events of a stream (HTML, section 9.2.6) as { event, id, data }; their data is JSON. */
export async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", event = "", id = "", data = [];
    for (;;) {
        const { value, done } = await reader.read();
        if (done)
            return;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const raw of lines) {
            const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
            if (line === "") {
                if (data.length)
                    yield { event: event || "message", id, data: JSON.parse(data.join("\n")) };
                event = "";
                data = [];
                continue;
            }
            const colon = line.indexOf(":");
            const field = colon < 0 ? line : line.slice(0, colon);
            const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
            if (field === "event")
                event = text;
            else if (field === "id")
                id = text;
            else if (field === "data")
                data.push(text);
        }
    }
}

/* Draws. Calls `on(event, data)` for each event before the answer. Returns the answer, which is the
 * body of POST /generate without "stream". Aborting the signal disconnects, and the daemon then
 * cancels the drawing within a step. */
export async function generate(fields, on, signal) {
    const response = await request("POST", "/generate", { json: { ...fields, stream: true }, signal,
        headers: { Accept: "text/event-stream" } });
    for await (const { event, data } of events(response)) {
        if (event === "result")
            return data;
        if (event === "error")
            throw new ApiError(response.status, data.error);
        on(event, data);
    }
    throw new Error("The connection ended before the picture was done.");
}
