/* What losses._Asked computes, value and slope, for one matrix of similarities at a time. */
#include <math.h>
#include <string.h>

#include "threads.h"

typedef float F __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(16)));

#define NONE (-1e30f) /* no similarity: its exponential is nothing beside the others' */

typedef struct {
    int64_t members, pairs, batch, threads;
    const float *similarity;             /* (members, pairs, batch, batch) */
    const uint8_t *positives;  /* (members, batch, batch) */
    float *value, *slope;                /* (members, pairs), (members, pairs, batch, batch) */
    float *scratch;                      /* (threads, 2 · wide + 7, wide) */
} Contrast;

static int64_t wide_of(const Contrast *c) { return (c->batch + 3) / 4 * 4; }

/* eˣ for x ≤ 0, to two units in the last place; below −87 it stays at 1e-38. */
static inline __attribute__((always_inline)) F exponential(F x) {
    const F least = {-87, -87, -87, -87};
    I low = x < least;
    x = (F)((low & (I)least) | (~low & (I)x));
    I power = __builtin_convertvector(x * 1.44269504f - 0.5f, I); /* rounds towards 0: to nearest */
    F whole = __builtin_convertvector(power, F);
    F r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (F)((I)p + (power << 23));
}

static inline float added(F x) { return (x[0] + x[1]) + (x[2] + x[3]); }
static inline F greater(F a, F b) { return (F)(((a > b) & (I)a) | (~(a > b) & (I)b)); }

static void one_matrix(const void *job, int64_t matrix, int64_t worker) {
    const Contrast *c = job;
    const int64_t n = c->batch, wide = wide_of(c), member = matrix / c->pairs;
    const float *similarity = c->similarity + matrix * n * n;
    const uint8_t *positives = c->positives + member * n * n;
    float *rows = c->scratch + worker * (2 * wide + 7) * wide, *columns = rows + wide * wide;
    float *row_top = columns + wide * wide, *row_sum = row_top + wide, *row_asked = row_sum + wide;
    float *top = row_asked + wide, *sum = top + wide, *asked = sum + wide; /* of columns */
    float *restrict chosen = asked + wide;                                 /* a row of positives */
    double own = 0, others = 0, count = 0; /* similarity of the diagonal, of positives; how many */
    for (int64_t j = 0; j < wide; j++) top[j] = NONE, sum[j] = asked[j] = chosen[j] = 0;
    for (int64_t i = 0; i < n; i++) {
        float *restrict row = rows + i * wide;
        const uint8_t *positive = positives + i * n;
        memcpy(row, similarity + i * n, n * sizeof(float));
        for (int64_t j = n; j < wide; j++) row[j] = NONE;
        for (int64_t j = 0; j < n; j++) chosen[j] = positive[j];
        own += row[i];
        F product = {0}, number = {0}, most = {NONE, NONE, NONE, NONE};
        for (int64_t j = 0; j < wide; j += 4) product += *(F *)(chosen + j) * *(F *)(row + j);
        for (int64_t j = 0; j < wide; j += 4) {
            F x = *(F *)(row + j), p = *(F *)(chosen + j);
            number += p;
            *(F *)(asked + j) += p;
            most = greater(x, most);
            *(F *)(top + j) = greater(x, *(F *)(top + j));
        }
        row_asked[i] = added(number);
        row_top[i] = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        others += added(product);
        count += row_asked[i];
    }
    const float each = 1.0f / (float)n, share = 1.0f / (float)(count > 0 ? count : 1);
    double value = -2 * (own * each + others * share);
    for (int64_t i = 0; i < n; i++) {
        float *row = rows + i * wide, *column = columns + i * wide;
        F total = {0};
        for (int64_t j = 0; j < wide; j += 4) {
            F s = *(F *)(row + j), across = exponential(s - row_top[i]);
            F down = exponential(s - *(F *)(top + j));
            total += across;
            *(F *)(sum + j) += down;
            *(F *)(row + j) = across;
            *(F *)(column + j) = down;
        }
        row_sum[i] = added(total);
    }
    for (int64_t i = 0; i < n; i++) {
        row_asked[i] = each + row_asked[i] * share;
        asked[i] = each + asked[i] * share;
        value += row_asked[i] * (log(row_sum[i]) + row_top[i]) + asked[i] * (log(sum[i]) + top[i]);
        asked[i] /= sum[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * wide, *column = columns + i * wide;
        const uint8_t *positive = positives + i * n;
        float *restrict slope = c->slope + (matrix * n + i) * n, weight = row_asked[i] / row_sum[i];
        for (int64_t j = 0; j < n; j++)
            slope[j] = row[j] * weight + column[j] * asked[j] - 2 * share * positive[j];
        slope[i] -= 2 * each;
    }
    c->value[matrix] = (float)value;
}

void contrast(const Contrast *c) {
    Round round = {one_matrix, NULL, c->members * c->pairs};
    do_rounds(c->threads, &round, 1, c);
}
