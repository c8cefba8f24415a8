/* Arbitrary bodies of AUTOMATIC1111's txt2img and img2img; the first byte selects the route. Each
 * ends in a request within its ranges or in an error with a reason. */
#include "base/text/json.h"
#include "server/sdapi/request.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sdapi_settings settings;
    struct sdapi_request request;
    struct error err = { 0 };
    if (size == 0)
        return 0;
    const enum sdapi_kind kind = data[0] & 1 ? SDAPI_IMG2IMG : SDAPI_TXT2IMG;
    sdapi_settings_init(&settings);
    if (!sdapi_request_parse(
            kind, (const char *)data + 1, size - 1, &settings, NULL, &request, &err)) {
        promise(err.code != ERROR_NONE && err.message[0]);
        promise(!err.param[0] || err.allowed[0]);
        return 0;
    }
    const struct generate_request *g = &request.generate;
    promise(generate_request_check(g, &err));
    promise(g->prompt_count == 1 && g->num_images == request.batch_size * request.n_iter);
    promise(g->scheduler.has_kind && request.sampling.sampler && request.sampling.schedule);
    promise((g->init_image.bytes != NULL) == (kind == SDAPI_IMG2IMG));
    promise(!request.inpainting.mask.bytes || kind == SDAPI_IMG2IMG);
    char *text = json_dumps(request.parameters, 0);
    promise(text != NULL);
    free(text);
    sdapi_request_finish(&request);
    return 0;
}
