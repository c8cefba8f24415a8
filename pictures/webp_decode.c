/* Decodes WebP with libwebp, lossy and lossless, with its defaults, as Pillow does. An animation is
 * refused, because nothing says which of its pictures to use. */
#include "pictures/formats.h"

#include "pictures/jpeg/exif.h"

#include <string.h>
#include <webp/decode.h>

#define CHUNKS_AT 12 /* after "RIFF", size, "WEBP" */
#define CHUNK_BYTES 8
/* A lossless picture has a set of Huffman tables for each kind of block of 4x4 pixels or more. A
 * set takes up to this many bytes. There are at most as many sets as blocks, and at most 65,536. */
#define HUFFMAN_SET_BYTES ((size_t)21 << 10)
#define HUFFMAN_SETS_MAX ((size_t)1 << 16)

static bool refuse(VP8StatusCode status, struct error *err) {
    if (status == VP8_STATUS_OUT_OF_MEMORY)
        return error_set(err, ERROR_NO_MEMORY, "no memory to read a WebP");
    return error_set(err, ERROR_INVALID, "the WebP is %s",
        status == VP8_STATUS_NOT_ENOUGH_DATA ? "cut short" : "damaged");
}

const uint8_t *webp_find_exif(const uint8_t *file, size_t size, size_t *exif_size) {
    for (size_t at = CHUNKS_AT; at + CHUNK_BYTES <= size;) {
        const uint8_t *p = file + at + 4;
        const size_t length = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 |
                              (size_t)p[3] << 24;
        if (length > size - at - CHUNK_BYTES)
            return NULL;
        if (memcmp(file + at, "EXIF", 4) == 0) {
            *exif_size = length;
            return file + at + CHUNK_BYTES;
        }
        at += CHUNK_BYTES + length + length % 2;
    }
    return NULL;
}

/* Some writers put a JPEG's mark before the data. */
static int orientation_of(const uint8_t *file, size_t size) {
    static const char mark[6] = "Exif\0";
    size_t length = 0;
    const uint8_t *exif = webp_find_exif(file, size, &length);
    const size_t skipped = length > sizeof(mark) && memcmp(exif, mark, sizeof(mark)) == 0
                               ? sizeof(mark)
                               : 0;
    return exif ? exif_orientation(exif + skipped, length - skipped) : 1;
}

bool webp_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err) {
    WebPBitstreamFeatures features;
    const VP8StatusCode status = WebPGetFeatures(file, size, &features);
    if (status != VP8_STATUS_OK)
        return refuse(status, err);
    if (features.has_animation)
        return error_set(err, ERROR_INVALID, "this is an animated WebP; single pictures are read");
    if (features.width <= 0 || features.height <= 0)
        return refuse(VP8_STATUS_BITSTREAM_ERROR, err);
    out->width = features.width;
    out->height = features.height;
    out->orientation = orientation_of(file, size);
    /* Memory for: the picture and its turned copy; rows in all stages of decoding; and for a
     * lossless picture or alpha its samples of 32 bits, the images of its transforms, which are a
     * sixteenth in size or less, and its Huffman tables. */
    const size_t width = (size_t)out->width, height = (size_t)out->height, pixels = width * height;
    const size_t blocks = ((width + 3) / 4) * ((height + 3) / 4);
    const bool has_tables = features.format != 1 || features.has_alpha; /* 1: lossy */
    out->decode_bytes = pixels * 6 + width * 256 + (1 << 20);
    if (has_tables)
        out->decode_bytes += pixels * 6 + (blocks < HUFFMAN_SETS_MAX ? blocks : HUFFMAN_SETS_MAX) *
                                              HUFFMAN_SET_BYTES;
    return true;
}

bool webp_decode(const uint8_t *file, size_t size, struct picture *out, struct error *err) {
    WebPDecoderConfig config;
    const size_t row = (size_t)out->width * (size_t)out->channels;
    if (!WebPInitDecoderConfig(&config))
        return error_set(err, ERROR_INTERNAL, "libwebp is of another version");
    config.output.colorspace = out->channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out->pixels;
    config.output.u.RGBA.stride = (int)row;
    config.output.u.RGBA.size = row * (size_t)out->height;
    const VP8StatusCode status = WebPDecode(file, size, &config);
    const bool right = config.output.width == out->width && config.output.height == out->height;
    WebPFreeDecBuffer(&config.output);
    return (status == VP8_STATUS_OK && right) ||
           refuse(status == VP8_STATUS_OK ? VP8_STATUS_BITSTREAM_ERROR : status, err);
}
