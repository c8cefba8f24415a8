/* Recognises pickles, which torch.save writes. Reading a pickle can run code, so latentd reads
 * none. They are recognised by their first bytes, because .bin, .ckpt, .pt and .pth are also the
 * endings of other files. */
#ifndef MODELS_CHECKPOINT_PICKLE_H
#define MODELS_CHECKPOINT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a file of `size` bytes that begins with `bytes` is a pickle. The first 512 bytes are
 * enough. */
bool pickle_begins(const void *bytes, size_t size);
/* Whether the file is a pickle. Also false if it does not exist or cannot be read. */
bool pickle_is_file(const char *path);

#endif
