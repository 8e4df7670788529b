/* Communicators that come and go in four threads at once: used and waited for, used and not, aborted, left with a rank that
 * waits in vain. What any of them leaves behind, the sanitizer tells at the end. */
#define _POSIX_C_SOURCE 200809L
#include <crossccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 60, MOST = 4, COUNT = 500 };

struct life {
  unsigned number;
  int failures;
};

static void expect(struct life *me, int line, int holds) {
  if (holds) return;
  me->failures++;
  fprintf(stderr, "line %d: thread %u: %s\n", line, me->number, crosscclGetLastError(NULL));
}
#define EXPECT(condition) expect(me, __LINE__, (condition))

static void once(struct life *me, int round) {
  int64_t data[MOST][COUNT];
  crosscclComm_t comms[MOST];
  crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER;
  crosscclResult_t result;
  int ranks = 1 + round % MOST, rank, call, i;

  config.backend = crosscclBackendCpu;
  config.timeout_ms = 20000;
  EXPECT(crosscclCommInitAllConfig(comms, ranks, NULL, &config) == crosscclSuccess);
  for (call = 0; call < 5; call++) {
    for (rank = 0; rank < ranks; rank++) {
      for (i = 0; i < COUNT; i++) data[rank][i] = rank + call;
    }
    if (call % 2 == 0) EXPECT(crosscclGroupStart() == crosscclSuccess);
    for (rank = 0; rank < ranks; rank++) {
      result = crosscclBroadcast(data[rank], data[rank], COUNT, crosscclInt64, ranks - 1, comms[rank], NULL);
      EXPECT(result == crosscclSuccess);
    }
    if (call % 2 == 0) EXPECT(crosscclGroupEnd() == crosscclSuccess);
    for (rank = 0; rank < ranks; rank++) EXPECT(crosscclCommSynchronize(comms[rank]) == crosscclSuccess);
    for (rank = 0; rank < ranks; rank++) EXPECT(data[rank][round] == ranks - 1 + call);
  }
  switch (round % 3) {
    case 0: /* As it is. */
      break;
    case 1: /* With calls in flight: their end is waited for. */
      for (rank = 0; rank < ranks; rank++) {
        EXPECT(crosscclBroadcast(data[rank], data[rank], COUNT, crosscclInt64, 0, comms[rank], NULL) == crosscclSuccess);
      }
      break;
    default: /* With one that waits for a rank that does not come. */
      if (ranks == 1) break;
      EXPECT(crosscclBroadcast(data[0], data[0], COUNT, crosscclInt64, 1, comms[0], NULL) == crosscclSuccess);
      EXPECT(crosscclCommAbort(comms[1]) == crosscclSuccess);
      EXPECT(crosscclCommGetAsyncError(comms[0], &result) == crosscclSuccess && result == crosscclAborted);
      EXPECT(crosscclCommSynchronize(comms[0]) == crosscclAborted);
      if (round % 2 == 0) EXPECT(crosscclCommResetAll(comms, ranks) == crosscclSuccess);
  }
  for (rank = 0; rank < ranks; rank++) {
    EXPECT(crosscclCommDestroy(comms[(rank + round) % ranks]) == crosscclSuccess);
  }
  for (rank = 0; rank < ranks; rank++) EXPECT(crosscclCommDestroy(comms[rank]) == crosscclInvalidArgument);
}

static void *live(void *argument) {
  int round;
  for (round = 0; round < ROUNDS; round++) once(argument, round);
  return NULL;
}

int main(void) {
  struct life lives[THREADS] = {{0, 0}};
  pthread_t threads[THREADS];
  unsigned number;
  int failures = 0;
  for (number = 0; number < THREADS; number++) {
    lives[number].number = number;
    if (pthread_create(&threads[number], NULL, live, &lives[number]) != 0) return 1;
  }
  for (number = 0; number < THREADS; number++) {
    pthread_join(threads[number], NULL);
    failures += lives[number].failures;
  }
  printf("stress: %d communicators, %d not as expected\n", THREADS * ROUNDS, failures);
  return failures != 0;
}
