/* API keys in text that is about to be written down. A client may put its key where none belongs:
 * into the query, the path, an id of its own, a field whose wrong value is told. */
#ifndef BASE_SECRETS_H
#define BASE_SECRETS_H

#define KEY_PREFIX "latentd_" /* of the keys that `latentd key` makes; hexadecimal digits follow   \
                               */

/* Puts a * in the place of what follows KEY_PREFIX (in any case, its _ spelt out or as %5f) if that
 * is 8 hexadecimal digits or more, and of the values of the names in a query that others put keys
 * into: ?key=, &api_key=, &token= and their like. The text never grows. Any thread. */
void secrets_mask(char *text);

#endif
