/* One step of Adam for every member that has a batch and is live; as Replicas.step has it. */
#include <math.h>

#include "threads.h"

typedef struct {
    int64_t members, weights, statistics, threads;
    float lr, beta1, beta2, epsilon;
    const uint8_t *on;
    const float *loss, *gradient, *after; /* after: the statistics after this batch */
    float *theta, *moment1, *moment2, *buffers;
    int64_t *steps;
    uint8_t *live, *broken, *moved;
} Step;

/* Infinities and what is no number have the greatest exponents. */
static int all_finite(const float *x, int64_t count) {
    const int32_t *bits = (const int32_t *)x;
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t magnitude = bits[i] & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return most < 0x7f800000;
}

static void one_member(const void *job, int64_t m, int64_t worker) {
    const Step *s = job;
    (void)worker;
    const float *g = s->gradient + m * s->weights;
    float *theta = s->theta + m * s->weights;
    float *moment1 = s->moment1 + m * s->weights, *moment2 = s->moment2 + m * s->weights;
    s->moved[m] = 0;
    if (!s->on[m] || !s->live[m]) return;
    if (!all_finite(s->loss + m, 1) || !all_finite(g, s->weights)) {
        s->broken[m] = 1;
        s->live[m] = 0;
        return;
    }
    s->moved[m] = 1;
    double count = (double)++s->steps[m];
    float new1 = 1 - s->beta1, new2 = 1 - s->beta2;
    float factor = (float)(s->lr / (1 - pow(s->beta1, count)));
    float grown = (float)(1 / (1 - pow(s->beta2, count)));
    for (int64_t i = 0; i < s->weights; i++) {
        moment1[i] += new1 * (g[i] - moment1[i]);
        moment2[i] += new2 * (g[i] * g[i] - moment2[i]);
        theta[i] -= factor * moment1[i] / (sqrtf(moment2[i] * grown) + s->epsilon);
    }
    for (int64_t i = 0; i < s->statistics; i++)
        s->buffers[m * s->statistics + i] = s->after[m * s->statistics + i];
}

void adam(const Step *step) {
    Round round = {one_member, NULL, step->members};
    do_rounds(step->threads, &round, 1, step);
}
