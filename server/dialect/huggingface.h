/* Parses the body of POST /hf into a request. */
#ifndef SERVER_DIALECT_HUGGINGFACE_H
#define SERVER_DIALECT_HUGGINGFACE_H

#include "engine/request/request.h"

#include <stddef.h>

/* Parses `length` bytes of JSON into *request, which the caller has initialised and finishes in
 * either case. Every field is checked, ranges included (generate_request_check). Sets *has_picture
 * if the inputs are init_image. */
bool huggingface_parse(const char *text, size_t length, struct generate_request *request,
    bool *has_picture, struct error *err) __attribute__((warn_unused_result));

#endif
