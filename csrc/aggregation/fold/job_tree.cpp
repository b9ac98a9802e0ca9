// A job's part in a tree. Two stations of a tree exchange no agreement: each computes all lists by
// itself, and so the number that an entry of one list has in the other's. A leaf opens each
// operation at all stations at the top, gets grants there as a rank does, and sends its rack's sums
// in the order of that list; so the number of the next one describes everything that it has sent.
//
// All lists have the same order, and the first unfinished entry in it is granted at every station
// on its path: so windows of several stations never wait for each other in a cycle.
#include <algorithm>

#include "aggregation/fold/job.h"

namespace mcast::aggregation {
namespace {

// The reason why the sum is not allowed; "": it is.
const char* fault_of_sum(const Operation& op, const Operation::Partner& leaf, const Racks& racks,
                         const wire::AggResult& sum) {
  if (op.is_leaf() || !leaf.opened) return "a sum before it was opened";
  if (sum.number >= op.granted()) return "a sum that was not asked for";
  if (sum.number > leaf.next) return "a sum out of order";
  if (sum.form != wire::ResultForm::kPartial ||
      sum.contributors != racks.members(leaf.who.rack).size()) {
    return "a sum of other contributions";
  }
  const size_t bytes = op.rule().accumulator_bytes(op.at(sum.number).bytes);
  return sum.payload.size() == bytes ? "" : "a sum of another length";
}

}  // namespace

uint64_t& Job::expects(Member from) {
  if (from >= expects_.size()) expects_.resize(from + 1u);
  return expects_[from];
}

// An operation that was opened and is gone: all ranks have opened it.
bool Job::is_over(Sequence sequence) const {
  return std::any_of(expects_.begin(), expects_.begin() + params_.hosts.members(),
                     [sequence](uint64_t next) { return next > sequence; });
}

// Called when the operation has begun here.
void Job::join(Operation& op, const wire::AggOpen& open) {
  for (const Operation::Partner& partner : op.partners()) {
    const Member station = partner.who.station;
    if (std::find(tree_.lost.begin(), tree_.lost.end(), station) != tree_.lost.end()) {
      return decline(op, Status(Code::kUnavailable, "a station of the tree cannot be reached"));
    }
  }
  if (!op.is_leaf()) return;
  wire::Writer body;
  wire::put_agg_open(body, open);
  const ConstBytes parts[] = {body.bytes()};
  for (const Operation::Partner& top : op.partners()) {
    const Member station = top.who.station;
    std::vector<Member>& known = tree_.stations;
    if (std::find(known.begin(), known.end(), station) == known.end()) known.push_back(station);
    send(station, Channel::kReduce, wire::FrameType::kAggOpen, op, op.hash(), parts);
  }
}

bool Job::send_sum(Operation& op, const BlockRecord& block) {
  const WorkList::Parent parent = op.parent(block.key.number);
  Operation::Partner& top = *op.partner(parent.station);
  const ConstBytes sum = folds_[block.place].partial();
  const size_t size = wire::kFrameHeader + wire::kAggResultHead + sum.size();
  if (block.key.number != top.next || parent.number >= top.granted ||
      !may_send(parent.station, size)) {
    return false;
  }
  wire::Writer head;
  wire::put_agg_result_head(head, parent.number, wire::ResultForm::kPartial, block.contributors);
  const ConstBytes parts[] = {head.bytes(), sum};
  send(parent.station, Channel::kReduce, wire::FrameType::kAggResult, op, op.hash(), parts);
  counters_.add(Counter::reduce_bytes_sent, sum.size());
  queued_ += size;
  op.passed(top);
  return true;
}

Status Job::on_grant(Member from, Sequence sequence, uint32_t end) {
  Operation* const op = find(sequence);
  Operation::Partner* const top = op != nullptr ? op->partner(from) : nullptr;
  if (top == nullptr) {
    counters_.add(Counter::agg_stale);
    return {};
  }
  if (!op->is_leaf()) return broke(from, sequence, "a grant to a station at the top of the tree");
  top->granted = std::max(top->granted, end);
  measure_queues();
  emit_held();
  grant();
  return {};
}

Status Job::on_sum(Member from, Sequence sequence, uint32_t hash, const wire::AggResult& sum,
                   Nanos now) {
  Operation* const op = find(sequence);
  Operation::Partner* const leaf = op != nullptr ? op->partner(from) : nullptr;
  if (leaf == nullptr) {
    counters_.add(Counter::agg_stale);
    return {};
  }
  if (op->hash() != hash) return broke(from, sequence, "a sum of another operation");
  if (const char* const fault = fault_of_sum(*op, *leaf, params_.racks, sum); *fault != 0) {
    return broke(from, sequence, fault);
  }
  if (sum.number < leaf->next) {
    counters_.add(Counter::agg_repeated);
    return {};
  }
  BlockRecord& block = *block_of(*op, op->at(sum.number), sum.number, now);
  RackFold& fold = folds_[block.place];
  if (!fold.add_rack(leaf->who.rack, sum.payload)) {
    return broke(from, sequence, "a sum that it has sent before");
  }
  for (const uint32_t c : params_.racks.members(leaf->who.rack)) (void)table_.add(block, c, now);
  op->passed(*leaf);
  counters_.add(Counter::reduce_bytes_received, sum.payload.size());
  if (!fold.complete()) return {};
  block.folded = true;
  if (emit(*op, block)) grant();
  return {};
}

void Job::on_decline(Sequence sequence, const std::string& why) {
  Operation* const op = find(sequence);
  if (op == nullptr || op->is_declined()) return counters_.add(Counter::agg_stale);
  decline(*op, Status(Code::kUnavailable, why));
  finish_if_done(*op);
  grant();
}

void Job::lose(Member station) {
  tree_.lost.push_back(station);
  const std::vector<Operation*> all = live_;
  for (Operation* const op : all) {
    if (op->partner(station) == nullptr) continue;
    decline(*op, Status(Code::kUnavailable, "a station of the tree is lost"));
    finish_if_done(*op);
  }
  grant();
}

}  // namespace mcast::aggregation
