#include "pictures/jpeg/exif.h"

#include <stdlib.h>
#include <string.h>

enum {
    TAG_IMAGE_DESCRIPTION = 0x010e,
    TAG_ORIENTATION = 0x0112,
    TAG_EXIF = 0x8769,
    TAG_USER_COMMENT = 0x9286,
};
enum { TYPE_ASCII = 2, TYPE_SHORT = 3, TYPE_LONG = 4, TYPE_UNDEFINED = 7 };
#define COMMENT_HEAD "UNICODE" /* for UTF-16; 8 bytes with its NUL */
#define ENTRY_BYTES 12

struct reader {
    const uint8_t *bytes;
    size_t size;
    bool little;
};

/* Returns 0 beyond the end of the data. 0 is not a valid tag, type or orientation. */
static uint32_t read_16(const struct reader *r, size_t at) {
    if (r->size < 2 || at > r->size - 2)
        return 0;
    const uint32_t a = r->bytes[at], b = r->bytes[at + 1];
    return r->little ? b << 8 | a : a << 8 | b;
}

static uint32_t read_32(const struct reader *r, size_t at) {
    const uint32_t a = read_16(r, at), b = read_16(r, at + 2);
    return r->little ? b << 16 | a : a << 16 | b;
}

/* Reads the byte order at the beginning. Returns false if the data do not begin with a TIFF
 * header. */
static bool begin_reading(const uint8_t *tiff, size_t size, struct reader *out) {
    *out = (struct reader){ tiff, size, size >= 2 && tiff[0] == 'I' && tiff[1] == 'I' };
    const bool big = size >= 2 && tiff[0] == 'M' && tiff[1] == 'M';
    return (out->little || big) && read_16(out, 2) == 42;
}

/* Returns the offset of the entry with this tag in the directory at `folder`; 0 if there is none.
 * Stops at the end of the data, even if the directory claims more entries. */
static size_t find_entry(const struct reader *r, size_t folder, uint32_t tag) {
    const size_t entries = read_16(r, folder);
    for (size_t i = 0; i < entries && folder + 2 + i * ENTRY_BYTES < r->size; i++) {
        const size_t entry = folder + 2 + i * ENTRY_BYTES;
        if (read_16(r, entry) == tag)
            return entry;
    }
    return 0;
}

int exif_orientation(const uint8_t *tiff, size_t size) {
    struct reader r;
    const size_t entry = begin_reading(tiff, size, &r)
                             ? find_entry(&r, read_32(&r, 4), TAG_ORIENTATION)
                             : 0;
    const uint32_t value = entry ? read_16(&r, entry + 8) : 1;
    const bool right = entry && read_16(&r, entry + 2) == TYPE_SHORT && read_32(&r, entry + 4) == 1;
    return right && value >= 1 && value <= 8 ? (int)value : 1;
}

static char *put_utf8(char *out, uint32_t code) {
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t first[] = { 0, 0xc0, 0xe0, 0xf0 };
    *out++ = (char)(first[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--)
        *out++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return out;
}

/* Converts UTF-16 in the byte order of `r`, up to its first NUL, to UTF-8. malloc'd. A lone
 * surrogate becomes U+FFFD. */
static char *from_utf16(const struct reader *r, size_t at, size_t bytes) {
    char *text = malloc(bytes / 2 * 3 + 1), *out = text;
    for (size_t i = 0; text && i + 2 <= bytes; i += 2) {
        uint32_t code = read_16(r, at + i);
        if (code == 0)
            break;
        const uint32_t low = i + 4 <= bytes ? read_16(r, at + i + 2) : 0;
        if (code >= 0xd800 && code < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            i += 2;
        } else if (code >= 0xd800 && code < 0xe000) {
            code = 0xfffd;
        }
        out = put_utf8(out, code);
    }
    if (text)
        *out = 0;
    return text;
}

/* The first eight bytes name the encoding of the text. AUTOMATIC1111 writes UTF-16 big-endian, even
 * if the numbers are little-endian. */
bool exif_user_comment(const uint8_t *tiff, size_t size, char **out, struct error *err) {
    struct reader r;
    *out = NULL;
    if (!begin_reading(tiff, size, &r))
        return true;
    const size_t link = find_entry(&r, read_32(&r, 4), TAG_EXIF);
    const size_t entry = link ? find_entry(&r, read_32(&r, link + 8), TAG_USER_COMMENT) : 0;
    const size_t bytes = entry ? read_32(&r, entry + 4) : 0,
                 at = entry ? read_32(&r, entry + 8) : 0;
    if (bytes < sizeof(COMMENT_HEAD) || at > size || bytes > size - at)
        return true;
    const size_t text = at + sizeof(COMMENT_HEAD), length = bytes - sizeof(COMMENT_HEAD);
    if (memcmp(tiff + at, COMMENT_HEAD, sizeof(COMMENT_HEAD)) == 0) {
        r.little = false;
        *out = from_utf16(&r, text, length);
    } else if (memcmp(tiff + at, "ASCII\0\0", sizeof(COMMENT_HEAD)) == 0) {
        *out = strndup((const char *)tiff + text, length);
    } else {
        return true;
    }
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
}

bool exif_description(const uint8_t *tiff, size_t size, char **out, struct error *err) {
    struct reader r;
    *out = NULL;
    const size_t entry = begin_reading(tiff, size, &r)
                             ? find_entry(&r, read_32(&r, 4), TAG_IMAGE_DESCRIPTION)
                             : 0;
    const size_t bytes = entry ? read_32(&r, entry + 4) : 0;
    /* Four bytes or fewer stand in the entry itself. */
    const size_t at = !entry ? 0 : bytes <= 4 ? entry + 8 : read_32(&r, entry + 8);
    if (bytes == 0 || read_16(&r, entry + 2) != TYPE_ASCII || at > size || bytes > size - at)
        return true;
    *out = strndup((const char *)tiff + at, bytes);
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
}

/* --- writing: all numbers are big-endian, as the comment's UTF-16 is --- */

#define HEAD_BYTES 8
#define DIRECTORY_BYTES(entries) (2 + ENTRY_BYTES * (entries) + 4)

static uint8_t *put_16(uint8_t *out, uint32_t value) {
    out[0] = (uint8_t)(value >> 8);
    out[1] = (uint8_t)value;
    return out + 2;
}

static uint8_t *put_32(uint8_t *out, size_t value) {
    return put_16(put_16(out, (uint32_t)(value >> 16)), (uint32_t)value);
}

static uint8_t *put_entry(uint8_t *out, uint32_t tag, uint32_t type, size_t count, size_t value) {
    return put_32(put_32(put_16(put_16(out, tag), type), count), value);
}

/* Converts valid UTF-8 to UTF-16, which takes at most twice as many bytes. Returns the end of the
 * output. */
static uint8_t *put_utf16(uint8_t *out, const char *text) {
    for (const uint8_t *p = (const uint8_t *)text; *p;) {
        const int more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
        uint32_t code = more ? *p & (0x3fu >> more) : *p;
        p++;
        for (int i = 0; i < more && *p; i++)
            code = code << 6 | (*p++ & 0x3fu);
        if (code >= 0x10000) {
            out = put_16(out, 0xd800 + ((code - 0x10000) >> 10));
            code = 0xdc00 + ((code - 0x10000) & 0x3ff);
        }
        out = put_16(out, code);
    }
    return out;
}

bool exif_create(const char *description, const char *comment, size_t most_bytes, uint8_t **out,
    size_t *out_size, struct error *err) {
    const size_t described = description ? strlen(description) + 1 : 0;
    const size_t head = sizeof(COMMENT_HEAD);
    const size_t room = 128 + described + 2 * (comment ? strlen(comment) : 0);
    const unsigned entries = (description != NULL) + (comment != NULL);
    uint8_t *bytes = malloc(room), *utf16 = malloc(room);
    *out = NULL;
    *out_size = 0;
    if (!bytes || !utf16) {
        free(bytes);
        free(utf16);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
    }
    const size_t commented = comment ? (size_t)(put_utf16(utf16, comment) - utf16) : 0;
    const size_t at_comment_directory = HEAD_BYTES + DIRECTORY_BYTES(entries);
    const size_t at_comment = at_comment_directory + (comment ? DIRECTORY_BYTES(1u) : 0);
    const size_t at_description = at_comment + (comment ? head + commented : 0);
    uint8_t *p = bytes;
    memcpy(p, "MM\0*\0\0\0\b", HEAD_BYTES);
    p = put_16(p + HEAD_BYTES, entries);
    if (description)
        p = put_entry(p, TAG_IMAGE_DESCRIPTION, TYPE_ASCII, described, at_description);
    if (comment) {
        p = put_entry(p, TAG_EXIF, TYPE_LONG, 1, at_comment_directory);
        p = put_16(put_32(p, 0), 1);
        p = put_entry(p, TAG_USER_COMMENT, TYPE_UNDEFINED, head + commented, at_comment);
        p = put_32(p, 0);
        memcpy(p, COMMENT_HEAD, head);
        memcpy(p + head, utf16, commented);
        p += head + commented;
    } else {
        p = put_32(p, 0);
    }
    if (description)
        memcpy(p, description, described);
    free(utf16);
    const size_t size = at_description + described;
    if (entries > 0 && size <= most_bytes) {
        *out = bytes;
        *out_size = size;
        return true;
    }
    free(bytes);
    return entries == 0 || !description ||
           exif_create(NULL, comment, most_bytes, out, out_size, err);
}
