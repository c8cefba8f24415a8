/* Reads Accept headers (RFC 9110, section 12.5.1) to choose between media types. */
#ifndef SERVER_HTTP_ACCEPT_H
#define SERVER_HTTP_ACCEPT_H

/* Returns the quality of "type/subtype" in an Accept header, from 0 (not accepted) to 1000. Returns
 * 1000 if the header is NULL or empty. The most specific matching range decides; a malformed
 * quality counts as 0. */
int accept_quality(const char *header, const char *media_type);

#endif
