// Open MPI at what benches/ratios.rs measures as "small" and "sizes": broadcast and reduce-scatter of 1 KiB, every call
// alone and every call with a barrier behind it; of more bytes with the barrier alone. Prints lines in the columns of those
// sections.
//
//   mpicc -O2 openmpi.c -o openmpi && mpirun --oversubscribe -np 4 ./openmpi default 2000
//
// The arguments: a word for how the ranks wait (scripts/bench-cpu sets both ways), calls a turn of up to 16 KiB, and the
// most bytes, 1024 unless given: sizes go up to it by fours.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLeast = 1024, kFewer = 16384, kTurns = 10 };

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void one_call(int broadcast, float* whole, float* part, size_t count, int ranks) {
  if (broadcast)
    MPI_Bcast(whole, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else
    MPI_Reduce_scatter_block(whole, part, (int)count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void measure(const char* how, int most_calls, size_t bytes, int broadcast, int barrier, int rank, int ranks) {
  const size_t count = bytes / sizeof(float), mine = count / (size_t)ranks;
  // As ratios.rs counts them.
  int calls = bytes <= kFewer ? most_calls : (int)((size_t)most_calls * kFewer / bytes);
  if (calls < 2) calls = 2;
  const int turns = bytes <= kLeast ? kTurns : 6;
  float* whole = malloc(bytes);
  float* part = malloc(mine * sizeof(float));
  if (!whole || !part) MPI_Abort(MPI_COMM_WORLD, 1);
  double times[kTurns];
  for (int turn = 0; turn < turns; ++turn) {
    // A broadcast takes rank 0's values everywhere; every rank gives the same again each turn.
    for (size_t i = 0; i < count; ++i) whole[i] = (float)(i % 97) + (float)(broadcast ? rank : 0);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int call = 0; call < calls; ++call) {
      one_call(broadcast, whole, part, count, ranks);
      if (barrier) MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    times[turn] = MPI_Wtime() - begin;
  }
  // A peer that moved nothing would be fast.
  size_t wrong = 0;
  for (size_t i = 0; i < (broadcast ? count : mine); ++i) {
    const size_t at = broadcast ? i : (size_t)rank * mine + i;
    wrong += (broadcast ? whole[i] : part[i]) != (float)(at % 97) * (float)(broadcast ? 1 : ranks);
  }
  if (wrong) {
    fprintf(stderr, "openmpi: rank %d has %zu wrong elements of %zu bytes\n", rank, wrong, bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  // The first turn sets up connections.
  qsort(times + 1, (size_t)turns - 1, sizeof *times, by_value);
  if (rank == 0)
    printf("openmpi %s %d %zu %s,%s %.2f\n", broadcast ? "broadcast" : "reduce-scatter", ranks, bytes, how,
           barrier ? "barrier" : "alone", times[1 + (turns - 1) / 2] / calls * 1e6);
  fflush(stdout);
  free(whole);
  free(part);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* how = argc > 1 ? argv[1] : "default";
  const int calls = argc > 2 ? atoi(argv[2]) : 2000;
  const size_t most = argc > 3 ? strtoull(argv[3], NULL, 10) : kLeast;
  for (int broadcast = 1; broadcast >= 0; --broadcast)
    for (size_t bytes = kLeast; bytes <= most; bytes *= 4)
      for (int barrier = 1; barrier >= (bytes == kLeast && argc <= 3 ? 0 : 1); --barrier)
        measure(how, calls, bytes, broadcast, barrier, rank, ranks);
  MPI_Finalize();
  return 0;
}
