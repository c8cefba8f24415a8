#include "server/http/guard/guard_head.h"

#include "base/limits.h"

#include <string.h>

#define VERSION_BYTES 8 /* the length of "HTTP/1.1" */

static void refuse(struct guard_head *head, int status, const char *code, const char *message) {
    if (!head->verdict.status)
        head->verdict = (struct guard_verdict){ status, code, message };
}

/* Skips a line end. The library has replaced its CR LF by exactly two NULs. */
static void take_line_end(struct guard_head *head) {
    if (head->verdict.status)
        return;
    if (head->end - head->at < 2 || head->at[0] || head->at[1])
        refuse(head, 400, "invalid_request",
            "a line of the head holds a NUL or does not end with CR and LF");
    else
        head->at += 2;
}

/* Returns whether the text is a token (RFC 9110, section 5.6.2). */
static bool is_token(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && (!c || !strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return length > 0;
}

void guard_head_begin(struct guard_head *head, const char *method, size_t size, const char *target,
    size_t target_length, const char *version) {
    *head = (struct guard_head){ .at = method, .end = method + size, .by_bytes = true };
    if (size > HTTP_HEAD_MAX_BYTES) {
        const bool long_target = target && target_length > HTTP_HEAD_MAX_BYTES / 2;
        refuse(head, long_target ? 414 : 431, "too_large",
            "the head of the request is larger than this server takes");
        return;
    }
    /* There must be one space after the method and one after the target. */
    const bool is_line = target && is_token(method, strlen(method)) &&
                         target == method + strlen(method) + 1 &&
                         version == target + target_length + 1 && strlen(version) == VERSION_BYTES;
    if (!is_line) {
        refuse(head, 400, "invalid_request",
            "the request line is not a method, a target and a version with one space between "
            "them");
        return;
    }
    head->at = version + VERSION_BYTES;
    take_line_end(head);
}

void guard_head_begin_pieces(struct guard_head *head) {
    *head = (struct guard_head){ 0 };
}

static bool is_value(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* Skips "name:", spaces, "value" and the line end. */
static void take_line(struct guard_head *head, const char *name, size_t name_length,
    const char *value, size_t value_length) {
    const char *const folded = "a header goes on in a second line, or a line holds a NUL";
    const char *colon = name + name_length;
    if (name != head->at || head->end - name <= (ptrdiff_t)name_length || *colon) {
        refuse(head, 400, "invalid_request", folded);
        return;
    }
    const char *p = colon + 1;
    while (p < head->end && (*p == ' ' || *p == '\t'))
        p++;
    if (value != p || head->end - p < (ptrdiff_t)value_length) {
        refuse(head, 400, "invalid_request", folded);
        return;
    }
    head->at = value + value_length;
    take_line_end(head);
}

void guard_head_add(struct guard_head *head, const char *name, size_t name_length,
    const char *value, size_t value_length) {
    if (head->verdict.status)
        return;
    if (!is_token(name, name_length))
        refuse(head, 400, "invalid_request",
            "the name of a header is letters, digits and a few signs, right before its colon");
    else if (!is_value(value, value_length))
        refuse(head, 400, "invalid_request", "the value of a header holds a control character");
    else if (head->by_bytes)
        take_line(head, name, name_length, value, value_length);
}

struct guard_verdict guard_head_end(struct guard_head *head) {
    if (head->by_bytes)
        take_line_end(head);
    if (head->by_bytes && head->at != head->end)
        refuse(head, 400, "invalid_request", "the head of the request does not end with its lines");
    return head->verdict;
}
