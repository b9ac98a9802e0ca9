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
 * result was right, the algorithm in use (words to the end of the line). First it writes the library's
 * version. All-gather and reduce-scatter "at once" are the non-blocking calls with one wait.
 *
 * Time: where all ranks read one clock, from when the last of them has begun until the last has ended, as
 * the benchmark times its own backends (bench/rank.py); else of each rank from its own beginning.
 *
 * With "tuned" the program looks for what is fastest with a right result before an operation and size is
 * first measured: every algorithm that Open MPI's "tuned" component has for it; those that cut messages,
 * with several segment sizes; a chain also with fewer chains. What was more than kClose times the fastest
 * is left after one run or two, what is near it runs kTrials times; the least time counts. After kBudget
 * seconds the best so far is taken. Times are agreed upon, so all ranks choose the same. (The component
 * takes the choice, control variables, when a communicator is made.) "At once" tries the non-blocking
 * calls with each of the algorithms that there are, and the two blocking calls in sequence, each with its
 * best. Without "tuned" the library chooses.
 *
 * Build: mpicc -O2 -o collectives collectives.c. Run: mpirun -np N collectives DIR [tuned]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { kNameBytes = 64, kTextBytes = 192, kTrials = 3, kMost = 128, kFanout = 4, kInnerMost = 50 };
static const double kTrialSeconds = 0.005; /* that a trial takes at least: short operations repeat */
static const double kBudget = 75; /* seconds of a search; the others of the benchmark wait */
static const double kClose = 2, kNear = 1.25;

static int rank, size, one_clock;
static int in_sequence; /* "at once" by two blocking calls */
static MPI_Comm comm;   /* with the algorithm in use */
static char algorithm[kTextBytes] = "default";

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
    return MPI_Reduce_scatter_block(b->other_whole, b->other_part, (int)b->shard, MPI_FLOAT, MPI_SUM, comm);
  if (!strcmp(op, "all_reduce"))
    return MPI_Allreduce(b->whole, b->other_whole, (int)b->items, MPI_FLOAT, MPI_SUM, comm);
  if (!strcmp(op, "barrier")) return MPI_Barrier(comm);
  if (strcmp(op, "ag_rs")) MPI_Abort(MPI_COMM_WORLD, 4);
  if (in_sequence) {
    const int code = run("all_gather", b);
    return code == MPI_SUCCESS ? run("reduce_scatter", b) : code;
  }
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

/* -- the search for the fastest choice; every rank takes the same steps ------------------------------- */

/* What an operation may run with. */
struct choice {
  int number, segment, fanout; /* the algorithm, 0: the library's; bytes, 0: whole messages; chains */
  double seconds;              /* the least so far */
};

struct search {
  const char *op;
  struct buffers *b;
  int inner, count;
  double least, start;
  struct choice tried[kMost];
};

/* Control variables are coll_KIND_algorithm and, for "tuned", ..._segmentsize and ..._chain_fanout. */
static const char *const kinds[][2] = {
    {"broadcast", "tuned_bcast"},     {"all_gather", "tuned_allgather"},
    {"barrier", "tuned_barrier"},     {"reduce_scatter", "tuned_reduce_scatter_block"},
    {"all_reduce", "tuned_allreduce"}, {"ag_rs", "libnbc_iallgather"}};
enum { kKinds = sizeof kinds / sizeof *kinds };

static const char *kind_of(const char *op) {
  for (int i = 0; i < kKinds; ++i)
    if (!strcmp(op, kinds[i][0])) return kinds[i][1];
  return "";
}

static int find(const char *kind, const char *what, int *index) {
  char variable[2 * kNameBytes];
  snprintf(variable, sizeof variable, "coll_%s_algorithm%s", kind, what);
  return MPI_T_cvar_get_index(variable, index) == MPI_SUCCESS;
}

static void set(const char *kind, const char *what, int value) {
  MPI_T_cvar_handle handle;
  int index, count;
  if (!find(kind, what, &index) || MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
    return;
  MPI_T_cvar_write(handle, &value);
  MPI_T_cvar_handle_free(&handle);
}

/* How many algorithms there are, the library's choice among them; 0: there is no such variable. */
static int names_of(const char *kind, MPI_T_enum *names) {
  int index, count, verbosity, bind, scope, name_bytes = 0, text_bytes = 0, title_bytes = kNameBytes;
  char title[kNameBytes];
  MPI_Datatype type;
  if (!find(kind, "", &index) ||
      MPI_T_cvar_get_info(index, NULL, &name_bytes, &verbosity, &type, names, NULL, &text_bytes, &bind,
                          &scope) != MPI_SUCCESS ||
      *names == MPI_T_ENUM_NULL || MPI_T_enum_get_info(*names, &count, title, &title_bytes) != MPI_SUCCESS)
    return 0;
  return count;
}

/* The name of algorithm `number`. */
static const char *name_of(const char *op, int number) {
  static char name[kNameBytes];
  MPI_T_enum names;
  const int count = names_of(kind_of(op), &names);
  for (int i = 0; i < count; ++i) {
    int value, bytes = sizeof name;
    if (MPI_T_enum_get_item(names, i, &value, name, &bytes) == MPI_SUCCESS && value == number) return name;
  }
  return "?";
}

/* A new communicator whose operations use these choices; where c is NULL, what was set before. */
static void use(const char *op, const struct choice *c) {
  if (c) {
    set(kind_of(op), "", c->number);
    set(kind_of(op), "_segmentsize", c->segment);
    set(kind_of(op), "_chain_fanout", c->fanout);
  }
  if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

/* By rank 0's clock. */
static int over(const struct search *s) {
  double spent = now() - s->start;
  MPI_Bcast(&spent, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return spent > kBudget;
}

/* One more trial, of which the first checks the result; 0: an error or a wrong result. */
static int trial(struct search *s, struct choice *c) {
  if (s->inner > 1) measure(s->op, s->b, 1, 0); /* opens connections */
  const struct timing t = measure(s->op, s->b, s->inner, c->seconds == 0);
  if (!t.good) return 0;
  if (c->seconds == 0 || t.seconds < c->seconds) c->seconds = t.seconds;
  if (s->least == 0 || c->seconds < s->least) s->least = c->seconds;
  return 1;
}

static void attempt(struct search *s, int number, int segment, int fanout) {
  if (s->count == kMost || over(s)) return;
  struct choice *c = &s->tried[s->count];
  *c = (struct choice){number, segment, fanout, 0};
  use(s->op, c);
  if (trial(s, c)) ++s->count;
}

/* Those that cut messages into segments. */
static int segments(const char *name) {
  static const char *const cutting[] = {"chain",    "pipeline", "split_binary_tree", "binary_tree",
                                        "binomial", "knomial",  "segmented_ring"};
  for (size_t i = 0; i < sizeof cutting / sizeof *cutting; ++i)
    if (!strcmp(name, cutting[i])) return 1;
  return 0;
}

static const int cuts[] = {16 << 10, 64 << 10, 256 << 10, 1 << 20};
enum { kCuts = sizeof cuts / sizeof *cuts };

/* The segment to begin with: about a thirtieth of the message or more. 0: it is too short to be cut. */
static int first_segment(long bytes) {
  int best = bytes > cuts[0] ? cuts[0] : 0;
  for (int i = 1; i < kCuts - 1; ++i)
    if (cuts[i] * 16L <= bytes) best = cuts[i];
  return best;
}

/* The other segments, and fewer chains, of what came near. */
static void refine(struct search *s) {
  const long bytes = s->b->items * 4L;
  const int first = first_segment(bytes), count = s->count;
  for (int at = 0; at < count; ++at) {
    const struct choice c = s->tried[at];
    const int chain = !strcmp(name_of(s->op, c.number), "chain");
    if (c.segment == 0 || c.seconds > kClose * s->least) continue;
    for (int i = 0; i < kCuts; ++i)
      if (cuts[i] != first && cuts[i] < bytes) attempt(s, c.number, cuts[i], c.fanout);
    if (chain) attempt(s, c.number, first, kFanout / 2);
  }
}

/* The fastest choice, which is in use when this returns; `inner`: operations of each of its trials. */
static struct choice tune(const char *op, struct buffers *b, int *inner) {
  struct search s = {.op = op, .b = b, .inner = 1, .start = now()};
  const int first = first_segment(b->items * 4L);
  MPI_T_enum names;
  const int count = names_of(kind_of(op), &names);
  struct choice best = {0, 0, kFanout, 0};
  use(op, &best);
  measure(op, b, 1, 0);
  attempt(&s, 0, 0, kFanout);
  if (s.least > 0 && s.least < kTrialSeconds / 2) {
    const double fits = kTrialSeconds / s.least;
    s.inner = fits < kInnerMost ? (int)fits : kInnerMost;
    s.count = 0, s.least = 0;
    attempt(&s, 0, 0, kFanout);
  }
  for (int i = 0; i < count; ++i) {
    char name[kNameBytes];
    int number, bytes = sizeof name;
    if (MPI_T_enum_get_item(names, i, &number, name, &bytes) != MPI_SUCCESS || number == 0) continue;
    attempt(&s, number, 0, kFanout);
    if (segments(name) && first) attempt(&s, number, first, kFanout);
  }
  refine(&s);
  for (int at = 0; at < s.count; ++at) {
    struct choice *c = &s.tried[at];
    if (c->seconds > kNear * s.least) continue;
    use(op, c);
    for (int i = 1; i < kTrials && !over(&s); ++i)
      if (!trial(&s, c)) {
        c->seconds = 1e9;
        break;
      }
  }
  for (int at = 0; at < s.count; ++at)
    if (best.seconds == 0 || s.tried[at].seconds < best.seconds) best = s.tried[at];
  use(op, &best);
  *inner = s.inner;
  return best;
}

/* What a choice is called: "pipeline, segment 64K". */
static void describe(char *text, size_t bytes, const char *op, const struct choice *c) {
  char segment[32] = "", chains[32] = "";
  const char *name = c->number ? name_of(op, c->number) : "its own choice";
  if (c->segment) snprintf(segment, sizeof segment, ", segment %dK", c->segment >> 10);
  if (!strcmp(name, "chain")) snprintf(chains, sizeof chains, ", %d chains", c->fanout);
  snprintf(text, bytes, "%s%s%s", name, segment, chains);
}

/* "At once": the better of both calls begun together and one after the other. */
static void tune_pair(struct buffers *b) {
  char parts[2][kTextBytes / 3], together[kTextBytes / 3];
  int inner;
  const struct choice gather = tune("all_gather", b, &inner);
  const struct choice reduce = tune("reduce_scatter", b, &inner);
  describe(parts[0], sizeof parts[0], "all_gather", &gather);
  describe(parts[1], sizeof parts[1], "reduce_scatter", &reduce);
  const struct choice at_once = tune("ag_rs", b, &inner);
  describe(together, sizeof together, "ag_rs", &at_once);
  struct search s = {.op = "ag_rs", .b = b, .inner = inner, .start = now()};
  struct choice sequence = {0, 0, 0, 0};
  in_sequence = 1;
  measure("ag_rs", b, 1, 0);
  for (int i = 0; i < kTrials && (i == 0 || !over(&s)); ++i)
    if (!trial(&s, &sequence)) {
      sequence.seconds = 1e9;
      break;
    }
  in_sequence = sequence.seconds < at_once.seconds || at_once.seconds == 0;
  if (in_sequence)
    snprintf(algorithm, sizeof algorithm, "in sequence: %s + %s", parts[0], parts[1]);
  else
    snprintf(algorithm, sizeof algorithm, "at once: %s", together);
}

static void tune_case(const char *op, struct buffers *b) {
  for (int i = 0; i < kKinds; ++i) {
    set(kinds[i][1], "", 0);
    set(kinds[i][1], "_segmentsize", 0);
    set(kinds[i][1], "_chain_fanout", kFanout);
  }
  in_sequence = 0;
  if (!strcmp(op, "ag_rs")) {
    tune_pair(b);
  } else {
    int inner;
    const struct choice best = tune(op, b, &inner);
    describe(algorithm, sizeof algorithm, op, &best);
  }
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
      if (tuned) tune_case(op, &b);
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
