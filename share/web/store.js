/* Keeps the gallery in the browser, so that a reload loses no picture. If the browser refuses to
 * store anything, the page works without it. */
const LIMIT = 200;

let opening = null;

function open() {
    opening ??= new Promise((done, fail) => {
        const request = indexedDB.open("latentd", 1);
        request.onupgradeneeded = () => request.result.createObjectStore("pictures", { keyPath: "number",
            autoIncrement: true }).createIndex("id", "id");
        request.onsuccess = () => done(request.result);
        request.onerror = () => fail(request.error);
    });
    return opening;
}

const result = (request) => new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
});

async function inStore(mode, work, otherwise) {
    try {
        const database = await open();
        return await work(database.transaction("pictures", mode).objectStore("pictures"));
    } catch {
        return otherwise;
    }
}

export function keep({ id, created, blob, parameters, timings, warnings, kept }) {
    return inStore("readwrite", async (store) => {
        store.add({ id, created, blob, parameters, timings, warnings, kept });
        const numbers = await result(store.getAllKeys());
        for (const number of numbers.slice(0, Math.max(0, numbers.length - LIMIT)))
            store.delete(number);
    });
}

export const forget = (id) => inStore("readwrite", async (store) => {
    const number = await result(store.index("id").getKey(id));
    if (number !== undefined)
        store.delete(number);
});

/* The latest first. */
export const loadKept = () => inStore("readonly", async (store) => (await result(store.getAll())).reverse(), []);
