// Open MPI at what benches/ratios.rs measures as "small": broadcast and reduce-scatter of 1 KiB, every call
// alone and every call with a barrier behind it. Prints lines in the columns of its section `small`.
//
//   mpicc -O2 openmpi.c -o openmpi && mpirun --oversubscribe -np 4 ./openmpi default 2000
//
// The arguments: a word for how the ranks wait (scripts/bench-cpu sets both ways), and calls a turn.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBytes = 1024, kCount = kBytes / sizeof(float), kTurns = 10 };

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void one_call(int broadcast, float* whole, float* part, int ranks) {
  if (broadcast)
    MPI_Bcast(whole, kCount, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else
    MPI_Reduce_scatter_block(whole, part, kCount / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* how = argc > 1 ? argv[1] : "default";
  const int calls = argc > 2 ? atoi(argv[2]) : 2000;
  float whole[kCount], part[kCount];

  for (int broadcast = 1; broadcast >= 0; --broadcast) {
    for (int barrier = 1; barrier >= 0; --barrier) {
      double times[kTurns];
      for (int turn = 0; turn < kTurns; ++turn) {
        // A broadcast takes rank 0's values everywhere; every rank gives the same again each turn.
        for (int i = 0; i < kCount; ++i) whole[i] = (float)(i % 97) + (float)(broadcast ? rank : 0);
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        for (int call = 0; call < calls; ++call) {
          one_call(broadcast, whole, part, ranks);
          if (barrier) MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        times[turn] = MPI_Wtime() - begin;
      }
      // A peer that moved nothing would be fast.
      int wrong = 0;
      for (int i = 0; i < (broadcast ? kCount : kCount / ranks); ++i) {
        const int at = broadcast ? i : rank * (kCount / ranks) + i;
        wrong += (broadcast ? whole[i] : part[i]) != (float)(at % 97) * (float)(broadcast ? 1 : ranks);
      }
      if (wrong) {
        fprintf(stderr, "openmpi: rank %d has %d wrong elements\n", rank, wrong);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      // The first turn sets up connections.
      qsort(times + 1, kTurns - 1, sizeof *times, by_value);
      if (rank == 0)
        printf("openmpi %s %d %d %s,%s %.2f\n", broadcast ? "broadcast" : "reduce-scatter", ranks, kBytes, how,
               barrier ? "barrier" : "alone", times[1 + (kTurns - 1) / 2] / calls * 1e6);
    }
  }
  MPI_Finalize();
  return 0;
}
