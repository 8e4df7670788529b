/* What a C program can get wrong: each is answered with a result and a text, and nothing else happens. Built with
 * sanitizers, and in C, where numbers that are no value of an enum can be passed for one. */
#define _POSIX_C_SOURCE 200809L
#include <crossccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks, failures;

/* The call ended with `result`, and its text has `part` in it. */
static void expect(int line, crosscclResult_t got, crosscclResult_t result, const char *part) {
  const char *text = got == crosscclSuccess ? "" : crosscclGetLastError(NULL);
  checks++;
  if (got == result && strstr(text, part) != NULL) return;
  failures++;
  fprintf(stderr, "line %d: %d (%s), expected %d with '%s'\n", line, (int)got, text, (int)result, part);
}
#define EXPECT(call, result, part) expect(__LINE__, (call), (result), (part))
#define OK(call) EXPECT(call, crosscclSuccess, "")
#define REFUSED(call, part) EXPECT(call, crosscclInvalidArgument, part)

enum { RANKS = 2, COUNT = 8 };
static float data[RANKS][RANKS * COUNT];

static void initialization(void) {
  crosscclComm_t comms[RANKS];
  int twice[RANKS] = {0, 0}, negative[RANKS] = {0, -1};
  crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER;
  int version = 0;

  OK(crosscclGetVersion(&version));
  if (version != CROSSCCL_VERSION_CODE || version != 10000 * CROSSCCL_MAJOR + 100 * CROSSCCL_MINOR + CROSSCCL_PATCH) {
    failures++;
    fprintf(stderr, "version %d, header %d\n", version, CROSSCCL_VERSION_CODE);
  }
  REFUSED(crosscclGetVersion(NULL), "version: expected an address aligned to 4 bytes, got null");
  REFUSED(crosscclCommInitAll(NULL, RANKS, NULL), "comms");
  REFUSED(crosscclCommInitAll((crosscclComm_t *)(void *)((char *)comms + 1), 1, NULL), "comms");
  REFUSED(crosscclCommInitAll(comms, 0, NULL), "ndev: expected 1 to 64, got 0");
  REFUSED(crosscclCommInitAll(comms, -1, NULL), "ndev");
  REFUSED(crosscclCommInitAll(comms, 65, NULL), "ndev");
  REFUSED(crosscclCommInitAll(comms, RANKS, negative), "devlist of rank 1");
  REFUSED(crosscclCommInitAll(comms, RANKS, twice), "virtual_ranks");
  if (comms[0] != NULL || comms[1] != NULL) failures++;

  config.size = sizeof config - 1;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.size");
  config.size = 0;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.size");
  config.size = sizeof config;
  config.magic = 0;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.magic");
  config.magic = CROSSCCL_CONFIG_MAGIC;
  config.version = CROSSCCL_VERSION_CODE + 100;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.version");
  config.version = CROSSCCL_VERSION_CODE;
  config.backend = 99;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.backend");
  config.backend = crosscclBackendCpu;
  config.timeout_ms = -2;
  REFUSED(crosscclCommInitAllConfig(comms, RANKS, NULL, &config), "config.timeout_ms");
}

/* A program that was built with a later header: longer by a field that this library does not know. */
static void a_later_header(void) {
  struct {
    crosscclConfig_t known;
    long long unknown[2];
  } later = {CROSSCCL_CONFIG_INITIALIZER, {0, 0}};
  crosscclComm_t comm;
  later.known.size = sizeof later;
  OK(crosscclCommInitAllConfig(&comm, 1, NULL, &later.known));
  OK(crosscclCommDestroy(comm));
  later.unknown[1] = 1;
  REFUSED(crosscclCommInitAllConfig(&comm, 1, NULL, &later.known), "does not know");
}

static void calls(void) {
  crosscclComm_t comms[RANKS];
  crosscclStream_t stream;
  float *a = data[0], *b = data[1];
  int number;

  OK(crosscclCommInitAll(comms, RANKS, NULL));
  REFUSED(crosscclBroadcast(NULL, a, COUNT, crosscclFloat, 0, comms[0], NULL), "sendbuff of rank 0");
  REFUSED(crosscclBroadcast(a, NULL, COUNT, crosscclFloat, 0, comms[0], NULL), "recvbuff of rank 0");
  REFUSED(crosscclBroadcast(a, (char *)b + 1, COUNT, crosscclFloat, 0, comms[0], NULL), "aligned to the 4 bytes");
  REFUSED(crosscclBroadcast(a, a + 1, COUNT, crosscclFloat, 0, comms[0], NULL), "no overlap");
  REFUSED(crosscclBroadcast(a, b, (size_t)-1, crosscclFloat, 0, comms[0], NULL), "count of rank 0");
  REFUSED(crosscclBroadcast(a, b, COUNT, crosscclFloat, RANKS, comms[1], NULL), "root of rank 1: expected a rank from 0 to 1");
  REFUSED(crosscclBroadcast(a, b, COUNT, crosscclFloat, -1, comms[0], NULL), "root");
  REFUSED(crosscclBroadcast(a, b, COUNT, (crosscclDataType_t)99, 0, comms[0], NULL), "datatype");
  REFUSED(crosscclBroadcast(a, b, COUNT, (crosscclDataType_t)-1, 0, comms[0], NULL), "datatype");
  EXPECT(crosscclBroadcast(a, b, COUNT, (crosscclDataType_t)10, 0, comms[0], NULL), crosscclUnsupported, "float8 e4m3");
  REFUSED(crosscclBroadcast(a, b, COUNT, crosscclFloat, 0, comms[0], &number), "stream of rank 0");
  REFUSED(crosscclReduceScatter(a, b, COUNT, crosscclFloat, (crosscclRedOp_t)5, comms[1], NULL), "op of rank 1");
  REFUSED(crosscclReduceScatter(a, b, (size_t)-1 / 2, crosscclFloat, crosscclSum, comms[1], NULL), "recvcount of rank 1");
  REFUSED(crosscclReduceScatter(a, a + 1, COUNT, crosscclFloat, crosscclSum, comms[0], NULL), "no overlap");
  REFUSED(crosscclCommCount(comms[0], NULL), "count");
  REFUSED(crosscclCommUserRank(comms[0], NULL), "rank");
  REFUSED(crosscclCommDevice(comms[0], NULL), "device");
  REFUSED(crosscclCommBackend(comms[0], NULL), "backend");
  REFUSED(crosscclCommStream(comms[0], NULL), "stream");
  REFUSED(crosscclCommGetAsyncError(comms[0], NULL), "asyncError");
  REFUSED(crosscclCommReset(comms[0], 0), "timeout_ms");
  EXPECT(crosscclCommReset(comms[0], 10), crosscclTimeout, "rank 1");
  REFUSED(crosscclCommWait(comms[0], -1, &number), "timeout_ms");
  REFUSED(crosscclCommWait(comms[0], 0, NULL), "done");
  REFUSED(crosscclCommResetWait(comms[0], -1, &number), "timeout_ms");
  REFUSED(crosscclCommResetWait(comms[0], 0, NULL), "done");
  REFUSED(crosscclCommResetAll(comms, 1), "none of rank 1");
  REFUSED(crosscclCommResetAll(NULL, RANKS), "comms");

  /* Another rank's stream is no stream of this one's device. */
  OK(crosscclCommStream(comms[1], &stream));
  REFUSED(crosscclBroadcast(a, b, COUNT, crosscclFloat, 0, comms[0], stream), "stream of rank 0");

  /* Nothing of all that was launched. */
  for (number = 0; number < RANKS; number++) data[number][0] = (float)(number + 1);
  OK(crosscclBroadcast(a, a, COUNT, crosscclFloat, 1, comms[0], NULL));
  OK(crosscclBroadcast(b, b, COUNT, crosscclFloat, 1, comms[1], stream));
  OK(crosscclCommSynchronize(comms[0]));
  OK(crosscclCommSynchronize(comms[1]));
  if (a[0] != 2.0f) failures++;
  OK(crosscclCommDestroy(comms[0]));
  OK(crosscclCommDestroy(comms[1]));
}

static void handles(void) {
  crosscclComm_t comms[RANKS], *heap;
  int number;

  OK(crosscclCommInitAll(comms, RANKS, NULL));
  OK(crosscclCommDestroy(comms[1]));
  REFUSED(crosscclCommDestroy(comms[1]), "was not destroyed");
  REFUSED(crosscclCommCount(comms[1], &number), "was not destroyed");
  REFUSED(crosscclCommSynchronize(comms[1]), "was not destroyed");
  REFUSED(crosscclCommAbort(comms[1]), "was not destroyed");
  REFUSED(crosscclBroadcast(data[0], data[0], COUNT, crosscclFloat, 1, comms[1], NULL), "was not destroyed");
  OK(crosscclCommDestroy(comms[0]));
  REFUSED(crosscclCommDestroy(NULL), "got null");
  /* Addresses of anything else. */
  heap = malloc(sizeof *heap);
  REFUSED(crosscclCommDestroy((crosscclComm_t)(void *)heap), "was not destroyed");
  free(heap);
  REFUSED(crosscclCommDestroy((crosscclComm_t)(void *)&number), "was not destroyed");
  REFUSED(crosscclCommDestroy((crosscclComm_t)(size_t)1), "was not destroyed");
}

static void groups(void) {
  crosscclComm_t comms[RANKS];
  OK(crosscclCommInitAll(comms, RANKS, NULL));
  EXPECT(crosscclGroupEnd(), crosscclInvalidUsage, "crosscclGroupStart first");
  OK(crosscclGroupStart());
  OK(crosscclBroadcast(data[0], data[0], COUNT, crosscclFloat, 0, comms[0], NULL));
  REFUSED(crosscclBroadcast(data[1], NULL, COUNT, crosscclFloat, 0, comms[1], NULL), "recvbuff of rank 1");
  EXPECT(crosscclCommSynchronize(comms[0]), crosscclInvalidUsage, "inside a group");
  REFUSED(crosscclGroupEnd(), "recvbuff of rank 1");
  /* Rank 0's was not launched: it does not wait for rank 1. */
  OK(crosscclCommSynchronize(comms[0]));
  OK(crosscclCommDestroy(comms[0]));
  OK(crosscclCommDestroy(comms[1]));
}

static void *elsewhere(void *unused) {
  (void)unused;
  return (void *)(size_t)(strstr(crosscclGetLastError(NULL), "no call of this thread") != NULL);
}

static void texts(void) {
  pthread_t thread;
  void *answer = NULL;
  int result;
  for (result = -3; result < 200; result++) {
    if (strlen(crosscclGetErrorString((crosscclResult_t)result)) == 0) failures++;
  }
  REFUSED(crosscclGetVersion(NULL), "version");
  if (pthread_create(&thread, NULL, elsewhere, NULL) != 0 || pthread_join(thread, &answer) != 0 || answer == NULL) {
    failures++;
    fprintf(stderr, "another thread has this one's text\n");
  }
}

int main(void) {
  initialization();
  a_later_header();
  calls();
  handles();
  groups();
  texts();
  printf("misuse: %d calls, %d not as expected\n", checks, failures);
  return failures != 0 || checks < 70;
}
