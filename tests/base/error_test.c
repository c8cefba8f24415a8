#include "base/error.h"
#include "tests/check.h"

#include <errno.h>

static void field_errors_name_field_value_and_allowed(void) {
    struct error err = { 0 };
    CHECK(!error_field(&err, "width", "511", "a multiple of %d from %d to %d", 8, 64, 2048),
        "error_field returns true");
    CHECK_STRING(err.param, "width");
    CHECK_STRING(err.value, "511");
    CHECK_STRING(err.allowed, "a multiple of 8 from 64 to 2048");
    CHECK_STRING(err.message, "width: 511 is not allowed; a multiple of 8 from 64 to 2048");
    CHECK(error_http_status(err.code) == 400, "%d", error_http_status(err.code));
}

/* A text that would end inside a character is cut before that character. Lengths of 63 and 127
 * bytes fit whole. */
static void long_texts_are_cut_between_characters(void) {
    static const char *const characters[] = { "\xc3\xa9", "\xe7\x8c\xab", "\xf0\x9f\x90\x88" };
    for (size_t i = 0; i < 3; i++)
        for (size_t lead = 0; lead < 4; lead++) {
            struct error err = { 0 };
            char text[256] = "abc";
            size_t bytes = strlen(characters[i]);
            text[lead] = 0;
            while (strlen(text) < 200)
                strcat(text, characters[i]);
            error_field(&err, text, text, "less");
            CHECK(strlen(err.param) == lead + (63 - lead) / bytes * bytes, "%zu bytes of %zu",
                strlen(err.param), bytes);
            CHECK(strlen(err.value) == lead + (127 - lead) / bytes * bytes, "%zu bytes of %zu",
                strlen(err.value), bytes);
            CHECK(memcmp(err.value, text, strlen(err.value)) == 0,
                "the cut value is not the text's beginning");
        }
}

static void prefix_keeps_the_code_and_truncates_safely(void) {
    struct error err = { 0 };
    char huge[2000];
    memset(huge, 'x', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = 0;
    error_set(&err, ERROR_IO, "%s", huge);
    error_prefix(&err, "%s", huge);
    CHECK(strlen(err.message) < sizeof(err.message), "%zu", strlen(err.message));
    CHECK(err.code == ERROR_IO, "%d", err.code);
    error_set(&err, ERROR_NOT_FOUND, "no such file");
    error_prefix(&err, "unet");
    CHECK_STRING(err.message, "unet: no such file");
    CHECK(!error_set(NULL, ERROR_IO, "nobody cares"), "error_set with NULL returns true");
}

static void a_full_disk_has_a_code_of_its_own(void) {
    CHECK(error_code_of_write(ENOSPC) == ERROR_NO_SPACE &&
              error_code_of_write(EDQUOT) == ERROR_NO_SPACE &&
              error_code_of_write(EIO) == ERROR_IO && error_code_of_write(0) == ERROR_IO,
        "a failed write has another code than its errno stands for");
    CHECK_STRING(error_code_name(ERROR_NO_SPACE), "disk_full");
    CHECK(error_http_status(ERROR_NO_SPACE) == 507, "%d", error_http_status(ERROR_NO_SPACE));
}

int main(void) {
    field_errors_name_field_value_and_allowed();
    long_texts_are_cut_between_characters();
    prefix_keeps_the_code_and_truncates_safely();
    a_full_disk_has_a_code_of_its_own();
    return check_done();
}
