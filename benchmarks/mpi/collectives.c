/* Collectives of an MPI library, measured one at a time on command.
 *
 * Every rank reads commands from a FIFO of its own, DIR/command.RANK, so that an idle rank sleeps in
 * read() instead of spinning in MPI while other libraries are measured. A command is one line:
 *     OP BYTES INNER CHECK
 * OP: broadcast all_gather reduce_scatter all_reduce ag_rs barrier quit; BYTES: the larger of one rank's
 * input and output, a multiple of 4 x ranks; INNER: operations per timing; CHECK: 1 = compare the
 * result. Rank 0 answers in DIR/answer with a line "SECONDS CPU_SECONDS RIGHT": seconds per operation
 * of the slowest rank, CPU seconds per operation of all ranks, 1 if every rank's result was right.
 * First it writes the library's version. All-gather and reduce-scatter "at once" are the non-blocking
 * calls with one wait.
 *
 * Build: mpicc -O2 -o collectives collectives.c. Run: mpirun -np N collectives DIR
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static int rank, size;

static double cpu_seconds(void) {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  return use.ru_utime.tv_sec + use.ru_stime.tv_sec +
         1e-6 * (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* Small whole numbers: sums over ranks are exact. */
static float value(long place, int of_rank) { return (float)((place * 7 + of_rank * 13) % 251); }

static float sum(long place) {
  float total = 0;
  for (int r = 0; r < size; ++r) total += value(place, r);
  return total;
}

struct buffers {
  float *whole, *part, *other_whole, *other_part;
  long items, shard;
};

static float *allocate(long count) {
  float *memory = malloc(count > 0 ? (size_t)count * sizeof(float) : sizeof(float));
  if (!memory) MPI_Abort(MPI_COMM_WORLD, 3);
  return memory;
}

static void fill(struct buffers *b, const char *op) {
  int gathers = !strcmp(op, "all_gather") || !strcmp(op, "ag_rs");
  for (long i = 0; i < b->items; ++i) {
    b->whole[i] = gathers ? 0 : value(i, rank);
    b->other_whole[i] = value(i, rank);
  }
  if (!strcmp(op, "broadcast") && rank != 0) memset(b->whole, 0, b->items * sizeof(float));
  for (long i = 0; i < b->shard; ++i) b->part[i] = value(i, rank);
}

static int run(const char *op, struct buffers *b) {
  if (!strcmp(op, "broadcast")) {
    MPI_Bcast(b->whole, (int)b->items, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (!strcmp(op, "all_gather")) {
    MPI_Allgather(b->part, (int)b->shard, MPI_FLOAT, b->whole, (int)b->shard, MPI_FLOAT,
                  MPI_COMM_WORLD);
  } else if (!strcmp(op, "reduce_scatter")) {
    MPI_Reduce_scatter_block(b->whole, b->part, (int)b->shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (!strcmp(op, "all_reduce")) {
    MPI_Allreduce(b->whole, b->other_whole, (int)b->items, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (!strcmp(op, "ag_rs")) {
    MPI_Request both[2];
    MPI_Iallgather(b->part, (int)b->shard, MPI_FLOAT, b->whole, (int)b->shard, MPI_FLOAT,
                   MPI_COMM_WORLD, &both[0]);
    MPI_Ireduce_scatter_block(b->other_whole, b->other_part, (int)b->shard, MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD, &both[1]);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  } else if (!strcmp(op, "barrier")) {
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    return 0;
  }
  return 1;
}

static int gathered(const struct buffers *b) {
  for (long i = 0; i < b->items; ++i)
    if (b->whole[i] != value(i % b->shard, (int)(i / b->shard))) return 0;
  return 1;
}

static int reduced(const float *part, const struct buffers *b) {
  for (long i = 0; i < b->shard; ++i)
    if (part[i] != sum(rank * b->shard + i)) return 0;
  return 1;
}

static int right(const char *op, const struct buffers *b) {
  if (!strcmp(op, "broadcast")) {
    for (long i = 0; i < b->items; ++i)
      if (b->whole[i] != value(i, 0)) return 0;
  } else if (!strcmp(op, "all_gather")) {
    return gathered(b);
  } else if (!strcmp(op, "reduce_scatter")) {
    return reduced(b->part, b);
  } else if (!strcmp(op, "all_reduce")) {
    for (long i = 0; i < b->items; ++i)
      if (b->other_whole[i] != sum(i)) return 0;
  } else if (!strcmp(op, "ag_rs")) {
    return gathered(b) && reduced(b->other_part, b);
  }
  return 1;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char path[4096], line[256], op[32];
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  snprintf(path, sizeof path, "%s/command.%d", argv[1], rank);
  FILE *commands = fopen(path, "r");
  FILE *answer = NULL;
  if (!commands) MPI_Abort(MPI_COMM_WORLD, 2);
  if (rank == 0) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    snprintf(path, sizeof path, "%s/answer", argv[1]);
    answer = fopen(path, "w");
    if (!answer) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    fprintf(answer, "%s\n", version);
    fflush(answer);
  }
  struct buffers b = {NULL, NULL, NULL, NULL, -1, 0};
  char filled[32] = "";
  while (fgets(line, sizeof line, commands)) {
    long bytes;
    int inner, check, ok = 1;
    if (sscanf(line, "%31s %ld %d %d", op, &bytes, &inner, &check) != 4) break;
    if (!strcmp(op, "quit")) break;
    if (bytes / 4 != b.items || strcmp(op, filled)) {
      free(b.whole), free(b.part), free(b.other_whole), free(b.other_part);
      b.items = bytes / 4, b.shard = b.items / size;
      b.whole = allocate(b.items), b.other_whole = allocate(b.items);
      b.part = allocate(b.shard), b.other_part = allocate(b.shard);
      fill(&b, op);
      snprintf(filled, sizeof filled, "%s", op);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = cpu_seconds(), start = MPI_Wtime();
    for (int i = 0; i < inner; ++i)
      if (!run(op, &b)) MPI_Abort(MPI_COMM_WORLD, 4);
    double mine[2] = {(MPI_Wtime() - start) / inner, (cpu_seconds() - cpu) / inner};
    if (check) ok = right(op, &b);
    double slowest, all_cpu;
    int all_ok;
    MPI_Reduce(&mine[0], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine[1], &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      fprintf(answer, "%.9f %.9f %d\n", slowest, all_cpu, all_ok);
      fflush(answer);
    }
  }
  MPI_Finalize();
  return 0;
}
