/* Hides API keys in text before it is logged. A client may put its key where none belongs: into the
 * query, the path, its request id, or a field whose wrong value is reported. */
#ifndef BASE_TEXT_SECRETS_H
#define BASE_TEXT_SECRETS_H

#define KEY_PREFIX "latentd_" /* of keys made by `latentd key`; hexadecimal digits follow */

/* Replaces two things by a *. The first is 8 or more hexadecimal digits after KEY_PREFIX; the
 * prefix may be in upper or lower case, and its _ may be written as %5f. The second is the value of
 * a query name that usually holds a key, such as ?key=, &api_key= or &token=. The text never grows.
 * Any thread. */
void secrets_mask(char *text);

#endif
