/* Which of two media types a client wants, by its Accept header (RFC 9110, section 12.5.1). */
#ifndef SERVER_HTTP_ACCEPT_H
#define SERVER_HTTP_ACCEPT_H

/* The quality of "type/subtype" in an Accept header, 0 (not accepted) to 1000. NULL or empty: 1000.
 * The most specific range that matches decides; a malformed quality is 0. */
int accept_quality(const char *header, const char *media_type);

#endif
