/* One block of the encoder on a CPU: the same function as block_torch.py, in a few passes over memory.
 *
 * Compiled for one shape (-DC_IN=… -DC_OUT=…); called by block_native.py.
 *
 * forward   convolve  h, w -> y, and the sum and spread of every instance
 *           pool      y    -> scale, shift, the larger of two, ReLU, dropout
 * backward  reach     g, y -> what reaches γ and β, by instance
 *           spread    g, y -> d_y of one instance at a time, and from it d_w and d_h
 * evaluate  convolve and pool, one instance at a time
 *
 * Activations are (members, n, length, channels), so that the 7·C_IN values under the kernel are side
 * by side, and a vector holds neighbouring channels: every product is a scalar times a vector, no
 * value is shuffled and no window copied. Threads take pieces of PIECE instances; whatever is summed
 * over instances is summed in their order, so that the number of threads changes nothing.
 * An output of 0 was cut by ReLU or dropped, and passes no gradient: no mask is kept.
 */
#include "block_instance.h"

/* ---- rounds over all instances ---- */

/* Sums about the first row: it lies where the others lie, so that no digits are lost. */
INLINE void add_spread(const float *row, const float *first, F *total, F *square) {
    UNROLL for (int c = 0; c < VECTORS; c++) {
        F away = *(F *)(row + 4 * c) - *(F *)(first + 4 * c);
        total[c] += away;
        square[c] += away * away;
    }
}

static void convolve(const void *job, int64_t piece, int64_t worker) {
    const Block *b = job;
    const Piece p = piece_of(b, piece, worker);
    int64_t member = p.member;
    int64_t out = out_of(b);
    for (int64_t i = p.first; i < p.last; i++) {
        float *y = b->y + (member * b->n + i) * out * C_OUT;
        float *sums = b->sums + (member * b->n + i) * 2 * C_OUT;
        convolve_one(
            b->h + member * b->h_stride + i * b->length * C_IN, b->w + member * K * C_OUT, y, out);
        F total[CHAINS][VECTORS] = {0}, square[CHAINS][VECTORS] = {0}, mean[VECTORS];
        int64_t t = 0;
        for (; t + CHAINS <= out; t += CHAINS)
            UNROLL for (int k = 0; k < CHAINS; k++)
                add_spread(y + (t + k) * C_OUT, y, total[k], square[k]);
        for (; t < out; t++) add_spread(y + t * C_OUT, y, total[0], square[0]);
        UNROLL for (int c = 0; c < VECTORS; c++) {
            UNROLL for (int k = 1; k < CHAINS; k++) {
                total[0][c] += total[k][c];
                square[0][c] += square[k][c];
            }
            F away = total[0][c] / (float)out;
            mean[c] = *(F *)(y + 4 * c) + away;
            square[0][c] -= total[0][c] * away;
        }
        memcpy(sums, mean, sizeof mean);
        memcpy(sums + C_OUT, square[0], sizeof square[0]);
    }
}

static void pool(const void *job, int64_t piece, int64_t worker) {
    const Block *b = job;
    const Piece p = piece_of(b, piece, worker);
    int64_t member = p.member;
    int64_t out = out_of(b);
    for (int64_t i = p.first; i < p.last; i++) {
        int64_t at = member * b->n + i;
        pool_one(b, member, i, b->y + at * out * C_OUT, b->o + at * (out / 2) * C_OUT);
    }
}

static void both(const void *job, int64_t piece, int64_t worker) {
    const Block *b = job;
    const Piece p = piece_of(b, piece, worker);
    int64_t member = p.member;
    float *y = p.scratch;
    int64_t out = out_of(b);
    for (int64_t i = p.first; i < p.last; i++) {
        const float *h = b->h + member * b->h_stride + i * b->length * C_IN;
        convolve_one(h, b->w + member * K * C_OUT, y, out);
        pool_one(b, member, i, y, b->o + (member * b->n + i) * (out / 2) * C_OUT);
    }
}

/* What one output passes back, and how far its winner lies from the mean. */
INLINE void add_reach(const Block *b, int64_t at, int64_t q, const float *y, const float *o,
                      const float *g, F *beta, F *gamma) {
    UNROLL for (int c = 0; c < VECTORS; c++) {
        F a = *(F *)(b->scale + at + 4 * c), s = *(F *)(b->shift + at + 4 * c);
        F one = *(F *)(y + 2 * q * C_OUT + 4 * c), two = *(F *)(y + (2 * q + 1) * C_OUT + 4 * c);
        F wins = choose(one * a + s >= two * a + s, one, two);
        F passed = *(F *)(g + q * C_OUT + 4 * c) * b->boost;
        F slope = (F)((*(F *)(o + q * C_OUT + 4 * c) > 0) & (I)passed);
        beta[c] += slope;
        gamma[c] += slope * (wins - *(F *)(b->mean + at + 4 * c));
    }
}

static void reach(const void *job, int64_t piece, int64_t worker) {
    const Block *b = job;
    const Piece p = piece_of(b, piece, worker);
    int64_t member = p.member;
    int64_t out = out_of(b), half = out / 2, at = member * C_OUT;
    for (int64_t i = p.first; i < p.last; i++) {
        const float *y = b->y + (member * b->n + i) * out * C_OUT;
        const float *o = b->o + (member * b->n + i) * half * C_OUT;
        const float *g = b->g + (member * b->n + i) * half * C_OUT;
        F beta[CHAINS][VECTORS] = {0}, gamma[CHAINS][VECTORS] = {0};
        int64_t q = 0;
        for (; q + CHAINS <= half; q += CHAINS)
            UNROLL for (int k = 0; k < CHAINS; k++) add_reach(b, at, q + k, y, o, g, beta[k], gamma[k]);
        for (; q < half; q++) add_reach(b, at, q, y, o, g, beta[0], gamma[0]);
        UNROLL for (int k = 1; k < CHAINS; k++)
            UNROLL for (int c = 0; c < VECTORS; c++) {
                beta[0][c] += beta[k][c];
                gamma[0][c] += gamma[k][c];
            }
        float *sums = b->sums + (member * b->n + i) * 2 * C_OUT;
        memcpy(sums, beta[0], sizeof beta[0]);
        memcpy(sums + C_OUT, gamma[0], sizeof gamma[0]);
    }
}

/* d_y = scale·g where it won, + constant + tilt·y: what comes through the mean and the variance. */
static void slopes_one(
    const Block *b, int64_t member, int64_t i, const float *constant, const float *tilt,
    float *restrict dy) {
    int64_t out = out_of(b), half = out / 2;
    const float *scale = b->scale + member * C_OUT, *shift = b->shift + member * C_OUT;
    const float *y = b->y + (member * b->n + i) * out * C_OUT;
    const float *o = b->o + (member * b->n + i) * half * C_OUT;
    const float *g = b->g + (member * b->n + i) * half * C_OUT;
    for (int64_t q = 0; q < half; q++, y += 2 * C_OUT, dy += 2 * C_OUT)
        UNROLL for (int c = 0; c < C_OUT; c += 4, o += 4, g += 4) {
            F a = *(F *)(scale + c), s = *(F *)(shift + c);
            F one = *(F *)(y + c), two = *(F *)(y + C_OUT + c);
            I wins = one * a + s >= two * a + s, pass = *(F *)o > 0;
            F slope = *(F *)g * b->boost * a;
            F base = *(F *)(constant + c), lean = *(F *)(tilt + c);
            *(F *)(dy + c) = (F)(wins & pass & (I)slope) + (base + lean * one);
            *(F *)(dy + C_OUT + c) = (F)(~wins & pass & (I)slope) + (base + lean * two);
        }
    if (out % 2)
        for (int c = 0; c < C_OUT; c++) dy[c] = constant[c] + tilt[c] * y[c];
}

static void spread(const void *job, int64_t piece, int64_t worker) {
    const Block *b = job;
    const Piece p = piece_of(b, piece, worker);
    int64_t member = p.member;
    int64_t out = out_of(b), at = member * C_OUT;
    float constant[C_OUT], tilt[C_OUT], *dy = p.scratch + 2 * C_OUT;
    float *dw = b->parts + (member * pieces_of(b) + p.first / PIECE) * K * C_OUT;
    float rows = (float)(b->n * out);
    for (int c = 0; c < C_OUT; c++) {
        tilt[c] = -b->scale[at + c] * b->deviation[at + c] * b->dgamma[at + c] / rows;
        constant[c] = -b->scale[at + c] * b->dbeta[at + c] / rows - b->mean[at + c] * tilt[c];
    }
    memset(p.scratch, 0, 2 * C_OUT * sizeof(float));
    memset(dy + out * C_OUT, 0, 2 * C_OUT * sizeof(float));
    memset(dw, 0, K * C_OUT * sizeof(float));
    for (int64_t i = p.first; i < p.last; i++) {
        slopes_one(b, member, i, constant, tilt, dy);
        weights_one(b->h + member * b->h_stride + i * b->length * C_IN, dy, dw, out);
        if (b->dh)
            inputs_one(dy, b->w_turned + member * K * C_OUT,
                       b->dh + (member * b->n + i) * b->length * C_IN, out, b->length);
    }
}

/* ---- between rounds: sums over instances, in their order ---- */

static void normalise(const void *job) {
    const Block *b = job;
    for (int64_t m = 0; m < b->members; m++)
        for (int c = 0; c < C_OUT; c++) {
            const float *sums = b->sums + m * b->n * 2 * C_OUT + c;
            double mean = 0, inside = 0, between = 0;
            for (int64_t i = 0; i < b->n; i++) mean += sums[i * 2 * C_OUT];
            mean /= (double)b->n;
            for (int64_t i = 0; i < b->n; i++) {
                double away = sums[i * 2 * C_OUT] - mean;
                between += away * away;
                inside += sums[i * 2 * C_OUT + C_OUT];
            }
            double variance = (inside / (double)out_of(b) + between) / (double)b->n;
            int64_t at = m * C_OUT + c;
            b->mean[at] = (float)mean;
            b->variance[at] = (float)variance;
            b->deviation[at] = (float)(1 / sqrt(variance + b->epsilon));
            b->scale[at] = b->gamma[at] * b->deviation[at];
            b->shift[at] = b->beta[at] - b->mean[at] * b->scale[at];
        }
}

static void all_reach(const void *job) {
    const Block *b = job;
    for (int64_t m = 0; m < b->members; m++)
        for (int c = 0; c < C_OUT; c++) {
            double beta = 0, gamma = 0;
            for (int64_t i = 0; i < b->n; i++) {
                beta += b->sums[(m * b->n + i) * 2 * C_OUT + c];
                gamma += b->sums[(m * b->n + i) * 2 * C_OUT + C_OUT + c];
            }
            b->dbeta[m * C_OUT + c] = (float)beta;
            b->dgamma[m * C_OUT + c] = (float)gamma * b->deviation[m * C_OUT + c];
        }
}

static void all_parts(const void *job) {
    const Block *b = job;
    for (int64_t m = 0; m < b->members; m++) {
        double total[K * C_OUT] = {0};
        for (int64_t p = 0; p < pieces_of(b); p++) {
            const float *part = b->parts + (m * pieces_of(b) + p) * K * C_OUT;
            for (int k = 0; k < K * C_OUT; k++) total[k] += part[k];
        }
        for (int k = 0; k < K * C_OUT; k++) b->dw[m * K * C_OUT + k] = (float)total[k];
    }
}

/* ---- what Python calls ---- */

void forward(const Block *b) {
    int64_t pieces = b->members * pieces_of(b);
    Round rounds[] = {{convolve, normalise, pieces}, {pool, NULL, pieces}};
    do_rounds(b->threads, rounds, 2, b);
}

void evaluate(const Block *b) {
    Round round = {both, NULL, b->members * pieces_of(b)};
    do_rounds(b->threads, &round, 1, b);
}

void backward(const Block *b) {
    int64_t pieces = b->members * pieces_of(b);
    Round rounds[] = {{reach, all_reach, pieces}, {spread, all_parts, pieces}};
    do_rounds(b->threads, rounds, 2, b);
}
