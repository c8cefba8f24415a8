#include "base/text/words.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *words_list(char *out, size_t size, const char *const *words, size_t count,
    const char *quote, const char *conjunction) {
    static const char more[] = ", ...";
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < count; i++) {
        bool last = i == count - 1;
        char word[80];
        snprintf(word, sizeof(word), "%s%s%s%s",
            i == 0 ? ""
            : last ? conjunction
                   : ", ",
            quote, words[i], quote);
        if (used + strlen(word) + (last ? 1 : sizeof(more)) > size) {
            snprintf(out + used, size - used, "%s", more);
            break;
        }
        used += (size_t)snprintf(out + used, size - used, "%s", word);
    }
    return out;
}
