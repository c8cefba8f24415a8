/* Arbitrary bodies of POST /hf. Parsing ends in a request within its ranges or in an error with a
 * reason. */
#include "server/dialect/huggingface.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct generate_request request = { 0 };
    struct error err = { 0 };
    bool has_picture;
    generate_request_init(&request);
    if (huggingface_parse((const char *)data, size, &request, &has_picture, &err))
        promise(generate_request_check(&request, &err) && request.prompt_count == 1 &&
                !request.format_given && !request.latent_output);
    else
        promise(err.code != ERROR_NONE && err.message[0]);
    generate_request_finish(&request);
    return 0;
}
