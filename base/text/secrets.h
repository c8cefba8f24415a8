/* Hides API keys in text before it is logged. A client may put its key where none belongs: into the
 * query, the path, its request id, or a field whose wrong value is reported. */
#ifndef BASE_TEXT_SECRETS_H
#define BASE_TEXT_SECRETS_H

#define KEY_PREFIX "latentd_" /* of keys made by `latentd key`; hexadecimal digits follow */

/* Replaces two things by a *: what follows KEY_PREFIX (in any case, its _ plain or as %5f) if that
 * is 8 hexadecimal digits or more; and the values of query names that usually hold keys, such as
 * ?key=, &api_key= and &token=. The text never grows. Any thread. */
void secrets_mask(char *text);

#endif
