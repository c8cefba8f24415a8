/* Handles libjpeg's errors. By default libjpeg prints them and ends the process. */
#ifndef PICTURES_JPEG_JPEG_FAILURE_H
#define PICTURES_JPEG_JPEG_FAILURE_H

#include "base/error.h"

/* jpeglib.h needs FILE. */
#include <stdio.h>

#include <jpeglib.h>
#include <setjmp.h>

struct jpeg_failure {
    struct jpeg_error_mgr base; /* must be first: libjpeg's object points to it */
    jmp_buf jump;               /* set it before calling libjpeg: errors jump to it */
    bool is_of_memory;
    char message[JMSG_LENGTH_MAX]; /* of the error; "": no error yet */
};

/* Returns the value for the member `err` of libjpeg's object. Nothing is printed. Warnings (damaged
 * pixels, which libjpeg guesses) are ignored as in Pillow, except that a file which ends before its
 * picture is an error. */
struct jpeg_error_mgr *jpeg_failure_init(struct jpeg_failure *failure);

#endif
