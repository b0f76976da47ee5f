/* int16 windows -> float32, each from its least (0) to its greatest value (1), as signals.min_max. */
#include "threads.h"

#define PIECE 16

typedef struct {
    const int16_t *flat;
    const int64_t *starts;
    float *out;
    int64_t windows, samples;
} Gather;

static void some_windows(const void *job, int64_t piece, int64_t worker) {
    const Gather *all = job;
    (void)worker;
    int64_t last = SMALLER((piece + 1) * PIECE, all->windows);
    for (int64_t window = piece * PIECE; window < last; window++) {
        const int16_t *x = all->flat + all->starts[window];
        float *out = all->out + window * all->samples;
        int16_t low = INT16_MAX, high = INT16_MIN;
        for (int64_t i = 0; i < all->samples; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
        }
        float least = low, span = high > low ? (float)high - least : 1; /* a flat one becomes 0 */
        for (int64_t i = 0; i < all->samples; i++) out[i] = ((float)x[i] - least) / span;
    }
}

void gather(const int16_t *flat, const int64_t *starts, float *out, int64_t windows,
            int64_t samples, int64_t threads) {
    Gather all = {flat, starts, out, windows, samples};
    Round round = {some_windows, NULL, (windows + PIECE - 1) / PIECE};
    do_rounds(threads, &round, 1, &all);
}
