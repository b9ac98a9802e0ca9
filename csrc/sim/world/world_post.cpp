// A call at one rank: its memory, the post, and the outcome. Bytes are compared in the done
// callback, the first point at which the caller may use them; then the memory is overwritten and
// made inaccessible, so that a late read or write crashes.
#include <algorithm>
#include <utility>

#include "sim/network/expected.h"
#include "sim/world/exchange_content.h"
#include "sim/world/world.h"

namespace mcast::sim {

namespace {

Slice slice(const std::shared_ptr<Pages>& pages, size_t offset, size_t length) {
  return {std::make_shared<Region>(pages->data(), pages->size(), pages), offset, length};
}

// Blocks of one allocation, which is one region.
std::vector<Slice> blocks(const std::shared_ptr<Pages>& pages, uint32_t count, size_t bytes) {
  const auto region = std::make_shared<Region>(pages->data(), pages->size(), pages);
  std::vector<Slice> out;
  for (uint32_t i = 0; i < count; i++) out.push_back({region, i * bytes, bytes});
  return out;
}

// Copies a status. An error's text is allocated by the engine and lives as long as any copy of the
// error; outcomes that the world stores permanently must not count as the engine's memory.
Status kept(const Status& status) {
  return status.ok() ? status : Status(status.code(), status.message());
}

ExchangeShape shape_of(const Operation& op, uint32_t ranks) {
  return {op.kind, ranks, op.bytes, op.splits, op.root};
}

// Returns true for small all_reduces, which every rank folds itself.
bool one_step(const Operation& op, const Agreed& agreed) {
  wire::Descriptor d{op.kind, static_cast<uint8_t>(op.how.element), op.root, op.bytes, ""};
  d.reduction = static_cast<uint8_t>(op.how.reduction);
  return make_plan(d, agreed, element_size(op.how.element)).reduce.way == ReduceWay::kOneStep;
}

}  // namespace

std::vector<std::shared_ptr<const Outcome>> World::post_all(GroupId g, const Operation& operation) {
  std::vector<std::shared_ptr<const Outcome>> all;
  for (Member m = 0; m < size(g); m++) all.push_back(post(g, m, operation));
  return all;
}

std::shared_ptr<const Outcome> World::post(GroupId g, Member m, const Operation& op, Then then) {
  auto outcome = std::make_shared<Outcome>();
  outcome->operation = op;
  outcome->member = m;
  outcome->posted = now();
  auto memory = std::make_shared<Memory>();
  PostOptions options;
  options.timeout = op.timeout;
  options.label = {static_cast<uint8_t>(op.how.element), ""};
  options.done = [this, outcome, memory, g, m, then = std::move(then)](const Status& status) {
    const Driving nobody(meter_);
    outcome->ends++;
    outcome->status = kept(status);
    outcome->done = now();
    outcome->wrong = status.ok() ? verdict(g, m, outcome->operation, *memory) : "";
    for (Pages* const pages : {memory->pages.get(), memory->input.get()}) {
      if (pages == nullptr) continue;
      if (!pages->intact()) outcome->wrong = "guard bytes overwritten";
      pages->give_back(spec_.net.gather_from != SIZE_MAX);
    }
    memory->ledger.reset();
    memory->reference.reset();
    memory->contributions.reset();
    if (then) then(*outcome);
  };
  if (const Result<Sequence> posted = carry_out(g, m, op, options, *memory); !posted.ok()) {
    outcome->ends = 1;
    outcome->status = kept(posted.status());
    outcome->done = now();
  }
  return outcome;
}

std::shared_ptr<const Outcome> World::post_message(GroupId g, const Message& message, bool receives,
                                                   Then then) {
  auto outcome = std::make_shared<Outcome>();
  const Member m = outcome->member = receives ? message.to : message.from;
  outcome->posted = now();
  auto pages = std::make_shared<Pages>(message.bytes);
  if (!receives) fill_pattern(message.id, message.from, pages->bytes());
  const auto source = std::make_shared<std::atomic<Member>>(kNoMember);
  PostOptions options;
  options.timeout = message.timeout;
  options.done = [this, outcome, pages, source, message, receives,
                  then = std::move(then)](const Status& status) {
    const Driving nobody(meter_);
    outcome->ends++;
    outcome->status = kept(status);
    outcome->done = now();
    if (status.ok() && receives) {
      const size_t byte = check_pattern(message.id, message.from, pages->bytes());
      if (byte != message.bytes) outcome->wrong = "wrong byte " + std::to_string(byte);
      if (source->load() != message.from) outcome->wrong = "reports a rank other than its sender";
    }
    if (!pages->intact()) outcome->wrong = "guard bytes overwritten";
    pages->give_back(spec_.net.gather_from != SIZE_MAX);
    if (then) then(*outcome);
  };
  MessageCall call;
  call.receives = receives;
  call.memory = slice(pages, 0, message.bytes);
  call.tag = message.tag;
  call.peer = !receives ? message.to : message.any ? kNoMember : message.from;
  if (receives) call.source = source;
  const Driving driving(meter_, rank(g, m));
  const Status posted = group(g, m).post_message(std::move(call), std::move(options));
  if (!posted.ok()) {
    outcome->ends = 1;
    outcome->status = kept(posted);
    outcome->done = now();
  }
  return outcome;
}

Result<Sequence> World::carry_out(GroupId g, Member m, const Operation& op, PostOptions options,
                                  Memory& memory) {
  if (op.kind == wire::Kind::kBarrier) {
    const Driving driving(meter_, rank(g, m));
    return group(g, m).post_barrier(std::move(options));
  }
  if (wire::is_reduction(op.kind)) return reduce(g, m, op, std::move(options), memory);
  return move_bytes(g, m, op, std::move(options), memory);
}

// Null: the operation uses real memory at its ranks.
std::shared_ptr<const Contributions> World::contributions_of(GroupId g, Member m,
                                                             const Operation& op) {
  const Members& group = groups_[g];
  if (!spec_.ledgers || group.host_reads || group.members[m].on_network == nullptr ||
      op.bytes == 0) {
    return nullptr;
  }
  const bool scatter = op.kind == wire::Kind::kReduceScatter;
  const Contributions::Shape shape{op.kind,
                                   op.id,
                                   size(g),
                                   scatter ? op.bytes * size(g) : op.bytes,
                                   op.how.element,
                                   op.how.reduction,
                                   group.how.config.fold == "turn"};
  if (!Contributions::serve(shape) || one_step(op, group.members[m].agreement.agreed)) {
    return nullptr;
  }
  return contents_.contributions(shape);
}

Result<Sequence> World::move_bytes(GroupId g, Member m, const Operation& op, PostOptions options,
                                   Memory& memory) {
  if (wire::is_exchange(op.kind)) {
    // Every block is for one rank only, so ranks cannot share contents.
    const ExchangeShape shape = shape_of(op, size(g));
    memory.input = exchange_pages(shape, op.id, m, Side::kOut);
    memory.pages = exchange_pages(shape, op.id, m, Side::kIn);
    const Driving driving(meter_, rank(g, m));
    return group(g, m).post_exchange(op.kind, exchange_blocks(shape, m, Side::kOut, memory.input),
                                     exchange_blocks(shape, m, Side::kIn, memory.pages), op.root,
                                     std::move(options));
  }
  const bool all = op.kind == wire::Kind::kAllgather;
  const uint32_t streams = all ? size(g) : 1;
  const bool sends = all || m == op.root;
  if (spec_.ledgers) {
    memory.reference = contents_.reference(op.id, streams, op.bytes, op.root);
    // Operations split into parts write to their final place already; the reference shows whether
    // that is right.
    if (groups_[g].parts.empty() && groups_[g].members[m].on_network != nullptr) {
      memory.ledger = std::make_shared<Ledger>(memory.reference, !sends ? streams : all ? m : 0);
      options.landing = memory.ledger;
    }
  } else {
    memory.pages = std::make_shared<Pages>(streams * op.bytes);
    if (sends) {
      fill_pattern(op.id, m, memory.pages->bytes().subspan(all ? m * op.bytes : 0, op.bytes));
    }
  }
  const Driving driving(meter_, rank(g, m));
  std::vector<Slice> outputs;
  if (memory.pages) outputs = blocks(memory.pages, streams, op.bytes);
  for (uint32_t s = 0; !memory.pages && s < streams; s++) {
    outputs.push_back(memory.reference->stream(s));
  }
  if (!all) return group(g, m).post_broadcast(outputs[0], op.root, std::move(options));
  Slice own = outputs[m];
  return group(g, m).post_allgather(std::move(own), std::move(outputs), std::move(options));
}

Result<Sequence> World::reduce(GroupId g, Member m, const Operation& op, PostOptions options,
                               Memory& memory) {
  const bool scatter = op.kind == wire::Kind::kReduceScatter;
  const uint32_t parts = scatter ? size(g) : 1;
  Reducing how = op.how;
  how.factor = factor_of(m);
  memory.contributions = contributions_of(g, m, op);
  if (!memory.contributions) {
    memory.input = std::make_shared<Pages>(parts * op.bytes);
    fill_pattern(op.id, m, memory.input->bytes());
  }
  Slice output;
  if (memory.contributions && !scatter) {
    output = memory.contributions->output();
    memory.ledger = std::make_shared<Ledger>(memory.contributions->result(), m);
    options.landing = memory.ledger;
  } else if (op.kind != wire::Kind::kReduce || m == op.root) {
    memory.pages = std::make_shared<Pages>(op.bytes);
    output = slice(memory.pages, 0, op.bytes);
  }
  const Driving driving(meter_, rank(g, m));
  std::vector<Slice> inputs;
  if (memory.input) inputs = blocks(memory.input, parts, op.bytes);
  for (uint32_t i = 0; !memory.input && i < parts; i++) {
    inputs.push_back(memory.contributions->input(m, i * op.bytes, op.bytes));
  }
  GroupBase& to = group(g, m);
  if (scatter) {
    return to.post_reduce_scatter(std::move(inputs), std::move(output), how, std::move(options));
  }
  if (op.kind == wire::Kind::kAllreduce) {
    return to.post_allreduce(std::move(inputs[0]), std::move(output), how, std::move(options));
  }
  return to.post_reduce(std::move(inputs[0]), std::move(output), op.root, how, std::move(options));
}

std::string World::verdict(GroupId g, Member m, const Operation& op, const Memory& memory) const {
  if (memory.contributions) {
    const std::string landed = memory.ledger ? memory.ledger->verdict() : "";
    if (!landed.empty()) return landed;
    const size_t part = memory.contributions->result()->block();
    return memory.contributions->verdict(
        m, memory.ledger ? memory.contributions->output().data() + m * part : memory.pages->data());
  }
  if (memory.ledger) return memory.ledger->verdict();
  if (memory.reference) return memory.reference->intact() ? "" : "the reference was overwritten";
  if (!memory.pages) return "";  // a barrier; a reduce at a rank other than its root
  if (wire::is_exchange(op.kind)) {
    return wrong_blocks(shape_of(op, size(g)), op.id, m, *memory.pages);
  }
  const std::string here =
      " at rank " + std::to_string(m) + " of operation " + std::to_string(op.id);
  if (wire::is_reduction(op.kind)) {
    Folding folding;
    folding.in_turn = groups_[g].how.config.fold == "turn";
    if (groups_[g].host_reads && !one_step(op, groups_[g].members[m].agreement.agreed))
      folding.host_of = groups_[g].host_of;
    const auto want = expected_result(op.kind, op.id, size(g), m, op.how.element, op.how.reduction,
                                      op.bytes, folding);
    const size_t byte = first_difference(op.how.element, memory.pages->data(), want);
    return byte == op.bytes ? "" : "wrong byte " + std::to_string(byte) + here;
  }
  const uint32_t streams = op.kind == wire::Kind::kAllgather ? size(g) : 1;
  for (uint32_t s = 0; s < streams; s++) {
    const ConstBytes block(memory.pages->data() + s * op.bytes, op.bytes);
    const size_t byte = check_pattern(op.id, streams == 1 ? op.root : s, block);
    if (byte != op.bytes) {
      return "wrong byte " + std::to_string(byte) + " of block " + std::to_string(s) + here;
    }
  }
  return "";
}

}  // namespace mcast::sim
