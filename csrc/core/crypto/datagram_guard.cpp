// The nonce is the epoch's iv XOR the packet number; the number is a counter that only seal()
// advances: (epoch, counter) to (key, nonce) is one to one. The number is taken before the cipher
// runs, so the number of a failed attempt is not used again either.
//
// A receiver keeps the keys of two epochs. A number of a later one makes it derive that epoch's key
// from the chain, and only a tag that fits advances the chain. The filter is checked before all of
// that: only a header made by a member can trigger a derivation.
//
// All senders' first chains are derived when the guard is made, some microseconds each: with the
// group's root every epoch could be derived again, so the root is not kept.
#include "crypto/datagram_guard.h"

#include <string>

namespace mcast::crypto {
namespace {

using wire::kDatagramTag;
using wire::kGuardedHeader;

// Cost of a step to an epoch that is not opened yet: bytes that can be opened in the time of its
// derivation.
constexpr size_t kStepCost = 8u << 10;

uint32_t header_filter(const FilterKey& key, const std::byte* header) noexcept {
  return static_cast<uint32_t>(siphash13(key, {header + 4, kGuardedHeader - 4}));
}

}  // namespace

Result<SealKey> SealKey::make(const Key& root, const Guarding& how, Member self,
                              const EpochLimits& limits) {
  auto chain = EpochChain::make(first_chain(root, how.mode, how.suite, how.lane, self), how.suite);
  if (!chain.ok()) return chain.status();
  auto current = Keyed<SealContext>::make(*chain);
  if (!current.ok()) return current.status();
  return SealKey(std::move(chain).value(), std::move(current).value(), filter_key(root, how.lane),
                 how, limits);
}

bool SealKey::step() {
  if (chain_.epoch() + 1 >= limits_.epochs) {
    failure_ = Status(Code::kResourceExhausted,
                      "all " + std::to_string(limits_.epochs) +
                          " epochs of this rank's keys are used up; make a new group");
    return false;
  }
  chain_.step();
  auto next = Keyed<SealContext>::make(chain_);
  if (!next.ok()) {
    failure_ = next.status();
    return false;
  }
  current_ = std::move(next).value();
  next_ = 0;
  blocks_ = 0;
  age_.begin();
  return true;
}

size_t SealKey::seal(Bytes out, const wire::DatagramHeader& header, ConstBytes payload) noexcept {
  if (!failure_.ok()) return 0;
  const uint64_t blocks = blocks_of(kGuardedHeader + payload.size());
  const bool old = age_.over() && next_ > 0;
  const bool full = next_ >= limits_.packets || blocks_ + blocks > limits_.blocks;
  if ((old || full) && !step()) return 0;
  const uint64_t number = wire::packet_number(chain_.epoch(), next_++);
  blocks_ += blocks;
  std::byte* const p = out.data();
  const bool sealed = how_.mode == Mode::kSealed;
  wire::write_guarded(p, {header, sealed, 0, number});
  wire::store<uint32_t>(p, header_filter(filter_, p));
  const std::span<std::byte, kTagSize> tag(p + kGuardedHeader + payload.size(), kTagSize);
  std::byte* const place = p + kGuardedHeader;
  const ConstBytes head(p, kGuardedHeader);
  bool good = false;
  if (sealed) {
    good = current_.context.seal(make_nonce(current_.iv, number), head, {&payload, 1}, place, tag);
  } else {
    // Authenticates the bytes that are sent: copied first, since the caller may write to the
    // payload.
    if (!payload.empty() && payload.data() != place) {
      std::memcpy(place, payload.data(), payload.size());
    }
    const ConstBytes all(p, kGuardedHeader + payload.size());
    good = current_.context.seal(make_nonce(current_.iv, number), all, {}, place, tag);
  }
  if (!good) {
    failure_ = Status(Code::kInternal, "libcrypto has failed to seal a datagram");
    return 0;
  }
  ++sealed_;
  return kGuardedHeader + payload.size() + kDatagramTag;
}

Result<OpenKey> OpenKey::make(const Key& root, const Guarding& how, Member sender,
                              const OpenLimits& limits) {
  auto chain =
      EpochChain::make(first_chain(root, how.mode, how.suite, how.lane, sender), how.suite);
  if (!chain.ok()) return chain.status();
  return OpenKey(std::move(chain).value(), limits);
}

bool OpenKey::knows(uint32_t epoch, Nanos now) const noexcept {
  const uint32_t mine = chain_.epoch();
  if (epoch >= mine) return epoch - mine <= limits_.ahead;
  return epoch + 1 == mine && previous_ && now < previous_until_;
}

bool OpenKey::open(uint64_t number, ConstBytes aad, ConstBytes ciphertext,
                   std::span<const std::byte, kTagSize> tag, std::byte* out, Nanos now) {
  const uint32_t epoch = wire::epoch_of(number);
  if (previous_ && now >= previous_until_) previous_.reset();
  if (!knows(epoch, now)) return false;
  const auto with = [&](Keyed<OpenContext>& keyed) {
    const bool good = keyed.context.open(make_nonce(keyed.iv, number), aad, ciphertext, tag, out);
    failures_ += good ? 0 : 1;
    return good;
  };
  if (epoch < chain_.epoch()) return with(*previous_);
  if (epoch == chain_.epoch()) {
    if (!current_) {
      auto first = Keyed<OpenContext>::make(chain_);
      if (!first.ok()) return false;
      current_.emplace(std::move(first).value());
    }
    return with(*current_);
  }
  auto ahead = chain_.clone();
  if (!ahead.ok()) return false;
  while (ahead->epoch() + 1 < epoch) ahead->step();
  auto before = Keyed<OpenContext>::make(*ahead);
  ahead->step();
  auto next = Keyed<OpenContext>::make(*ahead);
  if (!before.ok() || !next.ok() || !with(*next)) return false;
  chain_ = std::move(ahead).value();
  previous_ = std::move(before).value();
  previous_until_ = now + limits_.previous;
  current_ = std::move(next).value();
  return true;
}

DatagramGuard::DatagramGuard(const Key& root, const Params& params, SealKey seal,
                             std::vector<std::optional<Sender>> senders,
                             std::shared_ptr<OpenBudget> budget)
    : params_(params),
      filter_(filter_key(root, params.how.lane)),
      seal_(std::move(seal)),
      budget_(std::move(budget)),
      senders_(std::move(senders)),
      scratch_(params.most_payload) {}

Result<std::unique_ptr<DatagramGuard>> DatagramGuard::make(const Key& root, const Params& params,
                                                           std::shared_ptr<OpenBudget> budget) {
  auto seal = SealKey::make(root, params.how, params.self, params.epochs);
  if (!seal.ok()) return seal.status();
  std::vector<std::optional<Sender>> senders(params.members);
  for (uint32_t m = 0; m < params.members; m++) {
    if (m == params.self) continue;
    auto key = OpenKey::make(root, params.how, static_cast<Member>(m), params.opens);
    if (!key.ok()) return key.status();
    senders[m].emplace(Sender{std::move(key).value(), {}});
  }
  return std::unique_ptr<DatagramGuard>(new DatagramGuard(root, params, std::move(seal).value(),
                                                          std::move(senders), std::move(budget)));
}

DatagramVerdict DatagramGuard::judge(const wire::GuardedHeader& header, ConstBytes datagram,
                                     Nanos now) {
  if (header.sealed != (params_.how.mode == Mode::kSealed)) return DatagramVerdict::kDowngraded;
  if (header.inner.lane != params_.how.lane) return DatagramVerdict::kForeign;
  if (header.filter != header_filter(filter_, datagram.data()))
    return DatagramVerdict::kForgedHeader;
  if (header.inner.member == params_.self) return DatagramVerdict::kOwn;
  if (header.inner.member >= params_.members || header.inner.reserved != 0 ||
      datagram.size() > kGuardedHeader + kDatagramTag + scratch_.size()) {
    return DatagramVerdict::kMalformed;
  }
  const std::optional<Sender>& from = senders_[header.inner.member];
  if (!from->key.knows(wire::epoch_of(header.number), now)) return DatagramVerdict::kStale;
  if (header.inner.type != wire::DatagramType::kData && from->control.refuses(header.number)) {
    return DatagramVerdict::kReplayed;
  }
  return DatagramVerdict::kVerified;
}

DatagramVerdict DatagramGuard::open(const wire::GuardedHeader& header, ConstBytes datagram,
                                    ConstBytes& payload, Nanos now) {
  const Member member = header.inner.member;
  if (!budget_->allows(member, header.number, now)) return DatagramVerdict::kCrowdedOut;
  Sender& from = *senders_[member];
  const auto tag = datagram.last<kTagSize>();
  const ConstBytes covered = datagram.first(datagram.size() - kTagSize);
  const ConstBytes body = covered.subspan(kGuardedHeader);
  const bool sealed = params_.how.mode == Mode::kSealed;
  const ConstBytes aad = sealed ? covered.first(kGuardedHeader) : covered;
  if (!from.key.open(header.number, aad, sealed ? body : ConstBytes{}, tag, scratch_.data(), now)) {
    const uint32_t epoch = wire::epoch_of(header.number);
    const uint32_t ahead = epoch > from.key.epoch() ? epoch - from.key.epoch() : 0;
    budget_->failed(datagram.size() + ahead * kStepCost, now);
    if (from.key.worn_out()) worn_out_ = member;
    return DatagramVerdict::kForged;
  }
  payload = sealed ? ConstBytes(scratch_).first(body.size()) : body;
  if (header.inner.type != wire::DatagramType::kData) from.control.accept(header.number);
  ++opened_;
  return DatagramVerdict::kVerified;
}

uint32_t DatagramGuard::epoch_of(Member member) const noexcept {
  const std::optional<Sender>& from = senders_[member];
  return from ? from->key.epoch() : 0;
}

}  // namespace mcast::crypto
