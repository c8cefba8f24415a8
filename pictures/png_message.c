#include "pictures/png_message.h"

#include <string.h>

void png_on_error(png_structp png, png_const_charp text) {
    struct png_message *message = png_get_error_ptr(png);
    snprintf(message->text, sizeof(message->text), "%s", text);
    png_longjmp(png, 1);
}

void png_on_warning(png_structp png, png_const_charp text) {
    (void)png;
    (void)text;
}

bool png_message_set(const struct png_message *message, const char *what, struct error *err) {
    const bool memory = strstr(message->text, "memory");
    return error_set(err, memory ? ERROR_NO_MEMORY : ERROR_INVALID, "%s: %s", what, message->text);
}
