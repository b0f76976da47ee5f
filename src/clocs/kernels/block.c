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
#include <math.h>
#include <string.h>

#include "threads.h"

#define TAPS 7
#define STRIDE 3
#define K (TAPS * C_IN)
#define PIECE 16

#if defined(__aarch64__) || defined(__AVX512F__)
#define REGISTERS 24 /* for sums; 32 in all */
#else
#define REGISTERS 12
#endif
#if defined(__AVX__) && C_OUT % 8 == 0
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX__) && C_IN % 8 == 0
#define LANES_IN 8
#elif C_IN % 4 == 0
#define LANES_IN 4
#else
#define LANES_IN 1
#endif

#define J (C_OUT / LANES)                     /* vectors of an output's channels */
#define AT_ONCE SMALLER(8, REGISTERS / J)     /* positions convolved at once */
#define GROUP (STRIDE * C_IN / LANES_IN)      /* vectors of a stride's inputs */
#define GROUPS SMALLER(8, REGISTERS / GROUP)  /* strides whose d_h is found at once */
#define VECTORS (C_OUT / 4)
#define CHAINS (C_OUT < 16 ? 4 : 1)           /* sums that do not wait for one another */
#define TILE_K (K % 4 ? TAPS : 4)             /* taps × … */
#define TILE_J SMALLER(J, REGISTERS / 6)      /* … vectors of d_w found at once */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if LANES_IN > 1
typedef float VI __attribute__((vector_size(4 * LANES_IN), aligned(4), may_alias));
#else
typedef float VI;
#endif
typedef float F __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(16)));
typedef int16_t S __attribute__((vector_size(8)));

typedef struct {
    int64_t members, n, length, h_stride; /* h_stride: from one member's h to the next, may be 0 */
    int64_t threads, threshold;           /* of dropout, in 2⁻¹⁶; 0 is none */
    float boost, epsilon;
    const float *h, *w, *w_turned, *gamma, *beta; /* w: (K, C_OUT), w_turned: (C_OUT, K) a member */
    const uint64_t *keys;
    float *y, *o, *mean, *variance, *deviation, *scale, *shift;
    const float *g;
    float *dh, *dw, *dgamma, *dbeta;
    float *sums;    /* (members, n, 2, C_OUT) */
    float *parts;   /* (members, pieces, K, C_OUT) of d_w */
    float *scratch; /* (threads, out + 4, C_OUT) */
} Block;

static int64_t out_of(const Block *b) { return (b->length - TAPS) / STRIDE + 1; }
static int64_t pieces_of(const Block *b) { return (b->n + PIECE - 1) / PIECE; }

/* A piece: instances `first` to `last` of a member, and the worker's own memory. */
typedef struct {
    int64_t member, first, last;
    float *scratch;
} Piece;

static Piece piece_of(const Block *b, int64_t piece, int64_t worker) {
    int64_t first = piece % pieces_of(b) * PIECE;
    float *scratch = b->scratch + worker * (out_of(b) + 4) * C_OUT;
    return (Piece){piece / pieces_of(b), first, SMALLER(first + PIECE, b->n), scratch};
}

/* ---- one instance ---- */

INLINE void convolve_at(const int count, const float *h, const float *w, float *y) {
    V sum[AT_ONCE][J] = {0};
    for (int k = 0; k < K; k++) {
        UNROLL for (int j = 0; j < J; j++)
            UNROLL for (int p = 0; p < count; p++)
                sum[p][j] += *(const V *)(w + k * C_OUT + j * LANES) * h[p * STRIDE * C_IN + k];
    }
    UNROLL for (int p = 0; p < count; p++)
        UNROLL for (int j = 0; j < J; j++) *(V *)(y + p * C_OUT + j * LANES) = sum[p][j];
}

static void convolve_one(const float *h, const float *w, float *y, int64_t out) {
    int64_t t = 0;
    for (; t + AT_ONCE <= out; t += AT_ONCE)
        convolve_at(AT_ONCE, h + t * STRIDE * C_IN, w, y + t * C_OUT);
    for (; t < out; t++) convolve_at(1, h + t * STRIDE * C_IN, w, y + t * C_OUT);
}

/* `counter.dropout`'s decision for four neighbouring elements, of which `draw` is the number. */
INLINE I kept(uint64_t key, uint64_t draw, int16_t least) {
    uint64_t x = key + (draw + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    S lanes;
    memcpy(&lanes, &x, sizeof lanes);
    return __builtin_convertvector(lanes >= least, I);
}

INLINE F choose(I which, F a, F b) { return (F)((which & (I)a) | (~which & (I)b)); }

static void pool_one(const Block *b, int64_t member, int64_t i, const float *y, float *restrict o) {
    int64_t half = out_of(b) / 2;
    const float *scale = b->scale + member * C_OUT, *shift = b->shift + member * C_OUT;
    uint64_t key = b->threshold ? b->keys[member] : 0, draw = i * half * C_OUT / 4;
    int16_t least = b->threshold - 32768;
    for (int64_t q = 0; q < half; q++, y += 2 * C_OUT)
        UNROLL for (int c = 0; c < C_OUT; c += 4, o += 4, draw++) {
            F a = *(F *)(scale + c), s = *(F *)(shift + c);
            F up = *(F *)(y + c) * a + s, down = *(F *)(y + C_OUT + c) * a + s;
            F value = choose(up >= down, up, down);
            I pass = value > 0;
            if (b->threshold) {
                value *= b->boost;
                pass &= kept(key, draw, least);
            }
            *(F *)o = (F)(pass & (I)value);
        }
}

/* What every tile of d_w gets from one instance. */
static void weights_one(const float *h, const float *dy, float *dw, int64_t out) {
    for (int k = 0; k < K; k += TILE_K)
        for (int j = 0; j < J; j += TILE_J) {
            V sum[TILE_K][TILE_J];
            float *tile = dw + k * C_OUT + j * LANES;
            UNROLL for (int a = 0; a < TILE_K; a++)
                UNROLL for (int c = 0; c < TILE_J; c++)
                    sum[a][c] = *(V *)(tile + a * C_OUT + c * LANES);
            for (int64_t t = 0; t < out; t++) {
                const float *x = h + t * STRIDE * C_IN + k, *d = dy + t * C_OUT + j * LANES;
                UNROLL for (int a = 0; a < TILE_K; a++)
                    UNROLL for (int c = 0; c < TILE_J; c++)
                        sum[a][c] += *(const V *)(d + c * LANES) * x[a];
            }
            UNROLL for (int a = 0; a < TILE_K; a++)
                UNROLL for (int c = 0; c < TILE_J; c++)
                    *(V *)(tile + a * C_OUT + c * LANES) = sum[a][c];
        }
}

/* d_h of `count` strides: taps 0–2 of the step that begins there, 3–5 and 6 of the two before. */
INLINE void inputs_at(const int count, const float *dy, const float *w_turned, float *dh) {
    VI sum[GROUPS][GROUP] = {0};
    for (int c = 0; c < C_OUT; c++) {
        const VI *w = (const VI *)(w_turned + c * K);
        UNROLL for (int p = 0; p < count; p++)
            UNROLL for (int i = 0; i < GROUP; i++) sum[p][i] += w[i] * dy[p * C_OUT + c];
        UNROLL for (int p = 0; p < count; p++)
            UNROLL for (int i = 0; i < GROUP; i++)
                sum[p][i] += w[GROUP + i] * dy[(p - 1) * C_OUT + c];
        UNROLL for (int p = 0; p < count; p++)
            UNROLL for (int i = 0; i < GROUP / STRIDE; i++)
                sum[p][i] += w[2 * GROUP + i] * dy[(p - 2) * C_OUT + c];
    }
    UNROLL for (int p = 0; p < count; p++)
        UNROLL for (int i = 0; i < GROUP; i++)
            *(VI *)(dh + p * STRIDE * C_IN + i * LANES_IN) = sum[p][i];
}

/* dy has two rows of zeros before it and after it. */
static void inputs_one(
    const float *dy, const float *w_turned, float *dh, int64_t out, int64_t length) {
    int64_t q = 0;
    for (; q + GROUPS <= out + 1; q += GROUPS)
        inputs_at(GROUPS, dy + q * C_OUT, w_turned, dh + q * STRIDE * C_IN);
    for (; q < out + 1; q++) inputs_at(1, dy + q * C_OUT, w_turned, dh + q * STRIDE * C_IN);
    float last[STRIDE * C_IN]; /* of this stride h holds one, two or three samples */
    inputs_at(1, dy + q * C_OUT, w_turned, last);
    int64_t begin = q * STRIDE * C_IN;
    memcpy(dh + begin, last, (length * C_IN - begin) * sizeof(float));
}

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
