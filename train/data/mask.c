#include "train/data/mask.h"

#include "train/data/python_random.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int between(struct mt19937 *mt, int low, int high) {
    return low + python_random_below(mt, high - low + 1);
}

struct mask_shape mask_draw(struct mt19937 *mt, int width, int height) {
    const int half_width = between(mt, 0, width) / 2;
    const int half_height = between(mt, 0, height) / 2;
    const int x = between(mt, half_width, width - half_width);
    const int y = between(mt, half_height, height - half_height);
    return (struct mask_shape){ x - half_width, y - half_height, x + half_width, y + half_height,
        between(mt, 0, 1) == 1 };
}

static void fill_line(int left, int right, int y, int width, int height, float *mask) {
    if (y < 0 || y >= height)
        return;
    for (int x = left < 0 ? 0 : left; x <= right && x < width; x++)
        mask[(size_t)y * (size_t)width + (size_t)x] = 1;
}

/* Returns how far (x, y) is from fulfilling b^2 x^2 + a^2 y^2 = a^2 b^2. */
static int64_t off_curve(int64_t a, int64_t b, int64_t x, int64_t y) {
    return llabs(b * b * x * x + a * a * y * y - a * a * b * b);
}

/* Fills an ellipse of width a and height b. Bresenham's walk follows a quarter of the outline, from
 * the right end upwards, in half pixels: x and y are relative to the centre, in steps of 2. A row
 * is filled when the walk enters it, because it is widest there. */
static void fill_ellipse(const struct mask_shape *s, int width, int height, float *mask) {
    const int a = s->right - s->left, b = s->bottom - s->top;
    const int last_x = a % 2, last_y = b;
    int x = a, y = b % 2;
    for (bool enters = true;;) {
        if (enters) {
            fill_line(s->left + (a - x) / 2, s->left + (a + x) / 2, s->top + (b + y) / 2, width,
                height, mask);
            fill_line(s->left + (a - x) / 2, s->left + (a + x) / 2, s->top + (b - y) / 2, width,
                height, mask);
        }
        if (x == last_x && y == last_y)
            return;
        int next_x = x, next_y = y + 2;
        if (x > 1) {
            int64_t off = off_curve(a, b, x, y + 2);
            if (off_curve(a, b, x - 2, y + 2) < off) {
                next_x = x - 2;
                off = off_curve(a, b, x - 2, y + 2);
            }
            if (off_curve(a, b, x - 2, y) < off) {
                next_x = x - 2;
                next_y = y;
            }
        }
        enters = next_y != y;
        x = next_x;
        y = next_y;
    }
}

void mask_fill(const struct mask_shape *shape, int width, int height, float *mask) {
    memset(mask, 0, (size_t)width * (size_t)height * sizeof(*mask));
    if (shape->is_ellipse)
        fill_ellipse(shape, width, height, mask);
    else
        for (int y = shape->top; y <= shape->bottom; y++)
            fill_line(shape->left, shape->right, y, width, height, mask);
}
