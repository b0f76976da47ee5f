/* Convolutions with 5 taps by minimal filtering (Lavin & Gray 2016), as in encoders/residual.py.
 *
 * A tile of steps becomes values at POINTS points (by `of_steps`), which are multiplied by the
 * kernel there; from the products follow `made` steps (by `of_products`). With one tap, the values
 * are the steps themselves, or the means of two. One piece is at most MOST_ROWS tiles, which stay in
 * the cache. A step has the same bits whatever else is computed with it. */
#include <string.h>

#include "threads.h"

#define POINTS 8
#define TAPS 5
#define MOST_ROWS 48
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
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
static const float nothing[LANES];

typedef struct {
    int64_t threads, samples, points, steps, channels, stride, made, tiles, out_steps, out_channels;
    int64_t relu;
    const float *x, *of_steps, *kernel, *of_products, *bias, *added; /* added: as y, or NULL */
    float *scratch, *y; /* kernel: (points, …, depth, WIDTH) */
} Filter;

int64_t filter_width(void) { return WIDTH; }
int64_t filter_rows(void) { return MOST_ROWS; }

/* to[p] = start + Σ matrix[p, s] · from[s]; what is NULL is zero */
static inline void mix(const float *const *from, const float *matrix, float *const *to,
                       int64_t rows, int64_t channels, const float *start,
                       const float *const *added, int64_t relu) {
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        Lanes x[POINTS], first = *(const Lanes *)(start ? start + c : nothing);
        for (int64_t s = 0; s < POINTS; s++)
            x[s] = *(const Lanes *)(from[s] ? from[s] + c : nothing);
        for (int64_t p = 0; p < rows; p++) {
            Lanes sum = first;
            for (int64_t s = 0; s < POINTS; s++) sum += matrix[p * POINTS + s] * x[s];
            if (added) sum += *(const Lanes *)(added[p] ? added[p] + c : nothing);
            if (relu) sum = (Lanes)((Ints)sum & ~(sum < 0)); /* nan stays nan */
            *(Lanes *)(to[p] + c) = sum;
        }
    }
    for (; c < channels; c++)
        for (int64_t p = 0; p < rows; p++) {
            float sum = start ? start[c] : 0;
            for (int64_t s = 0; s < POINTS; s++)
                sum += matrix[p * POINTS + s] * (from[s] ? from[s][c] : 0);
            if (added && added[p]) sum += added[p][c];
            to[p][c] = relu && sum < 0 ? 0 : sum;
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

/* How many tiles are one piece: each thread has as many pieces */
static int64_t piece_rows(const Filter *conv) {
    int64_t rows = conv->samples * conv->tiles, most = conv->threads * MOST_ROWS;
    int64_t pieces = conv->threads * ((rows + most - 1) / most);
    return (rows + pieces * ROWS - 1) / (pieces * ROWS) * ROWS;
}

static void some_tiles(const void *job, int64_t piece, int64_t worker) {
    const Filter *conv = job;
    int64_t size = piece_rows(conv), points = conv->points, channels = conv->channels;
    int64_t depth = points > 1 ? conv->stride * channels : channels;
    int64_t filters = (conv->out_channels + WIDTH - 1) / WIDTH * WIDTH;
    float *values = conv->scratch + worker * points * size * (depth + filters);
    float *products = values + points * size * depth;
    int64_t first = piece * size, rows = SMALLER(size, conv->samples * conv->tiles - first);
    const float *from[POINTS] = {0}, *added[POINTS] = {0};
    float *to[POINTS];
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = (first + row) / conv->tiles, tile = (first + row) % conv->tiles;
        const float *x = conv->x + sample * conv->steps * channels;
        if (points == 1) { /* one tap: of the mean of `stride` steps */
            int64_t at = tile * conv->stride, last = SMALLER(at + conv->stride, conv->steps) - 1;
            for (int64_t c = 0; c < channels; c++)
                values[row * depth + c] = (x[at * channels + c] + x[last * channels + c]) / 2;
            continue;
        }
        for (int64_t part = 0; part < conv->stride; part++) {
            for (int64_t s = 0; s < POINTS; s++) {
                int64_t at = (tile * conv->made + s) * conv->stride + part - TAPS / 2;
                from[s] = at >= 0 && at < conv->steps ? x + at * channels : NULL;
                to[s] = values + (s * size + row) * depth + part * channels;
            }
            mix(from, conv->of_steps, to, POINTS, channels, NULL, NULL, 0);
        }
    }
    int64_t missing = (ROWS - rows % ROWS) % ROWS; /* old numbers could be slow to multiply */
    for (int64_t s = 0; s < points; s++) {
        memset(values + (s * size + rows) * depth, 0, missing * depth * sizeof(float));
        for (int64_t column = 0; column < filters; column += WIDTH)
            for (int64_t row = 0; row < rows; row += ROWS)
                multiply(values + (s * size + row) * depth,
                         conv->kernel + (s * filters + column) * depth, depth,
                         products + (s * size + row) * filters + column, filters);
    }
    for (int64_t s = points; s < POINTS; s++) from[s] = NULL;
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = (first + row) / conv->tiles;
        int64_t step = (first + row) % conv->tiles * conv->made;
        int64_t count = SMALLER(conv->made, conv->out_steps - step);
        for (int64_t s = 0; s < points; s++) from[s] = products + (s * size + row) * filters;
        for (int64_t p = 0; p < count; p++) {
            int64_t at = (sample * conv->out_steps + step + p) * conv->out_channels;
            to[p] = conv->y + at;
            added[p] = conv->added ? conv->added + at : NULL;
        }
        mix(from, conv->of_products, to, count, conv->out_channels, conv->bias, added, conv->relu);
    }
}

/* One convolution after another */
void filter(const Filter *convs, int64_t count) {
    for (; count > 0; convs += MOST_ROUNDS, count -= MOST_ROUNDS) {
        Round rounds[MOST_ROUNDS];
        for (int64_t r = 0; r < SMALLER(count, MOST_ROUNDS); r++) {
            int64_t rows = convs[r].samples * convs[r].tiles, size = piece_rows(&convs[r]);
            rounds[r] = (Round){some_tiles, NULL, (rows + size - 1) / size, &convs[r]};
        }
        do_rounds(convs->threads, rounds, SMALLER(count, MOST_ROUNDS), NULL);
    }
}
