/* A thread for each rank. In the second round one stays away: the others are told which, all reset, and go on.
 *
 *   cc thread_a_rank.c $(pkg-config --cflags --libs crossccl) -pthread
 */
#define _POSIX_C_SOURCE 200809L
#include <crossccl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, COUNT = 100000, ROOT = 1, ABSENT = 1, ROUNDS = 3 };

struct seat {
  crosscclComm_t comm;
  int rank, failed;
};

/* What this thread's rank has to say about a call that should not have ended so. */
static int unexpected(const struct seat *me, const char *what, crosscclResult_t result) {
  fprintf(stderr, "rank %d: %s: %s: %s\n", me->rank, what, crosscclGetErrorString(result), crosscclGetLastError(NULL));
  return 1;
}

static int broadcast(const struct seat *me, int *data) {
  /* In place: the root's input is its output. NULL is the rank's own stream. */
  crosscclResult_t result = crosscclBroadcast(data, data, COUNT, crosscclInt, ROOT, me->comm, NULL);
  int i;
  if (result == crosscclSuccess) result = crosscclCommSynchronize(me->comm);
  if (result != crosscclSuccess) return unexpected(me, "broadcast", result);
  for (i = 0; i < COUNT; i++) {
    if (data[i] != ROOT + i) {
      fprintf(stderr, "rank %d: element %d is %d\n", me->rank, i, data[i]);
      return 1;
    }
  }
  return 0;
}

static int recover(const struct seat *me, int *data) {
  crosscclResult_t result = crosscclSuccess;
  if (me->rank != ABSENT) {
    result = crosscclBroadcast(data, data, COUNT, crosscclInt, ROOT, me->comm, NULL);
    if (result == crosscclSuccess) result = crosscclCommSynchronize(me->comm);
    if (result != crosscclTimeout && result != crosscclPoisoned) return unexpected(me, "no timeout", result);
    if (strstr(crosscclGetLastError(NULL), "rank 1") == NULL) return unexpected(me, "not the rank", result);
    printf("rank %d: %s\n", me->rank, crosscclGetLastError(NULL));
  }
  /* Until it returns, a late rank may still touch the buffers. */
  result = crosscclCommReset(me->comm, 10000);
  return result == crosscclSuccess ? 0 : unexpected(me, "reset", result);
}

static void *run(void *argument) {
  static int data[RANKS][COUNT];
  struct seat *me = argument;
  int round, i;
  for (round = 0; round < ROUNDS && !me->failed; round++) {
    for (i = 0; i < COUNT; i++) data[me->rank][i] = me->rank + i;
    me->failed = round == 1 ? recover(me, data[me->rank]) : broadcast(me, data[me->rank]);
  }
  return NULL;
}

int main(void) {
  crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER;
  crosscclComm_t comms[RANKS];
  struct seat seats[RANKS];
  pthread_t threads[RANKS];
  int rank, failed = 0;

  config.backend = crosscclBackendCpu;
  config.timeout_ms = 200;
  if (crosscclCommInitAllConfig(comms, RANKS, NULL, &config) != crosscclSuccess) {
    fprintf(stderr, "%s\n", crosscclGetLastError(NULL));
    return 1;
  }
  for (rank = 0; rank < RANKS; rank++) {
    seats[rank].comm = comms[rank];
    seats[rank].rank = rank;
    seats[rank].failed = 0;
    if (pthread_create(&threads[rank], NULL, run, &seats[rank]) != 0) return 1;
  }
  for (rank = 0; rank < RANKS; rank++) {
    pthread_join(threads[rank], NULL);
    failed += seats[rank].failed;
    failed += crosscclCommDestroy(comms[rank]) != crosscclSuccess;
  }
  printf("a thread a rank, %d ranks: %d failed\n", RANKS, failed);
  return failed != 0;
}
