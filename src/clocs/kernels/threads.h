/* Rounds of work in pieces, taken by as many threads as wanted; which takes which must not matter. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define MOST_THREADS 64
#define MOST_ROUNDS 32

typedef struct {
    void (*work)(const void *job, int64_t piece, int64_t worker);
    void (*after)(const void *job); /* once, when all pieces are done; may be NULL */
    int64_t pieces;                 /* at least 1 */
    const void *job;                /* the team's where NULL */
} Round;

typedef struct {
    const void *job;
    const Round *rounds;
    int64_t count;
    _Atomic int64_t workers, open, next[MOST_ROUNDS], done[MOST_ROUNDS];
} Team;

static void *take_pieces(void *argument) {
    Team *team = argument;
    int64_t worker = atomic_fetch_add(&team->workers, 1), piece;
    for (int64_t r = 0; r < team->count; r++) {
        const Round *round = &team->rounds[r];
        const void *job = round->job ? round->job : team->job;
        while ((piece = atomic_fetch_add(&team->next[r], 1)) < round->pieces) {
            round->work(job, piece, worker);
            if (atomic_fetch_add(&team->done[r], 1) + 1 < round->pieces) continue;
            if (round->after) round->after(job);
            atomic_store(&team->open, r + 1);
        }
        while (atomic_load(&team->open) <= r) sched_yield();
    }
    return NULL;
}

/* A thread that starts late, or not at all, is not waited for: starting one takes some 50 µs, and
 * there is no pool to keep, to wake, or to lose in a fork. */
static void do_rounds(int64_t threads, const Round *rounds, int64_t count, const void *job) {
    Team team = {job, rounds, count, 0, 0, {0}, {0}};
    pthread_t helpers[MOST_THREADS];
    int64_t wanted = SMALLER(SMALLER(threads, rounds[0].pieces), MOST_THREADS) - 1, started = 0;
    while (started < wanted && !pthread_create(&helpers[started], NULL, take_pieces, &team))
        started++;
    take_pieces(&team);
    while (started) pthread_join(helpers[--started], NULL);
}
