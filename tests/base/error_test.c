#include "base/error.h"
#include "tests/check.h"

static void field_errors_name_field_value_and_allowed(void) {
    struct error err = { 0 };
    CHECK(!error_field(&err, "width", "511", "a multiple of %d from %d to %d", 8, 64, 2048), "-");
    CHECK_STRING(err.param, "width");
    CHECK_STRING(err.value, "511");
    CHECK_STRING(err.allowed, "a multiple of 8 from 64 to 2048");
    CHECK_STRING(err.message, "width: 511 is not allowed; a multiple of 8 from 64 to 2048");
    CHECK(error_http_status(err.code) == 400, "%d", error_http_status(err.code));
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
    CHECK(!error_set(NULL, ERROR_IO, "nobody cares"), "NULL is fine");
}

int main(void) {
    field_errors_name_field_value_and_allowed();
    prefix_keeps_the_code_and_truncates_safely();
    return check_done();
}
