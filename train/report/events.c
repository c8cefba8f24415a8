#include "train/report/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct events {
    int fd;
    off_t end; /* after the last complete record */
    char path[4096];
};

/* --- records --- */

/* CRC-32C (Castagnoli): reflected, polynomial 0x1edc6f41. */
static uint32_t crc32c(const unsigned char *bytes, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(uint32_t crc) {
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_u32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static bool write_all(struct events *e, const unsigned char *bytes, size_t size) {
    while (size) {
        const ssize_t wrote = write(e->fd, bytes, size);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        bytes += wrote;
        size -= (size_t)wrote;
    }
    return true;
}

static bool write_record(
    struct events *e, const unsigned char *bytes, size_t size, struct error *err) {
    unsigned char head[12], tail[4];
    put_u32(head, (uint32_t)size);
    put_u32(head + 4, (uint32_t)((uint64_t)size >> 32));
    put_u32(head + 8, masked(crc32c(head, 8)));
    put_u32(tail, masked(crc32c(bytes, size)));
    if (write_all(e, head, sizeof(head)) && write_all(e, bytes, size) &&
        write_all(e, tail, sizeof(tail))) {
        e->end += (off_t)(sizeof(head) + size + sizeof(tail));
        return true;
    }
    error_set(err, error_code_of_write(errno), "%s: %s", e->path, strerror(errno));
    /* Removes a half-written record. If that fails too, readers stop in front of it. */
    if (ftruncate(e->fd, e->end) == 0)
        (void)lseek(e->fd, e->end, SEEK_SET);
    return false;
}

/* --- protobuf's wire format, in a growing buffer --- */

struct wire {
    unsigned char *bytes; /* owned */
    size_t size, capacity;
    bool failed; /* memory ran out */
};

static void wire_bytes(struct wire *w, const void *bytes, size_t size) {
    if (w->failed)
        return;
    if (size > w->capacity - w->size) {
        const size_t capacity = 2 * (w->size + size) + 64;
        unsigned char *grown = realloc(w->bytes, capacity);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->bytes = grown;
        w->capacity = capacity;
    }
    memcpy(w->bytes + w->size, bytes, size);
    w->size += size;
}

static void wire_varint(struct wire *w, uint64_t value) {
    do {
        const unsigned char byte = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        wire_bytes(w, &byte, 1);
        value >>= 7;
    } while (value);
}

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_LENGTH = 2, WIRE_32 = 5 };

static void wire_key(struct wire *w, unsigned field, enum wire_type type) {
    wire_varint(w, field << 3 | type);
}

static void wire_integer(struct wire *w, unsigned field, uint64_t value) {
    wire_key(w, field, WIRE_VARINT);
    wire_varint(w, value);
}

static void wire_text(struct wire *w, unsigned field, const void *bytes, size_t size) {
    wire_key(w, field, WIRE_LENGTH);
    wire_varint(w, size);
    wire_bytes(w, bytes, size);
}

static void wire_message(struct wire *w, unsigned field, const struct wire *message) {
    w->failed |= message->failed;
    wire_text(w, field, message->bytes, message->size);
}

/* --- tensorflow.Event --- */

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_IMAGE = 4 };
enum { IMAGE_HEIGHT = 1, IMAGE_WIDTH = 2, IMAGE_COLORSPACE = 3, IMAGE_BYTES = 4 };

static struct wire event(double wall_time_s, int64_t step) {
    struct wire w = { 0 };
    wire_key(&w, EVENT_WALL_TIME, WIRE_64);
    wire_bytes(&w, &wall_time_s, sizeof(wall_time_s)); /* a double; our hosts are little-endian */
    if (step)
        wire_integer(&w, EVENT_STEP, (uint64_t)step);
    return w;
}

/* Writes the event and frees its memory. */
static bool event_end(struct events *e, struct wire *w, struct error *err) {
    const bool ok = w->failed ? error_set(err, ERROR_NO_MEMORY, "no memory for an event")
                              : write_record(e, w->bytes, w->size, err);
    free(w->bytes);
    return ok;
}

bool events_add_scalars(struct events *events, double wall_time_s, int64_t step,
    const struct events_scalar *scalars, size_t count, struct error *err) {
    struct wire summary = { 0 };
    for (size_t i = 0; i < count; i++) {
        struct wire value = { 0 };
        wire_text(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        wire_key(&value, VALUE_SIMPLE, WIRE_32);
        wire_bytes(&value, &scalars[i].value, sizeof(float));
        wire_message(&summary, SUMMARY_VALUE, &value);
        free(value.bytes);
    }
    struct wire w = event(wall_time_s, step);
    wire_message(&w, EVENT_SUMMARY, &summary);
    free(summary.bytes);
    return event_end(events, &w, err);
}

bool events_add_picture(struct events *events, double wall_time_s, int64_t step,
    const struct events_picture *picture, struct error *err) {
    struct wire image = { 0 }, value = { 0 }, summary = { 0 };
    wire_integer(&image, IMAGE_HEIGHT, (uint64_t)picture->height);
    wire_integer(&image, IMAGE_WIDTH, (uint64_t)picture->width);
    wire_integer(&image, IMAGE_COLORSPACE, 3); /* RGB */
    wire_text(&image, IMAGE_BYTES, picture->png, picture->size);
    wire_text(&value, VALUE_TAG, picture->tag, strlen(picture->tag));
    wire_message(&value, VALUE_IMAGE, &image);
    wire_message(&summary, SUMMARY_VALUE, &value);
    struct wire w = event(wall_time_s, step);
    wire_message(&w, EVENT_SUMMARY, &summary);
    free(image.bytes);
    free(value.bytes);
    free(summary.bytes);
    return event_end(events, &w, err);
}

static bool begin_file(
    struct events *e, double wall_time_s, int64_t resumed_step, struct error *err) {
    static const char version[] = "brain.Event:2";
    struct wire w = event(wall_time_s, 0);
    wire_text(&w, EVENT_VERSION, version, sizeof(version) - 1);
    if (!event_end(e, &w, err))
        return false;
    if (!resumed_step)
        return true;
    /* A SessionLog with status START makes readers drop this step and later ones of earlier
     * files. */
    static const unsigned char start[] = { 1 << 3 | WIRE_VARINT, 1 };
    w = event(wall_time_s, resumed_step + 1);
    wire_text(&w, EVENT_LOG, start, sizeof(start));
    return event_end(e, &w, err);
}

/* Creates a file. Files of the same second are numbered from 0, because a job may pause and resume
 * within a second. */
static bool open_file(struct events *e, const char *folder, double wall_time_s, struct error *err) {
    for (int number = 0; e->fd < 0; number++) {
        const int length = snprintf(e->path, sizeof(e->path),
            "%s/events.out.tfevents.%.0f.latentd.%ld.%d", folder, wall_time_s, (long)getpid(),
            number);
        if (length < 0 || (size_t)length >= sizeof(e->path))
            return error_set(err, ERROR_INVALID, "%.200s...: the path is too long", folder);
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (e->fd < 0 && errno != EEXIST)
            return error_set(err, error_code_of_write(errno), "%s: %s", e->path, strerror(errno));
    }
    return true;
}

bool events_create(const char *folder, double wall_time_s, int64_t resumed_step,
    struct events **out, struct error *err) {
    *out = NULL;
    struct events *e = calloc(1, sizeof(*e));
    if (!e)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an event file");
    e->fd = -1;
    if (open_file(e, folder, wall_time_s, err) && begin_file(e, wall_time_s, resumed_step, err)) {
        *out = e;
        return true;
    }
    events_destroy(e);
    return false;
}

void events_destroy(struct events *events) {
    if (events && events->fd >= 0)
        close(events->fd);
    free(events);
}
