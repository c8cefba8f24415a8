/* Keeps libpng's message when libpng jumps out of a call. Only this folder includes this header. */
#ifndef PICTURES_PNG_MESSAGE_H
#define PICTURES_PNG_MESSAGE_H

#include "base/error.h"

#include <png.h>

/* The error pointer of a png struct that is created with png_on_error and png_on_warning. */
struct png_message {
    char text[160];
};
void png_on_error(png_structp png, png_const_charp text) __attribute__((noreturn));
void png_on_warning(png_structp png, png_const_charp text);

/* Sets an error from `what` and the message. The code is ERROR_NO_MEMORY if the message mentions
 * memory, else ERROR_INVALID. Returns false. */
bool png_message_set(const struct png_message *message, const char *what, struct error *err);

#endif
