#include "pictures/jpeg/jpeg_encode.h"

#include "pictures/jpeg/jpeg_failure.h"

#include <stdlib.h>
#include <string.h>

#define EXIF_MARKER (JPEG_APP0 + 1)

struct job {
    struct jpeg_compress_struct jpeg;
    struct jpeg_failure failure;
    unsigned char *bytes;
    unsigned long size;
    uint8_t *marker; /* "Exif", two zeros, the data */
    size_t marker_size;
};

/* Contains all calls from which libjpeg may jump out. No local variable is used across the jump. */
static bool compress(struct job *job, const uint8_t *rgb, int width, int height, int quality) {
    struct jpeg_compress_struct *jpeg = &job->jpeg;
    if (setjmp(job->failure.jump))
        return false;
    jpeg_create_compress(jpeg);
    jpeg_mem_dest(jpeg, &job->bytes, &job->size);
    jpeg->image_width = (JDIMENSION)width;
    jpeg->image_height = (JDIMENSION)height;
    jpeg->input_components = 3;
    jpeg->in_color_space = JCS_RGB;
    jpeg_set_defaults(jpeg);
    jpeg_set_quality(jpeg, quality, TRUE);
    jpeg->optimize_coding = TRUE;
    jpeg_start_compress(jpeg, TRUE);
    if (job->marker)
        jpeg_write_marker(jpeg, EXIF_MARKER, job->marker, (unsigned)job->marker_size);
    while (jpeg->next_scanline < jpeg->image_height) {
        /* libjpeg only reads it. */
        JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)jpeg->next_scanline * (size_t)width * 3);
        jpeg_write_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_compress(jpeg);
    return true;
}

static bool copy_exif(struct job *job, const uint8_t *exif, size_t size) {
    static const uint8_t begin[6] = { 'E', 'x', 'i', 'f', 0, 0 };
    if (size == 0)
        return true;
    job->marker_size = sizeof(begin) + size;
    job->marker = malloc(job->marker_size);
    if (!job->marker)
        return false;
    memcpy(job->marker, begin, sizeof(begin));
    memcpy(job->marker + sizeof(begin), exif, size);
    return true;
}

bool jpeg_encode(const uint8_t *rgb, int width, int height, int quality, const uint8_t *exif,
    size_t exif_size, uint8_t **out, size_t *out_size, struct error *err) {
    if (width < 1 || height < 1 || width > JPEG_MAX_DIMENSION || height > JPEG_MAX_DIMENSION ||
        exif_size > JPEG_EXIF_MAX_BYTES)
        return error_set(err, ERROR_INVALID, "a JPEG of %dx%d px and %zu bytes of texts", width,
            height, exif_size);
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return error_set(err, ERROR_NO_MEMORY, "no memory to write a JPEG");
    job->jpeg.err = jpeg_failure_init(&job->failure);
    const bool ok = copy_exif(job, exif, exif_size) && compress(job, rgb, width, height, quality);
    jpeg_destroy_compress(&job->jpeg);
    if (ok) {
        *out = job->bytes;
        *out_size = job->size;
    } else {
        free(job->bytes);
        error_set(err, ERROR_NO_MEMORY, "no memory to write a JPEG (%s)", job->failure.message);
    }
    free(job->marker);
    free(job);
    return ok;
}
