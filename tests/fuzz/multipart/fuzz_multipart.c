/* Arbitrary forms for POST /v1/images/edits or /variations. The first byte selects the route, the
 * second the size of the pieces in which the rest is read; the boundary is "bb". Reading ends in an
 * order or an error, and the result does not depend on the pieces. */
#include "server/openai/image_order.h"
#include "tests/fuzz/fuzz.h"
#define FORM_TYPE "multipart/form-data; boundary=bb"
#include "tests/server/openai/form.h"

#include <stdlib.h>
#include <string.h>

static bool read_form(const uint8_t *data, size_t size, size_t piece,
    struct image_form_reader *reader, struct error *err) {
    const struct multipart_receiver receiver = { image_form_begin, image_form_write, reader };
    return form_read(data, size, piece, &receiver, err) && image_form_end(reader, err);
}

/* Returns a line that describes the result; malloc'd. */
static char *outcome(const uint8_t *data, size_t size, size_t piece, enum image_route route) {
    struct image_form form = { 0 };
    struct image_form_reader reader = { .route = route, .form = &form };
    const struct openai_models models = { "tiny-sd", NULL };
    struct image_order order;
    struct error err = { 0 };
    char *line;
    if (read_form(data, size, piece, &reader, &err) &&
        image_order_from_form(&form, route, &models, &order, &err)) {
        if (!generate_request_check(&order.request, &err) || !order.request.init_image.bytes)
            abort();
        if (asprintf(&line, "%zu %zu %dx%d %s", order.request.init_image.size,
                order.request.mask_image.size, order.request.width, order.request.height,
                order.request.prompts[0]) < 0)
            abort();
        image_order_finish(&order);
    } else {
        if (err.code == ERROR_NONE || !err.message[0])
            abort(); /* a refusal must give a reason */
        line = strdup("refused");
    }
    image_form_reader_finish(&reader);
    image_form_finish(&form);
    return line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    const enum image_route route = data[0] % 2 ? IMAGE_VARIATION : IMAGE_EDIT;
    const size_t piece = data[1] % 64 + 1;
    char *whole = outcome(data + 2, size - 2, size, route);
    char *pieces = outcome(data + 2, size - 2, piece, route);
    if (strcmp(whole, pieces) != 0)
        abort();
    free(whole);
    free(pieces);
    return 0;
}
