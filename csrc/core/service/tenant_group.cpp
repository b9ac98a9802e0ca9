// A record's runs are laid out as slices of arenas, each held against the arena's size. The group
// checks the call again, as it would a script's. Its own sequence must be the record's: a client
// that counts otherwise would match other ranks' operations with the wrong ones of its own.
//
// Names of operations must live as long as the process: those that torch has are few, so the first
// ones are kept and further ones are all called "operation".
#include "service/tenant_group.h"

#include <utility>

namespace mcast::service {
namespace {

constexpr size_t kMostNames = 64;

const char* kept_name(const std::string& name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  const std::lock_guard<std::mutex> held(mutex);
  if (const auto it = names.find(name); it != names.end()) return it->c_str();
  return names.size() < kMostNames ? names.insert(name).first->c_str() : "operation";
}

// How long before `done`.
Nanos before(Nanos moment, Nanos done) {
  return moment == kNever ? kNever : std::max<Nanos>(done - moment, 0);
}

// The slices of a run. False: it lies beside its arena, or in none.
bool lay_out(const ipc::SliceRun& run, const Arenas& arenas, bool staged, std::vector<Slice>& out) {
  if (run.length == 0) {
    out.insert(out.end(), run.count, Slice());
    return true;
  }
  if (run.space < ipc::Space::kFirstArena) return false;
  const size_t number =
      static_cast<size_t>(run.space) - static_cast<size_t>(ipc::Space::kFirstArena);
  if (number >= arenas.size()) return false;
  const std::shared_ptr<Segment>& memory = arenas[number];
  // These sums do not wrap: the parser has seen to that.
  const uint64_t reach = run.stride * (run.count - 1) + run.length;
  if (run.base + reach > memory->size()) return false;
  std::byte* const base = memory->data() + run.base;
  if (staged) {
    for (uint32_t i = 0; i < run.count; i++) {
      auto region = std::make_shared<Region>(base + i * run.stride, run.length, memory);
      region->set_readable(0);
      out.push_back({std::move(region), 0, run.length});
    }
    return true;
  }
  const auto region = std::make_shared<Region>(base, reach, memory);
  for (uint32_t i = 0; i < run.count; i++) out.push_back({region, i * run.stride, run.length});
  return true;
}

// How many inputs and outputs a call of this kind has, on this rank.
std::pair<size_t, size_t> shape_of(const wire::Descriptor& d, const Group& group) {
  const size_t size = group.size();
  switch (d.kind) {
    case wire::Kind::kBroadcast:
      return d.root == group.rank() ? std::pair<size_t, size_t>{1, 0}
                                    : std::pair<size_t, size_t>{0, 1};
    case wire::Kind::kAllgather:
      return {1, size};
    case wire::Kind::kReduceScatter:
      return {size, 1};
    case wire::Kind::kAllreduce:
      return {1, 1};
    case wire::Kind::kReduce:
      return {1, d.root == group.rank() ? 1 : 0};
    default:
      return {0, 0};
  }
}

}  // namespace

TenantGroup::TenantGroup(uint32_t handle, std::string name, std::shared_ptr<GroupBase> group,
                         std::shared_ptr<TenantLink> link,
                         std::shared_ptr<std::atomic<uint32_t>> in_flight, uint32_t most)
    : handle_(handle),
      name_(std::move(name)),
      group_(std::move(group)),
      link_(std::move(link)),
      in_flight_(std::move(in_flight)),
      most_(most),
      waker_(group_->waker()) {}

PostOptions TenantGroup::options_of(const ipc::PostRecord& head) {
  PostOptions options;
  options.timeout = head.timeout;
  options.label = {head.descriptor.element, kept_name(head.descriptor.name)};
  auto contributors = std::make_shared<std::atomic<uint32_t>>(group_->size());
  options.contributors = contributors;
  const auto moments = std::make_shared<Moments>();
  options.moments = moments;
  options.done = [flights = flights_, link = link_, in_flight = in_flight_, contributors, moments,
                  handle = handle_, lane = head.lane,
                  sequence = head.sequence](const Status& status) {
    bool tell_failure = false;
    {
      const std::lock_guard<std::mutex> held(flights->mutex);
      flights->inputs.erase({lane, sequence});
      tell_failure = !status.ok() && !std::exchange(flights->told_failure, true);
    }
    if (tell_failure) {
      link->complete(
          ipc::FailedRecord{handle, static_cast<uint8_t>(status.code()), status.message()});
    }
    in_flight->fetch_sub(1);
    link->complete(ipc::DoneRecord{lane, handle, sequence, contributors->load(),
                                   static_cast<uint8_t>(status.code()), status.message(),
                                   before(moments->first_byte, moments->done),
                                   before(moments->last_byte, moments->done)});
  };
  return options;
}

void TenantGroup::lose(const std::string& why) {
  group_->fail_part(
      Status(Code::kPeerLost, "rank " + std::to_string(group_->rank()) + " is lost: " + why));
}

void TenantGroup::refuse(const ipc::PostRecord& head, const Status& why) {
  link_->complete(ipc::FailedRecord{handle_, static_cast<uint8_t>(why.code()), why.message()});
  link_->complete(ipc::DoneRecord{head.lane, handle_, head.sequence, 0,
                                  static_cast<uint8_t>(why.code()), why.message()});
  group_->abort(why.message());
}

Status TenantGroup::post(const ipc::PostRecord& head, const std::vector<ipc::SliceRun>& runs,
                         const Arenas& arenas) {
  std::vector<Slice> inputs, outputs;
  for (const ipc::SliceRun& run : runs) {
    const bool input = run.role == ipc::Role::kInput;
    if (!lay_out(run, arenas, input && head.staged, input ? inputs : outputs)) {
      return Status(Code::kInvalidArgument, "a slice lies beside its arena");
    }
  }
  const auto [wants_in, wants_out] = shape_of(head.descriptor, *group_);
  if (inputs.size() != wants_in || outputs.size() != wants_out) {
    return Status(Code::kInvalidArgument, "a post with a wrong number of slices");
  }
  if (in_flight_->load() >= most_) {
    refuse(head,
           Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(most_) +
                                                " operations in flight (--operations) is reached"));
    return {};
  }
  if (head.staged) {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    flights_->inputs[{head.lane, head.sequence}] = inputs;
  }
  in_flight_->fetch_add(1);
  const Result<Sequence> taken = call(head, std::move(inputs), std::move(outputs));
  if (!taken.ok()) {
    in_flight_->fetch_sub(1);
    {
      const std::lock_guard<std::mutex> held(flights_->mutex);
      flights_->inputs.erase({head.lane, head.sequence});
    }
    refuse(head, taken.status());
  } else if (*taken != head.sequence) {
    return Status(Code::kInvalidArgument, "operation " + std::to_string(head.sequence) +
                                              " comes where " + std::to_string(*taken) + " is due");
  }
  return {};
}

Result<Sequence> TenantGroup::call(const ipc::PostRecord& head, std::vector<Slice> inputs,
                                   std::vector<Slice> outputs) {
  const wire::Descriptor& d = head.descriptor;
  const Reducing how{static_cast<Element>(d.element), static_cast<Reduction>(d.reduction),
                     head.factor};
  PostOptions options = options_of(head);
  switch (d.kind) {
    case wire::Kind::kBroadcast:
      return group_->post_broadcast(inputs.empty() ? outputs[0] : inputs[0], d.root,
                                    std::move(options));
    case wire::Kind::kAllgather:
      return group_->post_allgather(inputs[0], std::move(outputs), std::move(options));
    case wire::Kind::kReduceScatter:
      return group_->post_reduce_scatter(std::move(inputs), outputs[0], how, std::move(options));
    case wire::Kind::kAllreduce:
      return group_->post_allreduce(inputs[0], outputs[0], how, std::move(options));
    case wire::Kind::kReduce:
      return group_->post_reduce(inputs[0], outputs.empty() ? Slice() : outputs[0], d.root, how,
                                 std::move(options));
    case wire::Kind::kBarrier:
      break;
  }
  return group_->post_barrier(std::move(options));
}

void TenantGroup::ready(const ipc::ReadyRecord& record) {
  {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    const auto it = flights_->inputs.find({record.lane, record.sequence});
    if (it == flights_->inputs.end() || record.input >= it->second.size()) return;  // it has ended
    Slice& input = it->second[record.input];
    const uint64_t now = std::min<uint64_t>(record.bytes, input.length);
    if (!input.region || now <= input.region->readable()) return;
    input.region->set_readable(now);
  }
  waker_();
}

}  // namespace mcast::service
