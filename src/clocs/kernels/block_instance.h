/* What block.c is made of: its sizes and vectors, its arguments, and the work on one instance. */
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
