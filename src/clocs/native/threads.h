/* Work in pieces, taken by as many threads as wanted; which thread takes which must not matter. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define MOST_THREADS 64

typedef struct {
    void (*work)(const void *job, int64_t piece, int64_t worker);
    const void *job;
    int64_t pieces;
    _Atomic int64_t next, workers;
} Round;

static void *take_pieces(void *argument) {
    Round *round = argument;
    int64_t worker = atomic_fetch_add(&round->workers, 1), piece;
    while ((piece = atomic_fetch_add(&round->next, 1)) < round->pieces)
        round->work(round->job, piece, worker);
    return NULL;
}

/* Starting a thread takes some 20 µs: no pool to keep, to wake, or to lose in a fork. */
static void each_piece(int64_t threads, int64_t pieces,
                       void (*work)(const void *, int64_t, int64_t), const void *job) {
    Round round = {work, job, pieces, 0, 0};
    pthread_t helpers[MOST_THREADS];
    int64_t wanted = SMALLER(SMALLER(threads, pieces), MOST_THREADS) - 1, started = 0;
    while (started < wanted && !pthread_create(&helpers[started], NULL, take_pieces, &round))
        started++;
    take_pieces(&round);
    while (started) pthread_join(helpers[--started], NULL);
}
