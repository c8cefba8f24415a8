#include "pictures/jpeg/jpeg_failure.h"

#include <jerror.h>

static void on_error(j_common_ptr jpeg) {
    struct jpeg_failure *failure = (struct jpeg_failure *)jpeg->err;
    /* libjpeg reports this when it needs more than max_memory_to_use, because it has no temporary
     * files here. */
    failure->is_of_memory = jpeg->err->msg_code == JERR_OUT_OF_MEMORY ||
                            jpeg->err->msg_code == JERR_NO_BACKING_STORE;
    jpeg->err->format_message(jpeg, failure->message);
    longjmp(failure->jump, 1);
}

static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF)
        on_error(jpeg);
}

struct jpeg_error_mgr *jpeg_failure_init(struct jpeg_failure *failure) {
    jpeg_std_error(&failure->base);
    failure->base.error_exit = on_error;
    failure->base.emit_message = on_message;
    failure->is_of_memory = false;
    failure->message[0] = 0;
    return &failure->base;
}
