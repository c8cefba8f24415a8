#include "models/checkpoint/pickle.h"

#include "base/file.h"

#include <string.h>
#include <unistd.h>

#define BYTES_THAT_TELL 512

/* A file with a pickle is a zip archive whose first file is ARCHIVE/data.pkl (since torch 1.6), or
 * the pickle itself, which begins with PROTO 2 to 5. A safetensors file may begin with the same two
 * bytes, the length of its header, but zeros and a brace follow. */
bool pickle_begins(const void *bytes, size_t size) {
    static const char zip[] = "PK\3\4", member[] = "/data.pkl";
    const unsigned char *at = bytes;
    const size_t told = size < BYTES_THAT_TELL ? size : BYTES_THAT_TELL;
    if (told > 4 && memcmp(bytes, zip, 4) == 0)
        return memmem(bytes, told, member, strlen(member)) != NULL;
    if (told < 2 || at[0] != 0x80 || at[1] < 2 || at[1] > 5)
        return false;
    return told < 9 || at[8] != '{' || memcmp(at + 4, "\0\0\0\0", 4) != 0;
}

bool pickle_is_file(const char *path) {
    unsigned char bytes[BYTES_THAT_TELL];
    uint64_t size;
    const int fd = file_open_regular(path, &size, NULL);
    if (fd < 0)
        return false;
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    close(fd);
    return count > 0 && pickle_begins(bytes, (size_t)count);
}
