/* One thread drives all ranks: the mean of four gradients, a share on each rank; then the root's share on every rank.
 *
 *   cc one_thread.c $(pkg-config --cflags --libs crossccl)
 */
#include <crossccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, SHARE = 1000, ROOT = 2 };

#define CHECK(call)                                                       \
  do {                                                                    \
    crosscclResult_t result_ = (call);                                    \
    if (result_ != crosscclSuccess) {                                     \
      fprintf(stderr, "%s: %s: %s\n", #call, crosscclGetErrorString(result_), crosscclGetLastError(NULL)); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

int main(void) {
  crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER;
  crosscclComm_t comms[RANKS];
  static float gradients[RANKS][RANKS * SHARE], shares[RANKS][SHARE], copies[RANKS][SHARE];
  int rank, i, wrong = 0;

  /* On GPUs: leave it at crosscclBackendAuto, allocate there, and pass a stream of each device. */
  config.backend = crosscclBackendCpu;
  CHECK(crosscclCommInitAllConfig(comms, RANKS, NULL, &config));
  for (rank = 0; rank < RANKS; rank++) {
    for (i = 0; i < RANKS * SHARE; i++) gradients[rank][i] = (float)(i + rank);
  }

  /* A group is launched as a whole, or, where one of its calls is refused, not at all. */
  CHECK(crosscclGroupStart());
  for (rank = 0; rank < RANKS; rank++) {
    CHECK(crosscclReduceScatter(gradients[rank], shares[rank], SHARE, crosscclFloat, crosscclAvg, comms[rank], NULL));
  }
  CHECK(crosscclGroupEnd());

  /* Without a group as well: calls only enqueue, each rank's in its own order. */
  for (rank = 0; rank < RANKS; rank++) {
    CHECK(crosscclBroadcast(shares[ROOT], copies[rank], SHARE, crosscclFloat, ROOT, comms[rank], NULL));
  }
  for (rank = 0; rank < RANKS; rank++) CHECK(crosscclCommSynchronize(comms[rank]));

  for (rank = 0; rank < RANKS; rank++) {
    for (i = 0; i < SHARE; i++) {
      /* The mean of i, i + 1, i + 2 and i + 3. */
      wrong += shares[rank][i] != (float)(rank * SHARE + i) + 1.5f;
      wrong += copies[rank][i] != (float)(ROOT * SHARE + i) + 1.5f;
    }
    CHECK(crosscclCommDestroy(comms[rank]));
  }
  printf("one thread, %d ranks: %d wrong of %d\n", RANKS, wrong, 2 * RANKS * SHARE);
  return wrong != 0;
}
