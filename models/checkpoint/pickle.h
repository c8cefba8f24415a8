/* Recognises what torch.save writes: pickles, which can run code when they are read, so that none
 * is read here. Told by their first bytes: .bin, .ckpt, .pt and .pth are the names of other things
 * too.
 */
#ifndef MODELS_CHECKPOINT_PICKLE_H
#define MODELS_CHECKPOINT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a file of `size` bytes that begins with these is one. The first 512 tell. */
bool pickle_begins(const void *bytes, size_t size);
/* False as well if there is no such file or it cannot be read. */
bool pickle_is_file(const char *path);

#endif
