/* Handles libjpeg's errors. libjpeg's default prints them and ends the process. */
#ifndef PICTURES_JPEG_JPEG_FAILURE_H
#define PICTURES_JPEG_JPEG_FAILURE_H

#include "base/error.h"

/* jpeglib.h wants FILE. */
#include <stdio.h>

#include <jpeglib.h>
#include <setjmp.h>

struct jpeg_failure {
    struct jpeg_error_mgr base; /* the first member: libjpeg's object points at it */
    jmp_buf jump;               /* set before libjpeg is called; an error jumps there */
    bool is_of_memory;
    char message[JMSG_LENGTH_MAX]; /* of the error; empty before there is one */
};

/* Returns the value for the member `err` of libjpeg's object. Nothing is printed. Warnings (damaged
 * pixels, which libjpeg guesses) are ignored, as in Pillow, but a file that ends before its picture
 * does is an error. */
struct jpeg_error_mgr *jpeg_failure_init(struct jpeg_failure *failure);

#endif
