// Runs collectives over the engine between machines and checks every byte. The virtual machines of
// the lab run it to test the verbs transport (and, with MCAST_TRANSPORT=udp, the UDP transport).
// Ranks find each other through files in a folder that all machines share.
//
//   mcast_verbs_driver check [BYTES...]   broadcast, all_gather, reduce_scatter of each size
//   mcast_verbs_driver until-lost         broadcasts until a rank is lost; its error must name it
//   mcast_verbs_driver bench [BYTES [N]]  broadcasts, messages per second, CPU per chunk
//
// RANK, WORLD_SIZE as torchrun sets them; MCAST_VM_SHARE: the folder; MCAST_*: settings;
// DRIVER_TIMEOUT: seconds to make the group, and for each operation. Results are lines "name=value"
// on standard output; the exit code is 0 if all checks passed.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "runtime/engine.h"

namespace mcast {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A value is a file that is written under another name and renamed.
class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(fs::path folder) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
  }
  Status set(const std::string& key, const std::string& value) override {
    const fs::path to = path(key), part = to.string() + "." + std::to_string(::getpid());
    std::ofstream(part, std::ios::binary) << value;
    std::error_code error;
    fs::rename(part, to, error);
    return error ? Status(Code::kSystem, "rename " + to.string() + ": " + error.message())
                 : Status();
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    const auto until = Clock::now() + std::chrono::nanoseconds(timeout);
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      while (!fs::exists(path(key))) {
        if (Clock::now() > until) return Status(Code::kTimeout, "no value of " + key);
        // A folder shared over 9p has no notification.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      std::ifstream file(path(key), std::ios::binary);
      values.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return values;
  }

 private:
  fs::path path(std::string key) const {
    for (char& c : key) c = c == '/' ? '_' : c;
    return folder_ / key;
  }
  fs::path folder_;
};

uint32_t env_number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : 0;
}

Nanos limit(uint32_t seconds) {
  const uint32_t given = env_number("DRIVER_TIMEOUT");
  return (given > 0 ? given : seconds) * kSecond;
}

struct Job {
  std::shared_ptr<Group> group;
  uint32_t rank = 0, size = 0;
  int failures = 0;
  void expect(bool good, const std::string& what) {
    if (good) return;
    failures++;
    std::printf("FAILED %s\n", what.c_str());
  }
};

using Bytes8 = std::vector<std::byte>;

Bytes8 pattern(size_t size, uint64_t seed) {
  Bytes8 out(size);
  Rng rng(seed);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.next() >> 24);
  return out;
}

Slice slice(Bytes8& memory, size_t offset, size_t length) {
  if (memory.empty()) return {};
  return {std::make_shared<Region>(memory.data(), memory.size(), nullptr), offset, length};
}

// Posts and waits.
template <typename Post>
Status run(Post&& post) {
  auto done = std::make_shared<std::promise<Status>>();
  auto future = done->get_future();
  PostOptions options;
  options.label.name = "driver";
  options.timeout = limit(240);
  options.done = [done](const Status& s) { done->set_value(s); };
  const auto posted = post(std::move(options));
  if (!posted.ok()) return posted.status();
  return future.get();
}

void check_broadcast(Job& job, size_t size, Member root) {
  const Bytes8 want = pattern(size, 11 * size + root);
  Bytes8 memory = job.rank == root ? want : Bytes8(size, std::byte{0xee});
  const Status s = run([&](PostOptions o) {
    return job.group->post_broadcast(slice(memory, 0, size), root, std::move(o));
  });
  job.expect(s.ok(), "broadcast of " + std::to_string(size) + ": " + s.to_string());
  job.expect(memory == want, "bytes of the broadcast of " + std::to_string(size));
}

void check_all_gather(Job& job, size_t size) {
  Bytes8 memory(size * job.size, std::byte{0xee}), want;
  for (uint32_t r = 0; r < job.size; r++) {
    const Bytes8 part = pattern(size, 7 * size + r);
    want.insert(want.end(), part.begin(), part.end());
  }
  std::copy_n(want.begin() + static_cast<std::ptrdiff_t>(job.rank * size), size,
              memory.begin() + static_cast<std::ptrdiff_t>(job.rank * size));
  auto region =
      memory.empty() ? nullptr : std::make_shared<Region>(memory.data(), memory.size(), nullptr);
  std::vector<Slice> outputs;
  for (uint32_t r = 0; r < job.size; r++) outputs.push_back({region, r * size, size});
  const Slice input = outputs[job.rank];
  const Status s =
      run([&](PostOptions o) { return job.group->post_allgather(input, outputs, std::move(o)); });
  job.expect(s.ok(), "all_gather of " + std::to_string(size) + ": " + s.to_string());
  job.expect(memory == want, "bytes of the all_gather of " + std::to_string(size));
}

void check_reduce_scatter(Job& job, size_t size) {
  const size_t count = size / sizeof(uint32_t);
  const auto value = [&](uint32_t from, uint32_t to, size_t i) {
    return static_cast<uint32_t>(i * 2654435761u + from * 40503u + to);
  };
  size = count * sizeof(uint32_t);
  Bytes8 inputs(size * job.size), output(size, std::byte{0xee});
  for (uint32_t to = 0; to < job.size; to++) {
    for (size_t i = 0; i < count; i++) {
      const uint32_t v = value(job.rank, to, i);
      std::memcpy(inputs.data() + to * size + i * sizeof v, &v, sizeof v);
    }
  }
  auto region =
      inputs.empty() ? nullptr : std::make_shared<Region>(inputs.data(), inputs.size(), nullptr);
  std::vector<Slice> parts;
  for (uint32_t r = 0; r < job.size; r++) parts.push_back({region, r * size, size});
  const Status s = run([&](PostOptions o) {
    return job.group->post_reduce_scatter(parts, slice(output, 0, size),
                                          {Element::kInt32, Reduction::kSum, 1}, std::move(o));
  });
  job.expect(s.ok(), "reduce_scatter of " + std::to_string(size) + ": " + s.to_string());
  for (size_t i = 0; i < count; i++) {
    uint32_t want = 0, got = 0;
    for (uint32_t from = 0; from < job.size; from++) want += value(from, job.rank, i);
    std::memcpy(&got, output.data() + i * sizeof got, sizeof got);
    if (got == want) continue;
    job.expect(false, "element " + std::to_string(i) + " of the reduce_scatter of " +
                          std::to_string(size));
    break;
  }
}

void check(Job& job, const std::vector<size_t>& sizes) {
  for (const size_t size : sizes) {
    check_broadcast(job, size, 0);
    check_broadcast(job, size, static_cast<Member>(job.size - 1));
    check_all_gather(job, size);
    check_reduce_scatter(job, size);
    std::printf("checked=%zu\n", size);
    std::fflush(stdout);
  }
}

void until_lost(Job& job) {
  Bytes8 memory = pattern(1 << 20, 5);
  const auto begin = Clock::now();
  for (int round = 0; Clock::now() - begin < std::chrono::seconds(120); round++) {
    const auto start = Clock::now();
    const Status s = run([&](PostOptions o) {
      return job.group->post_broadcast(slice(memory, 0, memory.size()), 0, std::move(o));
    });
    if (s.ok()) {
      if (round == 2) std::printf("under way\n");
      std::fflush(stdout);
      continue;
    }
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("error=%s\nerror_after=%.1f\n", s.to_string().c_str(), took);
    const std::string lost = "rank " + std::to_string(job.size - 1);
    job.expect(s.code() == Code::kPeerLost && s.message().find(lost) != std::string::npos,
               "the error names " + lost);
    return;
  }
  job.expect(false, "a rank was to be lost");
}

void bench(Job& job, size_t size, int rounds) {
  const auto cpu = [] {
    rusage u{};
    ::getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  };
  Bytes8 memory = pattern(size, 5);
  const auto begin = Clock::now();
  const double before = cpu();
  for (int i = 0; i < rounds; i++) {
    const Status s = run([&](PostOptions o) {
      return job.group->post_broadcast(slice(memory, 0, size), 0, std::move(o));
    });
    job.expect(s.ok(), s.to_string());
  }
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  const size_t chunk = job.group->stats().chunk;
  const double chunks = static_cast<double>((size + chunk - 1) / chunk) * rounds;
  std::printf(
      "seconds=%.3f\nmegabytes_per_s=%.2f\nchunk=%zu\nchunks_per_s=%.0f\ncpu_us_per_chunk=%.2f\n",
      took, static_cast<double>(size) * rounds / took / 1e6, chunk, chunks / took,
      (cpu() - before) / chunks * 1e6);
}

void print_device_counters() {
  std::error_code none;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& file : fs::directory_iterator(device.path() / "ports/1/hw_counters", none)) {
      std::ifstream in(file.path());
      std::string value;
      if (in >> value) std::printf("device_%s=%s\n", file.path().filename().c_str(), value.c_str());
    }
  }
}

int drive(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  std::vector<size_t> sizes;
  for (int i = 2; i < argc; i++) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  Job job;
  job.rank = env_number("RANK");
  job.size = env_number("WORLD_SIZE");
  const char* const share = std::getenv("MCAST_VM_SHARE");
  FileStore store(fs::path(share != nullptr ? share : "/tmp/mcast-verbs-driver") / "store");
  auto config = Config::resolve({}, Config::read_environment());
  if (!config.ok()) {
    std::printf("FAILED %s\n", config.status().to_string().c_str());
    return 2;
  }
  GroupSpec spec;
  spec.name = "driver";
  spec.rank = static_cast<Member>(job.rank);
  spec.size = job.size;
  spec.config = *config;
  spec.timeout = limit(60);
  auto made = Engine::instance().create_group(spec, store);
  if (!made.ok()) {
    std::printf("FAILED %s\n", made.status().to_string().c_str());
    return 1;
  }
  job.group = *made;
  if (mode == "check") {
    if (sizes.empty()) sizes = {0, 1, 1000, 65536, 1000003, 8u << 20};
    check(job, sizes);
  } else if (mode == "until-lost") {
    until_lost(job);
  } else if (mode == "bench") {
    bench(job, sizes.empty() ? 4u << 20 : sizes[0],
          sizes.size() > 1 ? static_cast<int>(sizes[1]) : 4);
  } else {
    std::printf("FAILED unknown mode %s\n", mode.c_str());
    return 2;
  }
  const GroupStats stats = job.group->stats();
  std::printf("path=%s\nreason=%s\ntransport=%s\ntransport_reason=%s\n", stats.path.c_str(),
              stats.reason.c_str(), stats.transport.c_str(), stats.transport_reason.c_str());
  for (const auto& [name, value] : stats.counters) {
    std::printf("%s=%llu\n", name, static_cast<unsigned long long>(value));
  }
  job.group.reset();
  Engine::instance().shutdown();
  print_device_counters();
  std::printf("failures=%d\n", job.failures);
  return job.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mcast

int main(int argc, char** argv) { return mcast::drive(argc, argv); }
