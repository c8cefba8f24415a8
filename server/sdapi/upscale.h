/* AUTOMATIC1111's upscaling of a picture (its page "Extras"), with the upscalers that need no
 * model. Sizes and rounding are those of its modules/upscaler.py and
 * scripts/postprocessing_upscale.py: every upscaler makes sides of a multiple of 8, rounded
 * down. */
#ifndef SERVER_SDAPI_UPSCALE_H
#define SERVER_SDAPI_UPSCALE_H

#include "pictures/picture.h"

/* SDAPI_UPSCALER_NONE leaves the picture as it is. */
enum sdapi_upscaler { SDAPI_UPSCALER_NONE, SDAPI_UPSCALER_LANCZOS, SDAPI_UPSCALER_NEAREST };
#define SDAPI_UPSCALERS 3
extern const char *const sdapi_upscaler_names[SDAPI_UPSCALERS];

struct sdapi_upscale {
    bool to_size;      /* to width x height, else by the factor */
    double factor;     /* above 0 */
    int width, height; /* px, at least 1: the picture becomes so large that it covers them */
    bool crop;         /* with to_size: the middle of it, on black where it is smaller */
    enum sdapi_upscaler upscaler, second; /* the second is drawn over the first */
    double visibility;                    /* of the second, 0 to 1 */
};

/* Computes the size of the upscaled picture. ERROR_INVALID names the field if a side would be 0 or
 * above INIT_IMAGE_MAX_PX. */
bool sdapi_upscale_size(const struct sdapi_upscale *upscale, const struct picture *in, int *width,
    int *height, struct error *err) __attribute__((warn_unused_result));

/* Returns the pixels that an upscaler makes of the picture before it is cropped, or of the cropped
 * picture if that has more. */
int64_t sdapi_upscale_pixels(const struct sdapi_upscale *upscale, const struct picture *in);

/* Upscales an RGB picture. *out is a new picture. */
bool sdapi_upscale_picture(const struct sdapi_upscale *upscale, const struct picture *in,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

/* Returns what was done, as AUTOMATIC1111 says it: "Postprocess upscale by: 2.0, Postprocess
 * upscaler: Lanczos". malloc'd; NULL if there is no memory. */
char *sdapi_upscale_text(const struct sdapi_upscale *upscale);

#endif
