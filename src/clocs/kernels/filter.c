/* Convolutions with 5 taps by minimal filtering (Lavin & Gray 2016), as in encoders/residual.py.
 *
 * A tile of steps becomes values at POINTS points (by `of_steps`), which are multiplied by the
 * kernel there; from the products follow `made` steps (by `of_products`). One piece is ROWS_AT_ONCE
 * tiles, which stay in the cache. A step has the same bits whatever else is computed with it. */
#include <string.h>

#include "threads.h"

#define POINTS 8
#define TAPS 5
#define ROWS_AT_ONCE 48
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 8
#endif
#define WIDTH (2 * LANES)

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));
static const float nothing[LANES];

typedef struct {
    int64_t threads, samples, steps, channels, stride, made, tiles, out_steps, out_channels;
    const float *x, *of_steps, *kernel, *of_products, *bias; /* kernel: (POINTS, …, depth, WIDTH) */
    float *scratch, *y;
} Filter;

int64_t filter_width(void) { return WIDTH; }
int64_t filter_rows(void) { return ROWS_AT_ONCE; }

/* to[p] = bias + Σ matrix[p, s] · from[s]; what is NULL is zero */
static void mix(const float *const *from, const float *matrix, float *const *to, int64_t rows,
                int64_t channels, const float *bias) {
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        Lanes x[POINTS], start = *(const Lanes *)(bias ? bias + c : nothing);
        for (int64_t s = 0; s < POINTS; s++)
            x[s] = *(const Lanes *)(from[s] ? from[s] + c : nothing);
        for (int64_t p = 0; p < rows; p++) {
            Lanes sum = start;
            for (int64_t s = 0; s < POINTS; s++) sum += matrix[p * POINTS + s] * x[s];
            *(Lanes *)(to[p] + c) = sum;
        }
    }
    for (; c < channels; c++)
        for (int64_t p = 0; p < rows; p++) {
            float sum = bias ? bias[c] : 0;
            for (int64_t s = 0; s < POINTS; s++)
                sum += matrix[p * POINTS + s] * (from[s] ? from[s][c] : 0);
            to[p][c] = sum;
        }
}

/* to (ROWS, WIDTH) = a (ROWS, depth) · b (depth, WIDTH) */
static void multiply(const float *a, const float *b, int64_t depth, float *to, int64_t filters) {
    Lanes sum[ROWS][2] = {0};
    for (int64_t k = 0; k < depth; k++, b += WIDTH) {
        Lanes left = *(const Lanes *)b, right = *(const Lanes *)(b + LANES);
#pragma GCC unroll 12
        for (int64_t r = 0; r < ROWS; r++) {
            float value = a[r * depth + k];
            sum[r][0] += value * left;
            sum[r][1] += value * right;
        }
    }
#pragma GCC unroll 12
    for (int64_t r = 0; r < ROWS; r++) {
        *(Lanes *)(to + r * filters) = sum[r][0];
        *(Lanes *)(to + r * filters + LANES) = sum[r][1];
    }
}

static void some_tiles(const void *job, int64_t piece, int64_t worker) {
    const Filter *all = job;
    int64_t depth = all->stride * all->channels;
    int64_t filters = (all->out_channels + WIDTH - 1) / WIDTH * WIDTH;
    float *values = all->scratch + worker * POINTS * ROWS_AT_ONCE * (depth + filters);
    float *products = values + POINTS * ROWS_AT_ONCE * depth;
    int64_t first = piece * ROWS_AT_ONCE;
    int64_t rows = SMALLER(ROWS_AT_ONCE, all->samples * all->tiles - first);
    const float *from[POINTS];
    float *to[POINTS];
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = (first + row) / all->tiles, tile = (first + row) % all->tiles;
        const float *x = all->x + sample * all->steps * all->channels;
        for (int64_t part = 0; part < all->stride; part++) {
            for (int64_t s = 0; s < POINTS; s++) {
                int64_t at = (tile * all->made + s) * all->stride + part - TAPS / 2;
                from[s] = at >= 0 && at < all->steps ? x + at * all->channels : NULL;
                to[s] = values + (s * ROWS_AT_ONCE + row) * depth + part * all->channels;
            }
            mix(from, all->of_steps, to, POINTS, all->channels, NULL);
        }
    }
    int64_t missing = (ROWS - rows % ROWS) % ROWS; /* old numbers could be slow to multiply */
    for (int64_t s = 0; s < POINTS; s++) {
        memset(values + (s * ROWS_AT_ONCE + rows) * depth, 0, missing * depth * sizeof(float));
        for (int64_t column = 0; column < filters; column += WIDTH)
            for (int64_t row = 0; row < rows; row += ROWS)
                multiply(values + (s * ROWS_AT_ONCE + row) * depth,
                         all->kernel + (s * filters + column) * depth, depth,
                         products + (s * ROWS_AT_ONCE + row) * filters + column, filters);
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = (first + row) / all->tiles, step = (first + row) % all->tiles * all->made;
        int64_t count = SMALLER(all->made, all->out_steps - step);
        for (int64_t s = 0; s < POINTS; s++)
            from[s] = products + (s * ROWS_AT_ONCE + row) * filters;
        for (int64_t p = 0; p < count; p++)
            to[p] = all->y + (sample * all->out_steps + step + p) * all->out_channels;
        mix(from, all->of_products, to, count, all->out_channels, all->bias);
    }
}

void filter(const Filter *all) {
    int64_t rows = all->samples * all->tiles;
    Round round = {some_tiles, NULL, (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE};
    do_rounds(all->threads, &round, 1, all);
}
