#include "train/report/plot.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In px: the size of the whole picture, and the margins around the frame of the curve. */
enum { WIDTH = 800, HEIGHT = 400, LEFT = 70, RIGHT = 20, TOP = 40, BOTTOM = 45 };
#define COLUMNS (WIDTH - LEFT - RIGHT)

/* The points of the curve. With very many steps, each column of pixels shows the mean of its
 * steps. */
struct column {
    double loss, smooth;
    int losses;
};

struct scale {
    double first, last; /* steps */
    double low, high;   /* losses */
};

static double x_of(const struct scale *s, double step) {
    const double span = s->last - s->first;
    return LEFT + (span > 0 ? (step - s->first) / span : 0.5) * COLUMNS;
}

static double y_of(const struct scale *s, double loss) {
    return HEIGHT - BOTTOM - (loss - s->low) / (s->high - s->low) * (HEIGHT - TOP - BOTTOM);
}

/* Returns a tick distance of 1, 2 or 5 times a power of ten that divides `span` into four to ten
 * parts. */
static double tick_of(double span) {
    const double power = pow(10, floor(log10(span / 4)));
    const double share = span / 4 / power;
    return power * (share >= 5 ? 5 : share >= 2 ? 2 : 1);
}

static struct scale scale_of(const struct train_record *records, size_t count) {
    struct scale s = { .first = 0, .last = 1, .low = 0, .high = 1 };
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        const double values[] = { records[i].loss, records[i].validation_loss };
        for (int k = 0; k < 2; k++)
            if (isfinite(values[k])) {
                low = fmin(low, values[k]);
                high = fmax(high, values[k]);
            }
    }
    if (count) {
        s.first = (double)records[0].step;
        s.last = (double)records[count - 1].step;
    }
    if (low <= high) {
        const double margin = high > low ? 0.05 * (high - low) : fmax(1e-6, 0.5 * fabs(high));
        s.low = low >= 0 && low < margin ? 0 : low - margin;
        s.high = high + margin;
    }
    return s;
}

static void put_title(FILE *f, const char *title) {
    fprintf(f, "<text x='%d' y='24' font-size='15'>", LEFT);
    for (const unsigned char *p = (const unsigned char *)title; *p; p++)
        if (*p == '<' || *p == '>' || *p == '&' || *p == '\'' || *p == '"')
            fprintf(f, "&#%d;", *p);
        else if (*p >= ' ') /* XML forbids control characters */
            fputc(*p, f);
    fprintf(f, "</text>\n");
}

static void put_axes(FILE *f, const struct scale *s) {
    const double dy = tick_of(s->high - s->low);
    for (double y = ceil(s->low / dy) * dy; y <= s->high; y += dy)
        fprintf(f,
            "<path d='M%d %.1fH%d' stroke='#ddd'/><text x='%d' y='%.1f' "
            "text-anchor='end'>%.4g</text>\n",
            LEFT, y_of(s, y), WIDTH - RIGHT, LEFT - 8, y_of(s, y) + 4, fabs(y) < dy / 2 ? 0 : y);
    const double span = s->last - s->first, dx = fmax(1, tick_of(fmax(span, 1)));
    for (double x = ceil(s->first / dx) * dx; x <= s->last; x += dx)
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%.0f</text>\n", x_of(s, x),
            HEIGHT - BOTTOM + 18, x);
    fprintf(f,
        "<text x='%d' y='%d' text-anchor='middle'>step</text>\n"
        "<path d='M%d %dV%dH%d' fill='none' stroke='#444'/>\n",
        LEFT + COLUMNS / 2, HEIGHT - 8, LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT);
}

static void put_curve(FILE *f, const struct scale *s, const struct column *columns, bool smooth) {
    bool pen = false; /* columns without a finite loss are skipped: no gap */
    fprintf(f, "<path fill='none' stroke='%s' stroke-width='%s' d='",
        smooth ? "#1f5fbf" : "#b9d0ee", smooth ? "2" : "1");
    for (int i = 0; i <= COLUMNS; i++)
        if (columns[i].losses) {
            const double loss = smooth ? columns[i].smooth
                                       : columns[i].loss / (double)columns[i].losses;
            fprintf(f, "%c%d %.1f", pen ? 'L' : 'M', LEFT + i, y_of(s, loss));
            pen = true;
        }
    fprintf(f, "'/>\n");
}

static void put_losses(
    FILE *f, const struct scale *s, const struct train_record *records, size_t count) {
    struct column columns[COLUMNS + 1] = { 0 };
    double smooth = NAN;
    const double share = 2 / (fmax(1, (double)count / 20) + 1); /* over a twentieth of the steps */
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(records[i].loss))
            continue;
        smooth = isnan(smooth) ? records[i].loss : smooth + share * (records[i].loss - smooth);
        struct column *column = &columns[(int)lround(x_of(s, (double)records[i].step)) - LEFT];
        column->loss += records[i].loss;
        column->losses++;
        column->smooth = smooth;
    }
    put_curve(f, s, columns, false);
    put_curve(f, s, columns, true);
    for (size_t i = 0; i < count; i++)
        if (isfinite(records[i].validation_loss))
            fprintf(f, "<circle cx='%.1f' cy='%.1f' r='3.5' fill='#c33'/>\n",
                x_of(s, (double)records[i].step), y_of(s, records[i].validation_loss));
}

char *plot_losses(const char *title, const struct train_record *records, size_t count) {
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    if (!f)
        return NULL;
    const struct scale s = scale_of(records, count);
    fprintf(f,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' "
        "font-family='sans-serif' font-size='12' fill='#222'>\n"
        "<rect width='100%%' height='100%%' fill='#fff'/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_title(f, title);
    put_axes(f, &s);
    put_losses(f, &s, records, count);
    fprintf(f,
        "<text x='%d' y='24' text-anchor='end'>loss, its running mean, held-out pictures "
        "(dots)</text>\n</svg>\n",
        WIDTH - RIGHT);
    if (fclose(f) == 0)
        return out;
    free(out);
    return NULL;
}
