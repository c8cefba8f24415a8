/* The pictures of a JSON body, as OpenAI's EditImageBodyJsonParam has them: "images" is a list of
 * {"image_url"} or {"file_id"}, "mask" is one of these. */
#include "server/openai/image_order.h"

#include "base/text/json.h"
#include "server/generation/generate_json.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <string.h>

static const char no_files[] = "image_url: the files of this daemon are data sets";
static const char data_url[] =
    "a data URL as data:image/png;base64,...; the daemon fetches nothing "
    "from elsewhere";

static bool check_members(const char *name, const json_t *value, struct error *err) {
    const char *key;
    json_t *member;
    char param[64];
    json_object_foreach((json_t *)value, key, member) {
        if (strcmp(key, "image_url") == 0 || json_is_null(member))
            continue;
        snprintf(param, sizeof(param), "%s.%.40s", name, key);
        return json_bad_field(
            param, member, strcmp(key, "file_id") == 0 ? no_files : OPENAI_NO_SUCH_FIELD, err);
    }
    return true;
}

static bool parse_reference(
    const char *name, const json_t *value, struct picture_file *out, struct error *err) {
    const json_t *url = json_object_get(value, "image_url");
    const char *text = json_string_value(url);
    char param[64];
    if (!json_is_object(value))
        return json_bad_field(name, value, "{\"image_url\": DATA URL}", err);
    if (!check_members(name, value, err))
        return false;
    snprintf(param, sizeof(param), "%s.image_url", name);
    if (!url || json_is_null(url))
        return error_field(err, param, "", "it is required: %s", data_url);
    if (!text || strncmp(text, "data:", 5) != 0)
        return json_bad_field(param, url, data_url, err);
    return generate_json_parse_picture(param, url, out, err);
}

bool image_order_parse_images(const json_t *value, struct image_order *order, struct error *err) {
    if (!json_is_array(value) || json_array_size(value) != 1)
        return json_bad_field("images", value,
            "a list of one {\"image_url\": DATA URL}; a form has image instead", err);
    return parse_reference("images[0]", json_array_get(value, 0), &order->request.init_image, err);
}

bool image_order_parse_mask(const json_t *value, struct image_order *order, struct error *err) {
    return parse_reference("mask", value, &order->request.mask_image, err);
}
