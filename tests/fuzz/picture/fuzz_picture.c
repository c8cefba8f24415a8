/* Arbitrary picture files of a data set. Each is refused with a reason, or gives a picture of the
 * size that its header states. A second read gives the same result. Large pictures are skipped
 * because they only take time. */
#include "pictures/picture.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define MOST_PIXELS (1 << 18)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct picture_info info;
    struct picture first, second;
    struct error err = { 0 };
    if (!picture_examine(data, size, &info, &err)) {
        promise(err.code != ERROR_NONE && err.message[0]);
        promise(!picture_decode(data, size, &first, &err) && !first.pixels);
        return 0;
    }
    promise(info.width > 0 && info.height > 0 && info.orientation >= 1 && info.orientation <= 8);
    if ((int64_t)info.width * info.height > MOST_PIXELS)
        return 0;
    const bool ok = picture_decode(data, size, &first, &err);
    promise(ok == picture_decode(data, size, &second, &err));
    if (ok) {
        const size_t bytes = (size_t)info.width * (size_t)info.height * 3;
        promise(first.width == info.width && first.height == info.height);
        promise(memcmp(first.pixels, second.pixels, bytes) == 0);
    } else {
        promise(err.message[0] && !first.pixels && !second.pixels);
    }
    picture_finish(&first);
    picture_finish(&second);
    return 0;
}
