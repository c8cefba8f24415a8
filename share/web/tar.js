/* Makes tar archives (POSIX.1-1988's ustar) of a few files, for PUT /datasets/NAME and for
 * downloads. */
const BLOCK = 512;
const encoder = new TextEncoder();

function header(name, size, time_s) {
    const block = new Uint8Array(BLOCK);
    const put = (text, at) => block.set(encoder.encode(text), at);
    const octal = (value, digits) => value.toString(8).padStart(digits, "0");
    put(name, 0);
    put("0000644\0", 100);
    put("0000000\0", 108);
    put("0000000\0", 116);
    put(`${octal(size, 11)}\0`, 124);
    put(`${octal(time_s, 11)}\0`, 136);
    put(" ".repeat(8), 148); /* the checksum counts its own field as spaces */
    put("0", 156);
    put("ustar\x0000", 257);
    put(`${octal(block.reduce((sum, byte) => sum + byte, 0), 6)}\0 `, 148);
    return block;
}

/* `files` is [{ name, blob, time_s }]. A name has at most 100 bytes. time_s is in seconds since
 * 1970; default 0. */
export function makeTar(files) {
    const parts = [];
    for (const { name, blob, time_s } of files) {
        if (encoder.encode(name).length > 100)
            throw new Error(`${name}: the name is too long`);
        parts.push(header(name, blob.size, Math.floor(time_s ?? 0)), blob, new Uint8Array((BLOCK - blob.size % BLOCK) % BLOCK));
    }
    parts.push(new Uint8Array(2 * BLOCK));
    return new Blob(parts, { type: "application/x-tar" });
}
