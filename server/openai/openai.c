#include "server/openai/openai.h"

#include "server/http/query.h"

bool openai_query_none(const char *target, struct error *err) {
    struct query_field fields[] = { { OPENAI_API_VERSION } };
    return query_parse(target, fields, 1, err);
}
