/* Upscales a picture of noise. The expected bytes are those of Pillow 13, called in the order of
 * AUTOMATIC1111's modules/upscaler.py and scripts/postprocessing_upscale.py. */
#include "server/sdapi/upscale.h"

#include "base/sha256.h"
#include "pictures/resize.h"
#include "tests/check.h"

#include <stdlib.h>

#define NONE SDAPI_UPSCALER_NONE
#define LANCZOS SDAPI_UPSCALER_LANCZOS
#define NEAREST SDAPI_UPSCALER_NEAREST

static struct picture noise;

static void make_noise(void) {
    struct error err = { 0 };
    uint32_t state = 1;
    CHECK(picture_create(61, 47, 3, &noise, &err), "%s", err.message);
    for (int i = 0; i < 61 * 47 * 3; i++)
        noise.pixels[i] = (uint8_t)((state = 1664525u * state + 1013904223u) >> 24);
}

static void check_picture(const struct picture *picture, int width, int height, const char *want) {
    char text[DIGEST_TEXT_BYTES];
    const char *got = text;
    const struct digest digest = sha256_of(
        picture->pixels, 3 * (size_t)picture->width * (size_t)picture->height);
    digest_to_text(&digest, text);
    CHECK(picture->width == width && picture->height == height, "%dx%d", picture->width,
        picture->height);
    CHECK_STRING(got, want);
}

static void pictures_match_pillow(void) {
    static const struct {
        struct sdapi_upscale upscale;
        int width, height;
        const char *digest, *text;
    } rows[] = {
        { { .factor = 2, .upscaler = LANCZOS }, 120, 88,
            "8d34e474e7d809e336046f08654969c4c1d4fe08ae4235238fc607ada30e5f95",
            "Postprocess upscale by: 2.0, Postprocess upscaler: Lanczos" },
        { { .factor = 2, .upscaler = NEAREST }, 120, 88,
            "cf2d7ec4ccd12d618078c905af1f7ca96feb03b794de371ed3d5b996788ffa5c",
            "Postprocess upscale by: 2.0, Postprocess upscaler: Nearest" },
        { { .factor = 1.7, .upscaler = NEAREST }, 96, 72,
            "71f9b45b3a3be2b084e885654c24e4505193c1d8305536995e423be1f31c84d2", NULL },
        { { .factor = 0.5, .upscaler = LANCZOS }, 24, 16,
            "40aa81d0bc7009664d70484d740c9fc3f57e568213a32332d4c0ecf15a954997", NULL },
        { { .factor = 3, .upscaler = LANCZOS, .second = NEAREST, .visibility = 0.3 }, 176, 136,
            "6418a7641156bf43d6c41556a2ff9fae4397b6a04f130dc40b4f983ddfed83bf",
            "Postprocess upscale by: 3.0, Postprocess upscaler: Lanczos, Postprocess upscaler 2: "
            "Nearest" },
        { { .to_size = true, .width = 100, .height = 100, .crop = true, .upscaler = LANCZOS }, 100,
            100, "cfb689bc08e54623e7689d85057710c1955481949ea8d26ae690d0768256c599",
            "Postprocess upscale to: 100x100, Postprocess crop to: 100x100, Postprocess upscaler: "
            "Lanczos" },
        { { .to_size = true, .width = 200, .height = 64, .upscaler = NEAREST }, 200, 152,
            "27105c4c6f91e970fb7b85a4b455c5c200121e24f70672f5a03222dbb1e6725c", NULL },
        { { .to_size = true,
              .width = 129,
              .height = 77,
              .crop = true,
              .upscaler = LANCZOS,
              .second = NEAREST,
              .visibility = 1 },
            129, 77, "dca91063c5ac7be3144c60f3e7502e24a7401109ec085e4f66e686c67cbe2f4a", NULL },
        { { .factor = 2, .second = NEAREST, .visibility = 1 }, 61, 47, NULL, "" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct picture out = { 0 };
        struct error err = { 0 };
        if (!sdapi_upscale_picture(&rows[i].upscale, &noise, &out, &err)) {
            CHECK(false, "row %zu: %s", i, err.message);
            continue;
        }
        if (rows[i].digest)
            check_picture(&out, rows[i].width, rows[i].height, rows[i].digest);
        else
            CHECK(memcmp(out.pixels, noise.pixels, 3 * 61 * 47) == 0,
                "the upscaler None changes the picture");
        char *text = sdapi_upscale_text(&rows[i].upscale);
        if (rows[i].text)
            CHECK_STRING(text, rows[i].text);
        free(text);
        picture_finish(&out);
    }
    printf("%zu pictures have the bytes that Pillow makes\n", sizeof(rows) / sizeof(rows[0]));
}

static void nearest_matches_pillow(void) {
    static const struct {
        int width, height;
        const char *digest;
    } rows[] = {
        { 122, 94, "fe4af29672ef5c88f6164346755dda3e58c097a1dd2a626445cf3c516f497595" },
        { 30, 20, "8210fd170fc5ca87d941eb804842cbb98ce2c5f513f58a7dd9731d94fda2076c" },
        { 100, 47, "de8c9fe1231594ede2632bc63f883338a177e4ea934867798ece1753d2aa072f" },
    };
    for (int i = 0; i < 3; i++) {
        struct picture out = { 0 };
        struct error err = { 0 };
        CHECK(picture_resize_nearest(&noise, rows[i].width, rows[i].height, &out, &err), "%s",
            err.message);
        check_picture(&out, rows[i].width, rows[i].height, rows[i].digest);
        picture_finish(&out);
    }
}

/* AUTOMATIC1111's resize mode 2, and diffusers' "fill". At 64x64, 15 lines have to be filled in (an
 * odd number), at 80x81 they are 20 (an even number). */
static void fill_matches_pillow(void) {
    static const struct {
        int width, height;
        const char *digest;
    } rows[] = {
        { 64, 96, "23037955508a747aee70d364c13c6b288872502341741a4d49bbb8cc1f96c231" },
        { 128, 64, "2db4139256f1b14c997366bdd5cba2e8a9e7a02ed2bb5f870e948a2a6a91606e" },
        { 96, 72, "76df665eb862a74d466a4f9ffdd19d15e58b873198f8fa74e7f06b80f0292e66" },
        { 122, 94, "ffb3676843382f0a2776b1fcf9349ecf9e920e99922c54d972191459c48580c7" },
        { 64, 64, "d51448c3149cd7a455329085a519503e69a5b4f659391f8b35a5e2a826858027" },
        { 80, 81, "430c2da4f3bd474b7443374988f80031d0e634473a59319e93d4e3275424fc2f" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct picture out = { 0 };
        struct error err = { 0 };
        CHECK(picture_resize_to_fill(&noise, rows[i].width, rows[i].height, &out, &err), "%s",
            err.message);
        check_picture(&out, rows[i].width, rows[i].height, rows[i].digest);
        picture_finish(&out);
    }
    struct picture thin = { 0 }, out = { 0 };
    struct error err = { 0 };
    CHECK(picture_create(400, 1, 1, &thin, &err) &&
              picture_resize_to_fill(&thin, 64, 64, &out, &err) && out.height == 64,
        "a picture that would shrink to less than a pixel of height is not resized and filled");
    picture_finish(&thin);
    picture_finish(&out);
    printf(
        "%zu filled pictures have the bytes that Pillow makes\n", sizeof(rows) / sizeof(rows[0]));
}

static void sizes_have_limits(void) {
    static const struct sdapi_upscale wrong[] = {
        { .factor = 0.1, .upscaler = LANCZOS }, /* 6x4 */
        { .factor = 68, .upscaler = NEAREST },  /* 4148 px wide */
        { .factor = 1e300, .upscaler = LANCZOS },
        { .to_size = true, .width = 8, .height = 4096, .upscaler = LANCZOS }, /* 5316 px wide */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct picture out = { 0 };
        struct error err = { 0 };
        CHECK(!sdapi_upscale_picture(&wrong[i], &noise, &out, &err) && err.code == ERROR_INVALID,
            "row %zu is accepted", i);
        const char *param = err.param;
        CHECK_STRING(param, wrong[i].to_size ? "upscaling_resize_w" : "upscaling_resize");
    }
}

int main(void) {
    make_noise();
    pictures_match_pillow();
    nearest_matches_pillow();
    fill_matches_pillow();
    sizes_have_limits();
    picture_finish(&noise);
    return check_done();
}
