/* Unpacks arbitrary archives of data sets, each into its own folder. A refusal gives a reason.
 * Whether an archive is accepted or refused, only files and folders are created, inside that folder
 * and within the size limit. */
#include "base/error.h"
#include "tests/fuzz/fuzz.h"
#include "train/data/archive.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES ((uint64_t)1 << 20)

static uint64_t bytes_found;
static int outside;

static int look_at(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    promise(S_ISDIR(st->st_mode) || (S_ISREG(st->st_mode) && st->st_nlink == 1));
    outside += ftw->level == 1;
    bytes_found += kind == FTW_F ? (uint64_t)st->st_size : 0;
    promise(remove(path) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char around[] = "/tmp/fuzz-archive-XXXXXX";
    struct error err = { 0 };
    const int archive = memfd_create("archive", MFD_CLOEXEC);
    if (archive < 0 || write(archive, data, size) != (ssize_t)size ||
        lseek(archive, 0, SEEK_SET) != 0 || !mkdtemp(around))
        abort();
    const int parent = open(around, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (mkdirat(parent, "inside", 0777) != 0)
        abort();
    const int folder = openat(parent, "inside", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = archive_extract(archive, folder, MOST_BYTES, (struct cancel){ 0 }, &err);
    promise(ok || (err.code != ERROR_NONE && err.message[0]));
    close(folder);
    close(parent);
    close(archive);
    bytes_found = 0;
    outside = -1; /* so that "inside" itself is not counted */
    promise(nftw(around, look_at, 16, FTW_PHYS | FTW_DEPTH) == 0);
    promise(outside == 0 && bytes_found <= MOST_BYTES);
    return 0;
}
