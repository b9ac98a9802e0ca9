"""Faults that tools/mutants.py plants into the core, one after the other.

Each is a single mistake that somebody could make: `old`, which stands exactly once in `file`, becomes
`new`, and the tests of `program` (tests/cpp/<program>) that match `tests` must notice.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # below csrc/core
    old: str
    new: str
    program: str
    tests: str  # a filter of GoogleTest


MUTANTS = [
    # What arrives is believed.
    Mutant(
        "datagram-checksum-not-compared",
        "wire/datagram.cpp",
        "return load<uint32_t>(datagram.data()) == crc32c(datagram.subspan(4));",
        "return datagram.size() >= kDatagramHeader;",
        "wire",
        "Datagrams*",
    ),
    Mutant(
        "frame-checksum-not-compared",
        "wire/frame.cpp",
        "return load<uint32_t>(frame.data()) == crc32c(frame.subspan(4));",
        "return frame.size() >= kFrameHeader;",
        "wire",
        "Frames*",
    ),
    Mutant(
        "data-placed-unverified",
        "collective/reception.cpp",
        """if (!wire::verify_datagram(datagram)) {
    g_.counters.add(Counter::corrupt);
    return;
  }
  g_.ops.touch(*op);""",
        "  g_.ops.touch(*op);",
        "wire",
        "Attack*",
    ),
    Mutant(
        "lane-bit-not-compared",
        "engine/lane.cpp",
        "if (header.lane != last_->core_.params().lane) {",
        "if (header.lane > 1) {",
        "collective",
        "PaperCases.DatagramsOf*",
    ),
    Mutant(
        "group-tag-not-compared",
        "engine/lane.cpp",
        "if (last_ == nullptr || last_->core_.params().tag != header.group_tag) {",
        "if (last_ == nullptr) {",
        "collective",
        "PaperCases.Another*",
    ),
    Mutant(
        "data-of-another-call-placed",
        "collective/reception.cpp",
        "if (header.descriptor != op->plan.hash) {",
        "if (header.descriptor == 0) {",
        "collective",
        "OtherCalls*",
    ),
    Mutant(
        "staged-data-of-another-call-placed",
        "collective/reception.cpp",
        "if (entry.descriptor != op.plan.hash) {",
        "if (entry.descriptor == 0) {",
        "collective",
        "OtherCalls*",
    ),
    Mutant(
        "fetch-of-another-call-answered",
        "collective/repair_donor.cpp",
        """if (g_.ops.entry(header.sequence) != nullptr &&
      !g_.agrees(header.member, header.sequence, fetch.descriptor)) {""",
        "if (fetch.descriptor == 0) {",
        "collective",
        "OtherCalls*",
    ),
    Mutant(
        "position-of-another-call-believed",
        "collective/reception.cpp",
        "if (g_.ops.entry(sequence) != nullptr && !g_.agrees(root, sequence, descriptor)) return;",
        "if (descriptor == 0) return;",
        "collective",
        "OtherCalls*",
    ),
    Mutant(
        "credit-of-another-call-believed",
        "collective/group_dispatch.cpp",
        "    return g_.agrees(header.member, header.sequence, header.argument) ? op : nullptr;",
        "    return op;",
        "collective",
        "OtherCalls*",
    ),
    Mutant(
        "repair-of-another-operation-placed",
        "collective/repair.cpp",
        """Operation* op = g_.find(header.sequence);
  wire::FetchData data;""",
        """  Operation* op = g_.find(g_.ops.base());
  wire::FetchData data;""",
        "collective",
        "Shard/Schedules*:*LostChunk*",
    ),
    Mutant(
        "duplicate-placed-twice",
        "collective/reception.cpp",
        """BlockReceiver& receiver = op.receivers[stream];
  if (op.local_complete || receiver.has(chunk)) {""",
        """BlockReceiver& receiver = op.receivers[stream];
  if (op.local_complete) {""",
        "collective",
        "PaperCases*:Shard/Schedules*",
    ),
    Mutant(
        "contribution-folded-twice",
        "protocol/reduce_owner.cpp",
        "segment != arrived_[from] ||",
        "segment > arrived_[from] ||",
        "protocol",
        "ReduceOwner*",
    ),
    Mutant(
        "retired-group-tags-forgotten",
        "engine/lane.cpp",
        "if (retired_.count(tag) || orphan_bytes_",
        "if (orphan_bytes_",
        "engine",
        "Sequences*",
    ),
    Mutant(
        "frames-for-a-group-to-come-dropped",
        "engine/lane.cpp",
        "  orphans_[tag].push_back({peer, {frame.begin(), frame.end()}, now_});\n"
        "  orphan_bytes_ += frame.size();\n",
        "",
        "engine",
        "Sequences*",
    ),
    # Loss and repair.
    Mutant(
        "gap-detection-off",
        "protocol/block_receiver.cpp",
        "if (seen_end_ > scanned_ + params_.tolerance)",
        "if (seen_end_ > chunks())",
        "protocol",
        "BlockReceiver*",
    ),
    Mutant(
        "cutoff-timer-off",
        "protocol/block_receiver.cpp",
        "if (drained && now >= deadline()) {",
        "if (drained && deadline() < 0) {",
        "protocol",
        "BlockReceiver*",
    ),
    Mutant(
        "position-goes-back",
        "protocol/block_receiver.cpp",
        "if (sent > announced_) {",
        "if (sent != announced_) {",
        "protocol",
        "BlockReceiver*",
    ),
    Mutant(
        "holes-scanned-from-the-wrong-bit",
        "base/bitmap.h",
        "if (at == last) return limit;",
        "if (at + 1 >= last) return limit;",
        "base",
        "Bitmap*",
    ),
    Mutant(
        "wrong-chunk-served",
        "collective/repair_donor.cpp",
        "source.subspan(static_cast<size_t>(at) * op.plan.chunk, bytes)",
        "source.subspan(static_cast<size_t>(at - (at > 0 ? 1 : 0)) * op.plan.chunk, bytes)",
        "collective",
        "*LostChunk*:PaperCases.WholeBlock*",
    ),
    Mutant(
        "fetch-never-retried",
        "protocol/fetch_client.cpp",
        "if (now < open.deadline) {",
        "if (open.deadline != kNever) {",
        "protocol",
        "FetchClient*",
    ),
    Mutant(
        "unanswered-fetch-stays-with-its-donor",
        "protocol/fetch_client.cpp",
        "wanted_.push_back({o.request.root, r, true, o.attempt + 1, 0});",
        "wanted_.push_back({o.request.root, r, false, o.attempt + 1, 0});",
        "protocol",
        "FetchClient*",
    ),
    Mutant(
        "refused-fetch-does-not-go-to-the-root",
        "protocol/fetch_client.cpp",
        "wanted_.push_back({root, r, true, later ? attempt + 1 : attempt, wait});",
        "wanted_.push_back({root, r, false, later ? attempt + 1 : attempt, wait});",
        "protocol",
        "FetchClient*",
    ),
    Mutant(
        "anybodys-answer-settles-a-fetch",
        "protocol/fetch_client.cpp",
        "if (r.id == id && r.donor == from && r.root == root) return i;",
        "if (r.id == id && r.root == root) return i;",
        "protocol",
        "FetchClient*",
    ),
    Mutant(
        "chunks-repeated-for-ever",
        "protocol/repair_server.cpp",
        "again = subtract(again, repeated_[kMaxRepeats - 1]);",
        "",
        "protocol",
        "RepairServer*",
    ),
    Mutant(
        "sent-gap-not-noticed",
        "protocol/sent_tracker.cpp",
        "if (r.timer == kNever && end > next) arm(root, now);",
        "if (r.timer == kNever && end < next) arm(root, now);",
        "protocol",
        "SentTracker*",
    ),
    Mutant(
        "last-chunk-of-an-early-answer-miscounted",
        "collective/repair_early.cpp",
        "static_cast<Chunk>((part.size() + chunk - 1) / chunk)",
        "static_cast<Chunk>(part.size() / chunk + 1)",
        "collective",
        "LateRank.WhatWasLost*",
    ),
    # Memory and its bounds.
    Mutant(
        "released-before-all-have-reported",
        "protocol/completion.cpp",
        "for (const Sequence c : child_) least = std::min(least, c);",
        "for (const Sequence c : child_) least = std::max(least, std::min(c, own_));",
        "protocol",
        "Completion*",
    ),
    Mutant(
        "one-operation-too-many-released",
        "collective/completion_reports.cpp",
        "wire::FrameType::kReleased, end, 0);",
        "wire::FrameType::kReleased, end + 1, 0);",
        "collective",
        "Shard/Schedules*",
    ),
    Mutant(
        "large-operation-ends-before-its-release",
        "collective/group_core.cpp",
        "!op.plan.trivial() && !op.plan.small && !g_.path.by_ring(sequence);",
        "!op.plan.trivial() && op.plan.small && !g_.path.by_ring(sequence);",
        "collective",
        "Shard/Schedules*",
    ),
    Mutant(
        "small-operation-ends-before-it-is-kept",
        "collective/group_core.cpp",
        "if (op.own.sender && op.plan.small && !op.own.started) return;",
        "",
        "collective",
        "*Marks*:RetransmitMemory*",
    ),
    Mutant(
        "complete-before-all-is-here",
        "collective/group_core.cpp",
        "if (op.local_complete || op.receiving > 0 ||",
        "if (op.local_complete || op.receiving > 1 ||",
        "collective",
        "*Sizes*",
    ),
    Mutant(
        "input-given-back-before-neighbours-read-it",
        "collective/reductions.cpp",
        "if (run.host && !(run.inputs.acknowledged && run.host->all_taken())) return false;",
        "",
        "collective",
        "Hosts*",
    ),
    Mutant(
        "kept-copies-unbounded",
        "collective/small_operations.cpp",
        "if (kept_bytes_ > 0 && kept_bytes_ + cost > g_.params.retransmit) return false;",
        "",
        "collective",
        "RetransmitMemory*",
    ),
    Mutant(
        "staging-unbounded",
        "protocol/staging.cpp",
        "if (bytes_ + cost > capacity_) {",
        "if (cost > capacity_) {",
        "protocol",
        "Staging*",
    ),
    Mutant(
        "staging-drops-not-counted",
        "collective/reception.cpp",
        "g_.counters.add(Counter::staging_drops);",
        "",
        "collective",
        "LateRank.WhatGoes*",
    ),
    Mutant(
        "small-operations-sent-without-bound",
        "collective/small_operations.cpp",
        "if (!eager_.open(sequence)) {",
        "if (sequence + 1 == 0) {",
        "collective",
        "LateRank.WhatItCannot*",
    ),
    Mutant(
        "unasked-contributions-without-bound",
        "collective/reductions.cpp",
        "if (op.plan.unasked && !unasked_.room(owner, op.post.sequence, cost(bytes), oldest)) {",
        "if (op.plan.unasked && cost(bytes) == 0 && oldest) {",
        "collective",
        "Reductions.AreSentAhead*",
    ),
    Mutant(
        "early-contribution-without-room-dropped",
        "collective/group_dispatch.cpp",
        "             !early_.keep(header, body)) {",
        "             !early_.keep(header, body) && body.empty()) {",
        "collective",
        "Reductions.MoreAhead*",
    ),
    # Pace and turns.
    Mutant(
        "credit-limit-ignored",
        "protocol/block_sender.cpp",
        "std::min<uint64_t>({own, limit_, params_.chunks})",
        "std::min<uint64_t>({own, params_.chunks})",
        "protocol",
        "BlockSender*",
    ),
    Mutant(
        "window-ignored",
        "protocol/block_sender.cpp",
        "std::min<uint64_t>({own, limit_, params_.chunks})",
        "std::min<uint64_t>({limit_, params_.chunks + (own & 0)})",
        "protocol",
        "BlockSender*",
    ),
    Mutant(
        "window-one-chunk-too-wide",
        "protocol/block_sender.cpp",
        "const uint64_t own = static_cast<uint64_t>(high_water_) + window_.size;",
        "const uint64_t own = static_cast<uint64_t>(high_water_) + window_.size + 1;",
        "protocol",
        "BlockSender*",
    ),
    Mutant(
        "ring-without-back-pressure",
        "collective/ring.cpp",
        """    if (g_.port.queued(successor(), Channel::kRepair) >= kQueueLimit) {
      full = true;
      break;
    }
""",
        "",
        "collective",
        "Ring.*",
    ),
    Mutant(
        "grants-without-bound",
        "collective/reduce_grants.cpp",
        "if (outstanding + step > uint64_t{std::max(most, step)} * others) return;",
        "",
        "collective",
        "Reductions.Grants*",
    ),
    Mutant(
        "reductions-wait-for-the-multicast-lane",
        "collective/reduce_grants.cpp",
        "if (in_flight >= window) {",
        "if (in_flight >= window || ingress_.pacing()) {",
        "collective",
        "Reductions.GoOn*",
    ),
    Mutant(
        "two-roots-of-a-chain-at-once",
        "collective/multicast.cpp",
        "[&](Member m) { return near_end(op, m); }, [&](Member) { return patience_over; });",
        "[&](Member) { return true; }, [&](Member) { return patience_over; });",
        "collective",
        "InStep.RootsOf*",
    ),
    Mutant(
        "tree-parent-wrong-beyond-the-first-level",
        "protocol/tree.h",
        "return static_cast<Member>((m - 1u) / arity_);",
        "return static_cast<Member>((m - (m > 2 * arity_ ? 2u : 1u)) / arity_);",
        "protocol",
        "Tree*",
    ),
    Mutant(
        "folded-in-the-wrong-order",
        "collective/reduce_run.cpp",
        "for (uint32_t m = 1; m < members_; m++) {\n    fold_next(e, r",
        "for (uint32_t m = members_ - 1; m > 0; m--) {\n    fold_next(e, r",
        "collective",
        "*ReduceSchedules*:Reductions*",
    ),
    Mutant(
        "folded-as-they-come",
        "protocol/reduce_owner.cpp",
        "  if (s.next == from) {\n    fold(s",
        "  if (s.next == from || (from > shape_.self && s.next > shape_.self)) {\n    fold(s",
        "protocol",
        "ReduceOwner*",
    ),
    # Failure.
    Mutant(
        "liveness-off",
        "collective/membership.cpp",
        """  if (drained && liveness_.active()) miss_silent(now);
""",
        "",
        "collective",
        "PathSwitch.AStopped*",
    ),
    Mutant(
        "liveness-limit-ignored-while-joining",
        "collective/membership.cpp",
        "  if (drained && liveness_.active()) miss_silent(now);",
        "  if (drained && liveness_.active() && g_.state != GroupState::kProbing) miss_silent(now);",
        "collective",
        "Creation.ARankThatIsLost*",
    ),
    Mutant(
        "liveness-limit-ignored-while-switching",
        "collective/membership.cpp",
        "liveness_.set_active(active, now);",
        "liveness_.set_active(active && !g_.switching(), now);",
        "collective",
        "PathSwitch.*",
    ),
    Mutant(
        "abort-not-passed-to-children",
        "collective/group_failure.cpp",
        "for (const Member m : membership_.watched()) {",
        """for (const Member m : membership_.watched()) {
      if (g_.tree.is_child(m, g_.self)) continue;
""",
        "collective",
        "Agreement.An*",
    ),
    Mutant(
        "mismatch-not-told-to-the-other-side",
        "collective/group_context.cpp",
        """describe_to(peer, sequence);
  return false;""",
        "  return false;",
        "collective",
        "OtherCalls*:*Mismatch*",
    ),
    Mutant(
        "deadline-never-checked",
        "collective/group_turn.cpp",
        """  if (!op.finished && now >= op.deadline) inquiry_.start(op, now);
""",
        "",
        "collective",
        "Who/LateRank*:Agreement.LateAnd*",
    ),
    Mutant(
        "probe-good-although-a-rank-is-missing",
        "protocol/probe.cpp",
        "  ok = deaf_to_ == 0 &&\n       std::all_of(",
        "  ok = std::all_of(",
        "protocol",
        "ReachProbe*",
    ),
    Mutant(
        "turn-of-the-path-ignored",
        "collective/group_path.h",
        "if (sequence < turn.from) break;",
        "",
        "collective",
        "*PathLine*",
    ),
    Mutant(
        "line-drawn-at-the-least-operation",
        "collective/path_switch.cpp",
        "line_ = std::max(line_, header.argument);",
        "line_ = std::min(line_, header.argument);",
        "collective",
        "*PathLine*",
    ),
    # Time that is late, media that refuse, numbers that end.
    Mutant(
        "own-absence-held-against-others",
        "protocol/liveness.cpp",
        "h = std::min(now, h + gap);",
        "h = std::min(now, h);",
        "collective",
        "*Clocks*",
    ),
    Mutant(
        "refused-chunk-forgotten",
        "collective/multicast.cpp",
        """        sender.put_back({c, run.end}, again);
""",
        "",
        "collective",
        "*Refused*",
    ),
    Mutant(
        "window-begins-again-at-zero",
        "protocol/block_sender.cpp",
        "static_cast<uint64_t>(high_water_) + window_.size;",
        "high_water_ + window_.size;",
        "protocol",
        "LastChunks*",
    ),
    Mutant(
        "sequences-compared-with-a-sign",
        "protocol/completion.cpp",
        "least = std::min(least, c);",
        "least = static_cast<int32_t>(c) < static_cast<int32_t>(least) ? c : least;",
        "collective",
        "*LastSchedules*",
    ),
]
