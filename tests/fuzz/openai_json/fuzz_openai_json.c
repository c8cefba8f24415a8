/* Arbitrary JSON bodies of POST /v1/images/generations and /v1/images/edits. Parsing ends in an
 * order within its ranges or in an error in OpenAI's form. */
#include "server/openai/image_order.h"
#include "server/openai/openai.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_refusal(const struct error *err) {
    if (err->code == ERROR_NONE || !err->message[0])
        abort(); /* a refusal must give a reason */
    int status = error_http_status(err->code);
    json_t *body = dialect_openai.error_json(err, error_code_name(err->code), &status);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (!text || json_object_size(json_object_get(body, "error")) != 4)
        abort();
    free(text);
    json_decref(body);
}

static void check_route(const uint8_t *data, size_t size, enum image_route route) {
    const struct openai_models models = { "tiny-sd", NULL };
    struct image_order order;
    struct error err = { 0 };
    if (!image_order_from_json((const char *)data, size, route, &models, &order, &err)) {
        check_refusal(&err);
        return;
    }
    const struct generate_request *r = &order.request;
    if (!generate_request_check(r, &err) || r->prompt_count != 1 || r->num_images > 10 ||
        order.partial_images > 3 || (order.stream && r->num_images != 1) ||
        (r->format == PICTURE_PNG) != (r->quality == 0) ||
        (route == IMAGE_EDIT) != (r->init_image.bytes != NULL))
        abort();
    image_order_finish(&order);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_route(data, size, IMAGE_GENERATION);
    check_route(data, size, IMAGE_EDIT);
    return 0;
}
