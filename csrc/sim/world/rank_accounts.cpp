// Amounts are differences to the start; peaks are reset at the start. Traffic of aggregators is not
// counted for ranks, nor are the registrars' records to them.
#include "sim/world/rank_accounts.h"

#include <algorithm>

#include "protocol/tree.h"

namespace mcast::sim {

RankAccounts::RankAccounts(World& world, World::GroupId group, HeapMeter* meter)
    : world_(world), group_(group), meter_(meter), lanes_(world.lanes()) {
  world_.network().fabric().reset_traffic(lanes_.size());
  for (SimLane* const lane : lanes_) {
    if (lane != nullptr) lane->endpoint().reset_account();
  }
  std::vector<uint64_t> before(world_.ranks());
  world_.take_staged_peaks(group_, &before);
  for (Member m = 0; m < world_.size(group_); m++) {
    frames_.push_back(world_.group(group_, m).count(Counter::frames_sent));
  }
  if (meter_ == nullptr) return;
  meter_->reset_peaks();
  for (uint32_t r = 0; r < world_.ranks(); r++) idle_.push_back(meter_->held(r));
}

void RankAccounts::put(OpResult* result) {
  put_sent(result);
  put_peaks(result);
  if (meter_ != nullptr) put_states(result);
}

void RankAccounts::put_sent(OpResult* result) {
  const auto& class_of = world_.spec().net.fabric->frames;
  std::vector<SentOfRank> by_rank(world_.ranks());
  std::vector<uint32_t> rank_of(lanes_.size(), kNone);
  for (size_t e = 0; e < lanes_.size(); e++) {
    if (lanes_[e] == nullptr) continue;
    rank_of[e] = world_.rank_at(e);
    const auto& frames = lanes_[e]->endpoint().account().frames;
    for (size_t channel = 0; channel < frames.size(); channel++) {
      by_rank[rank_of[e]][static_cast<size_t>(class_of[channel])].frames += frames[channel];
    }
  }
  account_ranks(world_.network().fabric(), rank_of, std::move(by_rank), result);
  for (Member m = 0; m < world_.size(group_); m++) {
    const uint64_t sent = world_.group(group_, m).count(Counter::frames_sent) - frames_[m];
    result->frames.all += sent;
    if (sent <= result->frames.most) continue;
    result->frames.most = sent;
    result->frames.rank = m;
  }
}

void RankAccounts::put_peaks(OpResult* result) {
  std::vector<uint64_t> inbox(world_.ranks()), staging(world_.ranks());
  for (size_t e = 0; e < lanes_.size(); e++) {
    if (lanes_[e] == nullptr) continue;
    uint64_t& most = inbox[world_.rank_at(e)];
    most = std::max<uint64_t>(most, lanes_[e]->endpoint().account().inbox);
  }
  world_.take_staged_peaks(group_, &staging);
  result->peaks.inbox = peak_of(inbox);
  result->peaks.staging = peak_of(staging);
}

void RankAccounts::put_states(OpResult* result) const {
  States& states = result->states;
  const uint32_t ranks = world_.ranks();
  for (uint32_t r = 0; r < ranks; r++) {
    states.idle += idle_[r];
    states.peak = std::max(states.peak, meter_->peak(r));
  }
  states.idle /= ranks;
  const auto state_of = [&](uint32_t rank) {
    return RankState{rank, idle_[rank], meter_->peak(rank)};
  };
  using ControlTree = mcast::Tree;  // placement trees are another type
  states.top = state_of(ControlTree::kTop);
  const GroupCore* const core = world_.core(group_, ControlTree::kTop, LaneId::kMulticast);
  if (core == nullptr) return;
  const ControlTree tree(ranks, core->params().arity);
  if (ranks > 1 && tree.children(1) > 0) states.inner = state_of(1);
  if (ranks > 1) states.leaf = state_of(ranks - 1);  // the last one of a heap
}

}  // namespace mcast::sim
