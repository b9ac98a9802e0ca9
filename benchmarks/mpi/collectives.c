/* Collectives of an MPI library, measured one at a time on command.
 *
 * Every rank reads commands from a FIFO of its own, DIR/command.RANK, so that an idle rank sleeps in
 * read() instead of spinning in MPI while other libraries are measured. A command is one line:
 *     OP BYTES INNER CHECK
 * OP: broadcast all_gather reduce_scatter all_reduce ag_rs barrier quit; BYTES: the larger of one rank's
 * input and output, a multiple of 4 x ranks; INNER: operations per timing; CHECK: 1 = spoil the outputs
 * before, compare them after. Rank 0 answers in DIR/answer with a line
 *     SECONDS CPU_SECONDS RIGHT ALGORITHM
 * seconds per operation of the slowest rank, CPU seconds per operation of all ranks, 1 if every rank's
 * result was right, the algorithm in use. First it writes the library's version. All-gather and
 * reduce-scatter "at once" are the non-blocking calls with one wait.
 *
 * Time: where all ranks read one clock, from when the last of them has begun until the last has ended, as
 * the benchmark times its own backends (bench/rank.py); else of each rank from its own beginning.
 *
 * With "tuned" the program tries every algorithm that Open MPI's "tuned" component has for an operation
 * and size, before it is first measured, and keeps the one that was fastest with a right result. (The
 * component takes the choice, a control variable, when a communicator is made.) Without it the library
 * chooses.
 *
 * Build: mpicc -O2 -o collectives collectives.c. Run: mpirun -np N collectives DIR [tuned]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { kNameBytes = 64, kTrials = 3 };
static const double kTrialSeconds = 0.2; /* of an algorithm, beyond which one trial is enough */

static int rank, size, one_clock;
static MPI_Comm comm;                      /* with the algorithm in use */
static char algorithm[kNameBytes] = "default";

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + 1e-9 * at.tv_nsec;
}

/* Processes that see the same boot id read the same monotonic clock. */
static int share_clock(void) {
  char id[40] = "", first[40];
  int same, all;
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (file) {
    if (!fgets(id, sizeof id, file)) id[0] = 0;
    fclose(file);
  }
  memcpy(first, id, sizeof id);
  MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
  same = id[0] && !strcmp(first, id);
  MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all;
}

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

/* An MPI error code. */
static int run(const char *op, struct buffers *b) {
  if (!strcmp(op, "broadcast")) return MPI_Bcast(b->whole, (int)b->items, MPI_FLOAT, 0, comm);
  if (!strcmp(op, "all_gather"))
    return MPI_Allgather(b->part, (int)b->shard, MPI_FLOAT, b->whole, (int)b->shard, MPI_FLOAT, comm);
  if (!strcmp(op, "reduce_scatter"))
    return MPI_Reduce_scatter_block(b->whole, b->other_part, (int)b->shard, MPI_FLOAT, MPI_SUM, comm);
  if (!strcmp(op, "all_reduce"))
    return MPI_Allreduce(b->whole, b->other_whole, (int)b->items, MPI_FLOAT, MPI_SUM, comm);
  if (!strcmp(op, "barrier")) return MPI_Barrier(comm);
  if (strcmp(op, "ag_rs")) MPI_Abort(MPI_COMM_WORLD, 4);
  MPI_Request both[2];
  MPI_Iallgather(b->part, (int)b->shard, MPI_FLOAT, b->whole, (int)b->shard, MPI_FLOAT, comm, &both[0]);
  MPI_Ireduce_scatter_block(b->other_whole, b->other_part, (int)b->shard, MPI_FLOAT, MPI_SUM, comm,
                            &both[1]);
  return MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
}

/* Values that no operation leaves, where results are to be. */
static void spoil(const char *op, struct buffers *b) {
  const int gathers = !strcmp(op, "all_gather") || !strcmp(op, "ag_rs");
  if (gathers || (!strcmp(op, "broadcast") && rank != 0))
    memset(b->whole, 0xff, b->items * sizeof(float));
  if (!strcmp(op, "all_reduce")) memset(b->other_whole, 0xff, b->items * sizeof(float));
  memset(b->other_part, 0xff, b->shard * sizeof(float));
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
    return reduced(b->other_part, b);
  } else if (!strcmp(op, "all_reduce")) {
    for (long i = 0; i < b->items; ++i)
      if (b->other_whole[i] != sum(i)) return 0;
  } else if (!strcmp(op, "ag_rs")) {
    return gathered(b) && reduced(b->other_part, b);
  }
  return 1;
}

struct timing {
  double seconds, cpu;
  int good; /* no rank had an error or a wrong result */
};

static struct timing measure(const char *op, struct buffers *b, int inner, int check) {
  if (check) spoil(op, b);
  MPI_Barrier(MPI_COMM_WORLD);
  double cpu = cpu_seconds(), start = now();
  int good = 1;
  for (int i = 0; i < inner; ++i) good = run(op, b) == MPI_SUCCESS && good;
  double end = now();
  if (check) good = good && right(op, b);
  cpu = (cpu_seconds() - cpu) / inner;
  /* The last beginning, the last end, and the longest time by a rank's own clock. */
  double mine[3] = {start, end, end - start}, most[3];
  struct timing out;
  MPI_Allreduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(&cpu, &out.cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&good, &out.good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  double taken = one_clock ? most[1] - most[0] : most[2];
  out.seconds = (taken > 0 ? taken : 0) / inner;
  return out;
}

/* A communicator whose operations use algorithm `number` of this kind; 0: the library's choice. */
static void choose(MPI_T_cvar_handle handle, int number) {
  MPI_T_cvar_write(handle, &number);
  if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

/* The control variable for an operation's algorithm, and what its values are called. */
static int find_choice(const char *op, MPI_T_cvar_handle *handle, MPI_T_enum *names) {
  const char *kinds[][2] = {{"broadcast", "bcast"}, {"all_gather", "allgather"}, {"barrier", "barrier"},
                            {"reduce_scatter", "reduce_scatter_block"}, {"all_reduce", "allreduce"}};
  char variable[kNameBytes] = "";
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
    if (!strcmp(op, kinds[i][0]))
      snprintf(variable, sizeof variable, "coll_tuned_%s_algorithm", kinds[i][1]);
  int index, count, verbosity, bind, scope, name_bytes = 0, text_bytes = 0;
  MPI_Datatype type;
  return variable[0] && MPI_T_cvar_get_index(variable, &index) == MPI_SUCCESS &&
         MPI_T_cvar_get_info(index, NULL, &name_bytes, &verbosity, &type, names, NULL, &text_bytes, &bind,
                             &scope) == MPI_SUCCESS &&
         *names != MPI_T_ENUM_NULL && MPI_T_cvar_handle_alloc(index, NULL, handle, &count) == MPI_SUCCESS;
}

static void tune(const char *op, struct buffers *b) {
  MPI_T_cvar_handle handle;
  MPI_T_enum names;
  snprintf(algorithm, sizeof algorithm, "default");
  if (!find_choice(op, &handle, &names)) return;
  char title[kNameBytes];
  int count, bytes = sizeof title, best = 0;
  double least = 0;
  MPI_T_enum_get_info(names, &count, title, &bytes);
  for (int number = 0; number < count; ++number) {
    choose(handle, number);
    double seconds = 0, spent = 0;
    int good = 1;
    for (int trial = 0; trial < kTrials && good && spent < kTrialSeconds; ++trial) {
      struct timing t = measure(op, b, 1, 1);
      good = t.good;
      spent += t.seconds;
      if (trial == 0 || t.seconds < seconds) seconds = t.seconds;
    }
    if (good && (number == 0 || seconds < least)) best = number, least = seconds;
  }
  choose(handle, best);
  int value;
  bytes = sizeof algorithm;
  MPI_T_enum_get_item(names, best, &value, algorithm, &bytes);
  if (best == 0) snprintf(algorithm, sizeof algorithm, "default");
  MPI_T_cvar_handle_free(&handle);
}

static FILE *open_fifo(const char *folder, const char *name, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, mode);
  if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
  return file;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  comm = MPI_COMM_WORLD;
  char name[32], line[256], op[32], filled[32] = "";
  int provided;
  const int tuned = argc == 3 && !strcmp(argv[2], "tuned");
  if (argc != 2 && !tuned) MPI_Abort(MPI_COMM_WORLD, 2);
  snprintf(name, sizeof name, "command.%d", rank);
  FILE *commands = open_fifo(argv[1], name, "r"), *answer = NULL;
  if (rank == 0) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    answer = open_fifo(argv[1], "answer", "w");
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    fprintf(answer, "%s\n", version);
    fflush(answer);
  }
  one_clock = share_clock();
  if (tuned) MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  struct buffers b = {NULL, NULL, NULL, NULL, -1, 0};
  while (fgets(line, sizeof line, commands)) {
    long bytes;
    int inner, check;
    if (sscanf(line, "%31s %ld %d %d", op, &bytes, &inner, &check) != 4) break;
    if (!strcmp(op, "quit")) break;
    if (bytes / 4 != b.items || strcmp(op, filled)) {
      free(b.whole), free(b.part), free(b.other_whole), free(b.other_part);
      b.items = bytes / 4, b.shard = b.items / size;
      b.whole = allocate(b.items), b.other_whole = allocate(b.items);
      b.part = allocate(b.shard), b.other_part = allocate(b.shard);
      fill(&b, op);
      snprintf(filled, sizeof filled, "%s", op);
      if (tuned) tune(op, &b);
    }
    struct timing t = measure(op, &b, inner, check);
    if (rank == 0) {
      fprintf(answer, "%.9f %.9f %d %s\n", t.seconds, t.cpu, t.good, algorithm);
      fflush(answer);
    }
  }
  if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
  if (tuned) MPI_T_finalize(); /* Open MPI 4.1 crashes where it comes after MPI_Finalize */
  MPI_Finalize();
  return 0;
}
