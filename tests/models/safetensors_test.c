/* The reader, tested with a file from the safetensors library and with every kind of malformed file
 * that has broken a reader of this format. */
#include "models/checkpoint/pickle.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char folder[] = "/tmp/latentd-test-XXXXXX";

static const char *scratch(const char *name) {
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Writes the header length `claimed`, the header, and `data_bytes` zeros. */
static const char *make_raw(uint64_t claimed, const char *header, size_t size, size_t data_bytes) {
    const char *path = scratch("made.safetensors");
    FILE *f = fopen(path, "wb");
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)(claimed >> (8 * i));
    fwrite(prefix, 1, sizeof(prefix), f);
    fwrite(header, 1, size, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc(0, f);
    fclose(f);
    return path;
}

static void expect_error(const char *path, const char *words) {
    struct safetensors *file = NULL;
    struct error err = { 0 };
    CHECK(!safetensors_open(path, &file, &err), "opened instead of refused with: %s", words);
    CHECK_CONTAINS(err.message, words);
    if (!file)
        CHECK_CONTAINS(err.message, path);
    safetensors_close(file);
}

static void expect_header_error(const char *header, size_t data_bytes, const char *words) {
    expect_error(make_raw(strlen(header), header, strlen(header), data_bytes), words);
}

static void reads_what_the_library_wrote(const char *path) {
    static const float values[6] = { 0.0f, 1.0f, -2.5f, 65504.0f, 1e-3f, -0.125f };
    static const uint16_t f16[6] = { 0x0000, 0x3c00, 0xc100, 0x7bff, 0x1419, 0xb000 };
    static const uint16_t bf16[6] = { 0x0000, 0x3f80, 0xc020, 0x4780, 0x3a83, 0xbe00 };
    static const int64_t i64[3] = { 49406, -1, 1ll << 40 };
    struct safetensors *file = NULL;
    struct error err = { 0 };
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    if (!file)
        return;
    const struct safetensors_header *header = safetensors_get_header(file);
    CHECK(header->count == 6, "%zu", header->count);
    CHECK_STRING(json_string_value(json_object_get(header->metadata, "format")), "pt");
    static const struct {
        const char *name;
        enum dtype dtype;
        int rank;
        int64_t shape[4];
        const void *bytes;
        size_t size;
    } expected[] = {
        { "f32", DTYPE_F32, 2, { 2, 3 }, values, sizeof(values) },
        { "f16", DTYPE_F16, 2, { 2, 3 }, f16, sizeof(f16) },
        { "bf16", DTYPE_BF16, 4, { 1, 3, 2, 1 }, bf16, sizeof(bf16) },
        { "i64", DTYPE_I64, 2, { 1, 3 }, i64, sizeof(i64) },
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        ptrdiff_t at = safetensors_find(file, expected[i].name);
        struct tensor t;
        CHECK(at >= 0, "%s", expected[i].name);
        if (at < 0 || !safetensors_view(file, (size_t)at, &t, &err))
            continue;
        CHECK(t.dtype == expected[i].dtype && t.rank == expected[i].rank, "%s: dtype %d, rank %d",
            expected[i].name, (int)t.dtype, t.rank);
        CHECK(memcmp(t.shape, expected[i].shape, sizeof(int64_t) * (size_t)t.rank) == 0, "%s",
            expected[i].name);
        CHECK(memcmp(t.data, expected[i].bytes, expected[i].size) == 0, "%s: values differ",
            expected[i].name);
    }
    ptrdiff_t scalar = safetensors_find(file, "scalar");
    struct tensor t;
    CHECK(scalar >= 0 && header->entries[scalar].rank == 0,
        "the scalar's rank in the header is not 0");
    CHECK(safetensors_view(file, (size_t)scalar, &t, &err) && t.rank == 1 && t.shape[0] == 1 &&
              *(const float *)t.data == 4.0f,
        "the scalar's tensor does not have the shape [1]");
    CHECK(safetensors_find(file, "none") < 0, "a tensor that does not exist is found");
    safetensors_close(file);
}

static bool same_files(const char *a, const char *b) {
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    bool same = x && y;
    for (int c = 0; same && c != EOF;) {
        c = fgetc(x);
        same = c == fgetc(y);
    }
    if (x)
        fclose(x);
    if (y)
        fclose(y);
    return same;
}

static void writes_what_the_library_writes(const char *sample) {
    struct safetensors *file = NULL;
    struct error err = { 0 };
    if (!safetensors_open(sample, &file, &err))
        return;
    const struct safetensors_header *header = safetensors_get_header(file);
    struct safetensors_item items[6];
    for (size_t i = 0; i < 6; i++) {
        items[5 - i].name = header->entries[i].name;
        CHECK(safetensors_view(file, i, &items[5 - i].tensor, &err), "%s", err.message);
        items[5 - i].tensor.rank = header->entries[i].rank;
    }
    char copy[256];
    snprintf(copy, sizeof(copy), "%s", scratch("copy.safetensors"));
    CHECK(safetensors_write(copy, items, 6, header->metadata, &err), "%s", err.message);
    CHECK(same_files(sample, copy),
        "our file differs from the one that the safetensors library wrote");
    items[1].name = items[0].name;
    CHECK(!safetensors_write(copy, items, 6, NULL, &err), "a file with one name twice is written");
    CHECK_CONTAINS(err.message, "is there twice");
    CHECK(!safetensors_write("/nowhere/x.safetensors", items, 1, NULL, &err),
        "a file is written into a folder that does not exist");
    CHECK_CONTAINS(err.message, "cannot write /nowhere/x.safetensors");
    const double sum = 1;
    const struct safetensors_item f64 = { "sum", tensor_1d((void *)&sum, DTYPE_F64, 1) };
    CHECK(!safetensors_write(copy, &f64, 1, NULL, &err), "f64 is written, which nothing reads");
    CHECK_CONTAINS(err.message, "tensor sum: f64 cannot be written");
    CHECK(same_files(sample, copy), "a failed write must leave the old file");
    safetensors_close(file);
}

/* A header of odd length makes the data misaligned; so does an odd number of F16 before an F32. */
static void misaligned_data_is_read(void) {
    const char *header = "{\"h\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},"
                         "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}";
    const char *path = make_raw(strlen(header), header, strlen(header), 10);
    FILE *f = fopen(path, "r+b");
    const float wanted[2] = { 1.25f, -3.0f };
    fseek(f, -8, SEEK_END);
    fwrite(wanted, sizeof(float), 2, f);
    fclose(f);
    struct safetensors *file = NULL;
    struct error err = { 0 };
    struct tensor t = { 0 }, again = { 0 };
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    if (!file)
        return;
    size_t at = (size_t)safetensors_find(file, "f");
    CHECK(safetensors_view(file, at, &t, &err), "%s", err.message);
    CHECK((uintptr_t)t.data % 4 == 0, "%p", t.data);
    CHECK(memcmp(t.data, wanted, sizeof(wanted)) == 0, "%g", (double)*(float *)t.data);
    CHECK(safetensors_view(file, at, &again, &err) && again.data == t.data,
        "a second view of the tensor made a second copy");
    safetensors_close(file);
}

/* A file opened by descriptor can be read after its name was removed. */
static void an_open_file_needs_no_name(void) {
    const char *header = "{\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    const char *path = make_raw(strlen(header), header, strlen(header), 8);
    struct safetensors *file = NULL;
    struct error err = { 0 };
    const int fd = open(path, O_RDONLY);
    unlink(path);
    CHECK(safetensors_open_fd(fd, "the upload", &file, &err), "%s", err.message);
    CHECK(file && safetensors_find(file, "f") == 0, "the open file's tensor is not found");
    safetensors_close(file);
    CHECK(fcntl(fd, F_GETFD) == -1, "the file's descriptor is still open");
    const int directory = open(folder, O_RDONLY);
    CHECK(!safetensors_open_fd(directory, "the upload", &file, &err), "a folder");
    CHECK_STRING(err.message, "the upload is not a regular file");
    CHECK(fcntl(directory, F_GETFD) == -1, "the descriptor is still open after a failure");
}

static void broken_frames_are_refused(void) {
    expect_error(scratch("absent"), "cannot open");
    const char *path = scratch("short");
    FILE *f = fopen(path, "wb");
    fwrite("1234567", 1, 7, f);
    fclose(f);
    expect_error(path, "the file has 7 bytes; a safetensors file has at least 8");
    expect_error(make_raw(3, "{}", 2, 0), "the header claims 3 bytes, but the file has only 10");
    expect_error(make_raw(UINT64_MAX, "{}", 2, 0), "the header claims 18446744073709551615 bytes");
    expect_error(make_raw(UINT64_MAX - 7, "{}", 2, 0), "bytes, but the file has only");
    expect_error(make_raw((16u << 20) + 1, "{}", 2, 17u << 20), "at most 16777216 are read");
    expect_error(make_raw(0, "", 0, 0), "not valid JSON");
    expect_header_error("{", 0, "header: not valid JSON");
    expect_header_error("[]", 0, "the header is not a JSON object");
    expect_header_error("{}x", 0, "not valid JSON");
    expect_header_error("{\"\xff\":1}", 0, "not valid JSON");
    expect_header_error("{}", 4, "the tensors end at byte 0 of the data, but the file holds 4");
    char deep[100];
    memset(deep, '[', 99);
    deep[99] = 0;
    expect_header_error(deep, 0, "nested deeper than 16 levels");
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void broken_entries_are_refused(void) {
    static const struct {
        const char *header, *words;
    } cases[] = {
        { "{\"t\":1}", "tensor t: its description is not an object" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}",
            "unknown key \"x\"" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "duplicate object key" },
        { ENTRY("\"F8\"", "[1]", "[0,4]"), "dtype \"F8\" is not known; F64, F32, F16" },
        { ENTRY("\"f32\"", "[1]", "[0,4]"), "dtype \"f32\" is not known" },
        { ENTRY("7", "[1]", "[0,4]"), "dtype 7 is not known" },
        { "{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "dtype (missing) is not known" },
        { ENTRY("\"F32\"", "1", "[0,4]"), "shape 1 is not a list" },
        { "{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "shape (missing)" },
        { ENTRY("\"F32\"", "[1,1,1,1,1]", "[0,4]"), "5 dimensions; at most 4" },
        { ENTRY("\"F32\"", "[1.0]", "[0,4]"), "dimension 0 is 1.0; an integer from 1" },
        { ENTRY("\"F32\"", "[\"1\"]", "[0,4]"), "dimension 0 is \"1\"" },
        { ENTRY("\"F32\"", "[-1]", "[0,4]"), "dimension 0 is -1" },
        { ENTRY("\"F32\"", "[1,0]", "[0,0]"), "dimension 1 is 0" },
        { ENTRY("\"F32\"", "[2147483648]", "[0,4]"), "dimension 0 is 2147483648" },
        { ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,0]"), "dimension 0 is 4294967296" },
        { ENTRY("\"F32\"", "[99999999999999999999]", "[0,4]"), "not valid JSON" },
        { ENTRY("\"F32\"", "[1e400]", "[0,4]"), "not valid JSON" },
        { ENTRY("\"F32\"", "[2147483647,2147483647,2147483647]", "[0,4]"), "overflows" },
        { ENTRY("\"F32\"", "[1073741824,1073741824,4]", "[0,0]"), "its size in bytes overflows" },
        { ENTRY("\"F64\"", "[65536,65536,65536,32768]", "[0,0]"), "bytes overflows" },
        { ENTRY("\"F32\"", "[1]", "[0]"), "data_offsets [0] are not two integers" },
        { ENTRY("\"F32\"", "[1]", "[0,4,8]"), "are not two integers" },
        { ENTRY("\"F32\"", "[1]", "[0,4.0]"), "are not two integers" },
        { ENTRY("\"F32\"", "[1]", "[-4,0]"), "are not two integers from 0 on" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets (missing)" },
        { ENTRY("\"F32\"", "[1]", "[4,0]"), "lie outside of the file's 4 bytes" },
        { ENTRY("\"F32\"", "[2]", "[0,8]"), "lie outside of the file's 4 bytes" },
        { ENTRY("\"F32\"", "[2]", "[0,4]"), "need 8 bytes, its data_offsets [0,4] hold 4" },
        { ENTRY("\"F16\"", "[1]", "[0,4]"), "dtype F16 need 2 bytes" },
        { ENTRY("\"F16\"", "[1]", "[2,4]"), "there is a hole" },
        { ENTRY("\"F16\"", "[1]", "[0,2]"), "end at byte 2 of the data, but the file holds 4" },
        { "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]}}",
            "tensor b begins at byte 2 of the data, but a ends at 4: they overlap" },
        { "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "name has 0 bytes" },
        { "{\"t\xc3\xa9\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "the byte 0xc3 at position 1; names are printable ASCII" },
        { "{\"t\\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "the byte 0x0a" },
        { "{\"t\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "not valid JSON" },
        { "{\"__metadata__\":[]}", "__metadata__ is not an object" },
        { "{\"__metadata__\":{\"a\":1}}", "the value of \"a\" is not a string" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_header_error(cases[i].header, 4, cases[i].words);
}

static void limits_are_enforced(void) {
    size_t capacity = 1u << 20, at = 0;
    char *header = malloc(capacity);
    at += (size_t)snprintf(header, capacity, "{");
    for (int i = 0; i <= SAFETENSORS_MAX_TENSORS; i++)
        at += (size_t)snprintf(header + at, capacity - at,
            "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "", i,
            i, i + 1);
    snprintf(header + at, capacity - at, "}");
    expect_header_error(
        header, SAFETENSORS_MAX_TENSORS + 1, "8193 tensors; at most 8192 are supported");
    char name[SAFETENSORS_MAX_NAME_BYTES + 2];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    snprintf(
        header, capacity, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
    expect_header_error(header, 1, "a tensor's name has 257 bytes; 1 to 256 are allowed");
    free(header);
}

static void other_dtypes_are_listed_but_not_used(void) {
    const char *header = ENTRY("\"F64\"", "[]", "[0,8]");
    struct safetensors *file = NULL;
    struct error err = { 0 };
    struct tensor t;
    CHECK(safetensors_open(make_raw(strlen(header), header, strlen(header), 8), &file, &err), "%s",
        err.message);
    CHECK(file && !safetensors_view(file, 0, &t, &err), "an F64 tensor can be viewed");
    CHECK_CONTAINS(err.message, "tensor t: its dtype is F64; F32, F16, BF16, I32 and I64");
    safetensors_close(file);
}

/* Files of torch.save are recognized by their first bytes, and no other file is. */
static void pickles_are_refused_by_content(void) {
    static const struct {
        const char *bytes;
        size_t size;
        bool is_pickle;
    } files[] = {
        { "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15, true },
        { "\x80\x04N.", 4, true },
        { "PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl", 46,
            true },
        { "PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0a\0\0\0photo.jpeg", 40, false },
        { "\x80\x02\0\0\0\0\0\0{\"a\"", 12, false }, /* the length of a 640-byte header */
        { "version https://git-lfs.github.com/spec/v1", 42, false },
    };
    const char *path = scratch("made.safetensors");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        FILE *f = fopen(path, "wb");
        fwrite(files[i].bytes, 1, files[i].size, f);
        fclose(f);
        struct safetensors *file = NULL;
        struct error err = { 0 };
        CHECK(!safetensors_open(path, &file, &err), "file %zu", i);
        CHECK((strstr(err.message, "is a pickle") != NULL) == files[i].is_pickle, "file %zu: %s", i,
            err.message);
        CHECK(pickle_is_file(path) == files[i].is_pickle, "file %zu", i);
    }
    printf("%zu first bytes told apart\n", sizeof(files) / sizeof(files[0]));
}

/* If a path leads to something other than a file, the message says what it is. */
static void other_paths_are_named(void) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path = scratch("other");
    CHECK(symlink("nowhere/at-all", path) == 0, "%s", path);
    expect_error(path, "is a link to nowhere/at-all, which is not there");
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0, "%s", path);
    expect_error(path, "is a pipe, where a safetensors file is needed");
    unlink(path);
    memccpy(address.sun_path, path, 0, sizeof(address.sun_path) - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "%s", path);
    expect_error(path, "is a socket, where a safetensors file is needed");
    close(fd);
    unlink(path);
    expect_error("/dev/null", "is a device, where a safetensors file is needed");
    expect_error(folder, "is a folder, where a safetensors file is needed");
    expect_error(scratch("absent"), "No such file or directory");
}

/* Replaces the first `word` of the text by the same word with its first letter as an escape. */
static void write_escaped(char *out, size_t size, const char *text, const char *word) {
    const char *at = strstr(text, word);
    snprintf(out, size, "%.*s\\u%04x%s", (int)(at - text), text, (unsigned)*at, at + 1);
}

/* The scanner reads headers in their usual form, the JSON parser all others, as those with an
 * escape. Both must find the same. */
static void the_scanner_and_the_json_parser_agree(void) {
    static const struct {
        const char *text;
        bool valid, scanned;
    } rows[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}  ", true, true },
        { " { \"a\" :\n{\"data_offsets\": [ 0 , 2 ],\t\"shape\" : [ ] , \"dtype\": \"F16\" } } ",
            true, true },
        { "{\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[4,6]},\"__metadata__\":{\"x\":"
          "\"\\u00e9 } \\\" "
          "{\",\"y\":\"\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":["
          "0,4]}}",
            true, true },
        { "{\"__metadata__\":{},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
            true, true },
        { "{\"a\\u0062\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", true, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},}", false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", false,
            false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\","
          "\"shape\":[1],\"data_offsets\":[1,2]}}",
            false, false },
        { "{\"__metadata__\":{\"x\":1},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]"
          "}}",
            false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}} x", false, false },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", false, false },
    };
    static const size_t bytes[] = { 24, 2, 6, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct safetensors_header plain, escaped;
        struct error err = { 0 };
        char text[512];
        write_escaped(text, sizeof(text), rows[i].text, "dtype");
        const bool ok = safetensors_header_parse(
            rows[i].text, strlen(rows[i].text), bytes[i], &plain, &err);
        const bool ok_too = safetensors_header_parse(text, strlen(text), bytes[i], &escaped, &err);
        CHECK(ok == rows[i].valid && ok_too == ok, "row %zu: accepted: %d, and with an escape: %d",
            i, ok, ok_too);
        CHECK(!plain.names == !rows[i].scanned && !escaped.names,
            "row %zu: not read by the expected one of scanner and JSON parser", i);
        CHECK(plain.count == escaped.count,
            "row %zu: scanner and JSON parser found %zu and %zu tensors", i, plain.count,
            escaped.count);
        for (size_t k = 0; k < plain.count && k < escaped.count; k++) {
            struct safetensors_entry *a = &plain.entries[k], *b = &escaped.entries[k];
            CHECK_STRING(a->name, b->name);
            CHECK(a->dtype == b->dtype && a->rank == b->rank && a->elements == b->elements &&
                      a->begin == b->begin && a->end == b->end &&
                      memcmp(a->shape, b->shape, sizeof(a->shape)) == 0,
                "row %zu: %s", i, a->name);
        }
        CHECK(!plain.metadata == !escaped.metadata &&
                  (!plain.metadata || json_equal(plain.metadata, escaped.metadata)),
            "row %zu: scanner and JSON parser read different metadata", i);
        safetensors_header_finish(&plain);
        safetensors_header_finish(&escaped);
    }
    printf("%zu headers are the same to the scanner and the JSON parser\n",
        sizeof(rows) / sizeof(rows[0]));
}

int main(int argc, char **argv) {
    if (argc != 2 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: %s SAMPLE.safetensors\n", argv[0]);
        return 2;
    }
    reads_what_the_library_wrote(argv[1]);
    writes_what_the_library_writes(argv[1]);
    misaligned_data_is_read();
    an_open_file_needs_no_name();
    broken_frames_are_refused();
    broken_entries_are_refused();
    limits_are_enforced();
    other_dtypes_are_listed_but_not_used();
    pickles_are_refused_by_content();
    the_scanner_and_the_json_parser_agree();
    other_paths_are_named();
    unlink(scratch("short"));
    unlink(scratch("copy.safetensors"));
    unlink(scratch("made.safetensors"));
    CHECK(rmdir(folder) == 0, "files were left in %s", folder);
    return check_done();
}
