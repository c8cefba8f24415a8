/* The files of the web page (share/web), which the build writes into the program (scripts/embed).
 */
#ifndef SERVER_PAGE_FILES_H
#define SERVER_PAGE_FILES_H

#include <stddef.h>

struct page_file {
    const char *name, *media_type;
    const char *tag; /* the entity tag, quoted; depends only on the bytes */
    size_t size;
    const char *bytes;
};

/* The last entry has a NULL name. */
extern const struct page_file page_files[];

#endif
