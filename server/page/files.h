/* The files of the web page (share/web), which the build writes into the program (scripts/embed).
 */
#ifndef SERVER_PAGE_FILES_H
#define SERVER_PAGE_FILES_H

#include <stddef.h>

struct page_file {
    const char *name, *media_type;
    const char *tag; /* its entity tag, with its quotes: of its bytes, and of nothing else */
    size_t size;
    const char *bytes;
};

/* Ends with a NULL name. */
extern const struct page_file page_files[];

#endif
