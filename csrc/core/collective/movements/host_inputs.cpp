// A contribution is folded when it is sent, a segment at a time, directly from the others' memory:
// nothing is stored, and data is folded while it is in the cache. Between hosts it has the tensor's
// type, so bfloat16 is rounded once per host and once at the end. Sums of float16 and float8 are
// sent in the accumulator's type, because even those of a few ranks may be too large.
#include "collective/movements/host_inputs.h"

#include "base/fence.h"
#include "base/reduce_kernels.h"

namespace mcast {

HostInputs::HostInputs(const Hosts& hosts, Member self, const ReduceArgs& args, size_t share,
                       uint64_t cookie, const HostReader& read, Counters& counters)
    : args_(args),
      share_(share),
      cookie_(cookie | 1),
      read_(read),
      counters_(counters),
      within_(args.reduction),
      between_(args.reduction),
      wide_(contributes_wide(args.element, args.reduction)),
      self_(self),
      addresses_(std::make_shared<std::vector<uint64_t>>()),
      live_(std::make_shared<std::atomic<uint64_t>>(cookie | 1)) {
  if (args.reduction == Reduction::kAvg) within_ = Reduction::kSum;
  if (args.reduction == Reduction::kPremulSum) between_ = Reduction::kSum;
  for (const Member m : hosts.members(hosts.host_of(self))) {
    sources_.push_back({m, std::nullopt, {}, false});
    if (m != self) others_.push_back(m);
  }
  missing_ = reading_ = static_cast<uint32_t>(others_.size());
  for (const Slice& input : args.inputs) {
    addresses_->push_back(reinterpret_cast<uint64_t>(input.data()));
  }
  if (!read.publish) return;
  read.publish(addresses_->data(), addresses_->size() * sizeof(uint64_t), addresses_);
  read.publish(live_.get(), sizeof *live_, live_);
  for (const Slice& input : args.inputs) {
    if (input.region) read.publish(input.region->data(), input.region->size(), input.region);
  }
}

wire::ReduceOffer HostInputs::offer() const {
  return {reinterpret_cast<uint64_t>(addresses_->data()), reinterpret_cast<uint64_t>(live_.get()),
          cookie_, args_.factor};
}

HostInputs::Source* HostInputs::other(Member m) {
  for (Source& s : sources_) {
    if (s.member == m && m != self_) return &s;
  }
  return nullptr;
}

bool HostInputs::on_offer(Member from, const wire::ReduceOffer& offer) {
  Source* const source = other(from);
  if (source == nullptr || source->offer) return false;
  source->offer = offer;
  source->inputs.resize(args_.inputs.size());
  if (!read(*source, offer.inputs, reinterpret_cast<std::byte*>(source->inputs.data()),
            source->inputs.size() * sizeof(uint64_t))) {
    refused_ = from;
  }
  missing_--;
  return true;
}

bool HostInputs::on_taken(Member from) {
  Source* const source = other(from);
  if (source == nullptr || source->taken) return false;
  source->taken = true;
  reading_--;
  return true;
}

bool HostInputs::read(const Source& from, uint64_t address, std::byte* to, size_t length) {
  if (!read_.read(from.member, address, to, length)) return false;
  counters_.add(Counter::shm_direct_bytes, length);
  return true;
}

const std::byte* HostInputs::own(Member owner) const {
  return args_.inputs.size() > 1 ? args_.inputs[owner].data()
                                 : args_.inputs[0].data() + owner * share_;
}

std::optional<ConstBytes> HostInputs::fold(Member owner, size_t offset, size_t bytes,
                                           Scratch& scratch) {
  const Element e = args_.element;
  const size_t count = bytes / element_size(e);
  if (others_.empty() && within_ != Reduction::kPremulSum && !wide_) {
    return ConstBytes(own(owner) + offset, bytes);
  }
  scratch.read.resize(bytes);
  scratch.sum.resize(count * accumulator_size(e));
  bool first = true;
  for (const Source& s : sources_) {
    const std::byte* source = own(owner) + offset;
    double factor = args_.factor;
    if (s.member != self_) {
      const uint64_t base =
          s.inputs.size() > 1 ? s.inputs[owner] : s.inputs[0] + uint64_t{owner} * share_;
      if (!read(s, base + offset, scratch.read.data(), bytes)) {
        refused_ = s.member;
        return std::nullopt;
      }
      source = scratch.read.data();
      factor = s.offer->factor;
    }
    (first ? fold_first : fold_next)(e, within_, factor, source, scratch.sum.data(), count);
    first = false;
  }
  // After the reads: a rank that returns its memory withdraws its offer first.
  full_fence();
  for (const Source& s : sources_) {
    if (s.member == self_) continue;
    uint64_t live = 0;
    if (read_.read(s.member, s.offer->live, reinterpret_cast<std::byte*>(&live), sizeof live) &&
        live == s.offer->cookie) {
      continue;
    }
    refused_ = s.member;
    return std::nullopt;
  }
  if (wide_ || accumulator_size(e) == element_size(e)) return ConstBytes(scratch.sum);
  scratch.out.resize(bytes);
  fold_finish(e, within_, 1, scratch.sum.data(), scratch.out.data(), count);
  return ConstBytes(scratch.out.data(), bytes);
}

}  // namespace mcast
