/* Recognises pickles, which torch.save writes. Reading a pickle can run code, so latentd never
 * reads one. Pickles are recognised by their first bytes, because other files may also end in .bin,
 * .ckpt, .pt or .pth. */
#ifndef MODELS_CHECKPOINT_PICKLE_H
#define MODELS_CHECKPOINT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether a file is a pickle, judged by its first `size` bytes. The first 512 bytes
 * are sufficient. */
bool pickle_begins(const void *bytes, size_t size);
/* Returns whether the file is a pickle. Returns false also if it does not exist or cannot be
 * read. */
bool pickle_is_file(const char *path);

#endif
