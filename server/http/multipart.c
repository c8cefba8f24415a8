#include "server/http/multipart.h"

#include "base/limits.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define READER_BYTES 65536 /* must hold a line of a part's head */
/* The post processor moves its whole buffer for every line of a part's head, and for every dash
 * before the first part. To limit that work, it gets at most PIECE_BYTES at a time. A body is
 * refused if more than HEAD_BYTES + PIECE_BYTES in a row contain no bytes of a part. */
#define PIECE_BYTES 16384
#define HEAD_BYTES 65536

struct multipart {
    struct MHD_PostProcessor *reader;
    struct multipart_receiver receiver;
    struct error error; /* set when the body is refused */
    int parts;
    size_t quiet_bytes;                      /* received since the last bytes of a part */
    char name[MULTIPART_NAME_MAX_BYTES + 1]; /* name of the last part */
    bool is_file, is_empty;
};

static bool begin(
    struct multipart *m, const char *name, const char *file_name, const char *encoding) {
    struct error *err = &m->error;
    char shown[64];
    if (!name || !name[0] || strlen(name) > MULTIPART_NAME_MAX_BYTES) {
        snprintf(shown, sizeof(shown), "%.60s", name ? name : "");
        return error_field(err, "body", shown,
            "form-data whose parts have names of at most %d bytes", MULTIPART_NAME_MAX_BYTES);
    }
    if (++m->parts > MULTIPART_PARTS_MAX)
        return error_field(
            err, "body", "more parts", "form-data of at most %d", MULTIPART_PARTS_MAX);
    if (encoding && strcasecmp(encoding, "binary") != 0 && strcasecmp(encoding, "8bit") != 0 &&
        strcasecmp(encoding, "7bit") != 0) {
        snprintf(shown, sizeof(shown), "%.60s", encoding);
        return error_field(err, "Content-Transfer-Encoding", shown, "parts as they are");
    }
    snprintf(m->name, sizeof(m->name), "%s", name);
    m->is_file = file_name;
    return m->receiver.begin(m->receiver.user, name, file_name, err);
}

/* Receives a piece of a part. The first piece may be empty; the second piece then also has offset
 * 0. */
static enum MHD_Result take(void *user, enum MHD_ValueKind kind, const char *name,
    const char *file_name, const char *type, const char *encoding, const char *bytes,
    uint64_t offset, size_t size) {
    struct multipart *m = user;
    (void)kind;
    (void)type;
    m->quiet_bytes = 0;
    const bool goes_on = offset > 0 || (m->is_empty && name && strcmp(name, m->name) == 0 &&
                                           m->is_file == (file_name != NULL));
    if (!goes_on && !begin(m, name, file_name, encoding))
        return MHD_NO;
    m->is_empty = offset == 0 && size == 0;
    return size == 0 || m->receiver.write(m->receiver.user, bytes, size, &m->error) ? MHD_YES
                                                                                    : MHD_NO;
}

bool multipart_create(struct MHD_Connection *http, const struct multipart_receiver *receiver,
    struct multipart **out, struct error *err) {
    struct multipart *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a form");
    m->receiver = *receiver;
    m->reader = MHD_create_post_processor(http, READER_BYTES, take, m);
    if (m->reader) {
        *out = m;
        return true;
    }
    free(m);
    return error_set(err, ERROR_NO_MEMORY, "no memory for a form");
}

/* Returns the receiver's error if there is one, else ERROR_INVALID with `why`. */
static bool refuse(const struct multipart *m, const char *why, struct error *err) {
    if (m->error.code == ERROR_NONE)
        return error_set(err, ERROR_INVALID, "the body is not multipart/form-data: %s", why);
    if (err)
        *err = m->error;
    return false;
}

static bool write_piece(struct multipart *m, const char *bytes, size_t size, struct error *err) {
    m->quiet_bytes += size;
    if (MHD_post_process(m->reader, bytes, size) != MHD_YES)
        return refuse(m, "its boundaries or the heads of its parts are broken", err);
    if (m->quiet_bytes <= HEAD_BYTES + PIECE_BYTES)
        return true;
    char why[64];
    snprintf(why, sizeof(why), "there is no part in %d bytes", HEAD_BYTES);
    return refuse(m, why, err);
}

bool multipart_write(
    struct multipart *multipart, const void *bytes, size_t size, struct error *err) {
    for (size_t at = 0; at < size; at += PIECE_BYTES) {
        const size_t piece = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;
        if (!write_piece(multipart, (const char *)bytes + at, piece, err))
            return false;
    }
    return true;
}

bool multipart_end(struct multipart *multipart, struct error *err) {
    bool ok = MHD_destroy_post_processor(multipart->reader) == MHD_YES;
    if (!ok)
        refuse(multipart, "its last boundary is missing", err);
    else if (multipart->parts == 0) /* the post processor does not check */
        ok = refuse(multipart, "there is no part in it", err);
    free(multipart);
    return ok;
}

void multipart_abort(struct multipart *multipart) {
    if (!multipart)
        return;
    MHD_destroy_post_processor(multipart->reader);
    free(multipart);
}
