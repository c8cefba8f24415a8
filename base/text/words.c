#include "base/text/words.h"

#include "base/limits.h"

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

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool words_are_name(const char *text, size_t length) {
    if (length < 1 || length > ADAPTER_NAME_MAX_BYTES || !is_letter_or_digit(text[0]))
        return false;
    for (size_t i = 1; i < length; i++)
        if (!is_letter_or_digit(text[i]) && !memchr("._-", text[i], 3))
            return false;
    return true;
}

bool words_check_name(const char *param, const char *name, struct error *err) {
    return words_are_name(name, strlen(name)) ||
           error_field(err, param, name,
               "1 to %d letters, digits, '.', '_' and '-', the first a letter or digit",
               ADAPTER_NAME_MAX_BYTES);
}
