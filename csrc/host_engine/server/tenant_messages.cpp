// A tenant's socket: messages, each answered here or by the code that carries out the request.
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/quota.h"
#include "base/units.h"
#include "base/version.h"
#include "host_engine/ipc/stats_record.h"
#include "host_engine/server/tenant.h"

namespace mcast::service {
namespace {

// Maximum number per poll, each with the records written to the ring before it.
constexpr int kMostMessages = 64;
constexpr size_t kMostCaughtUp = 4096;
// A process may have 65,530 mappings unless vm.max_map_count was raised: one client takes a part of
// them, one user's clients an eighth, and all of them half.
constexpr size_t kMostArenas = 1024;
constexpr uint32_t kMostOfUser = 8192, kMostMappings = 32'768;

struct MappedArena {
  std::shared_ptr<void> place;  // counts in kMostMappings and kMostOfUser
  Segment memory;
};

std::shared_ptr<Quota> arenas(uint32_t most, const char* whose) {
  return std::make_shared<Quota>(
      most, "engine's limit of " + std::to_string(most) + " arenas of " + whose + " is reached");
}

// Takes a place of the user's and one of all, held as long as the result lives. Counted for this
// process, like the limits.
Result<std::shared_ptr<void>> place_for_arena(uid_t user) {
  struct Quotas {
    std::mutex mutex;
    std::shared_ptr<Quota> all = arenas(kMostMappings, "all clients");
    std::map<uid_t, std::shared_ptr<Quota>> users;
  };
  static auto& quotas = *new Quotas;
  std::shared_ptr<Quota> its;
  {
    const std::lock_guard<std::mutex> held(quotas.mutex);
    std::shared_ptr<Quota>& found = quotas.users[user];
    if (!found) found = arenas(kMostOfUser, "one user");
    its = found;
  }
  auto of_user = its->take(1);
  if (!of_user.ok()) return of_user;
  auto of_all = quotas.all->take(1);
  if (!of_all.ok()) return of_all;
  return std::shared_ptr<void>(
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
          std::move(of_user).value(), std::move(of_all).value()));
}

}  // namespace

std::string Tenant::serve_socket() {
  size_t records = 0;
  for (int i = 0; i < kMostMessages && records < kMostCaughtUp; i++) {
    Packet packet;
    switch (link_->receive(packet)) {
      case LocalSocket::Got::kNothing:
        return "";
      case LocalSocket::Got::kEnd:
        bye_ = !greeted_;  // a process that only checked whether there is an engine
        if (bye_) return "";
        return "its process " + std::to_string(link_->socket().peer_pid()) + " has ended";
      case LocalSocket::Got::kPacket:
        break;
    }
    const auto message = ipc::parse_control(packet.bytes);
    if (!message) return "its process broke the engine's protocol: a message cannot be read";
    std::string why = greeted_ ? catch_up(records) : "";
    if (!why.empty()) return why;
    why = greeted_ ? on_message(*message, std::move(packet.descriptors)) : greet(*message);
    if (!why.empty()) return "its process broke the engine's protocol: " + why;
    if (bye_) return "";
  }
  return "";  // more may be there: poll() will show it
}

std::string Tenant::greet(const ipc::Control& message) {
  ipc::Hello hello;
  if (message.type != ipc::ControlType::kHello || !read(message, hello)) return "no Hello";
  if (hello.oldest > ipc::kControlVersion || hello.newest < ipc::kControlVersion) {
    link_->tell(refusal(0, Status(Code::kMismatch, std::string("it is of version ") + version() +
                                                       ", this process of " + hello.product +
                                                       "; install the same on both sides")));
    bye_ = true;
    return "";
  }
  if (drain_limit_ != kNever) {
    link_->tell(refusal(0, being_replaced()));
    bye_ = true;
    return "";
  }
  ipc::Welcome welcome;
  welcome.silence = limits_.silence;
  if (const auto& security = maker_.context().security) {
    welcome.security = security->modes_text();
    if (security->secret) welcome.secret_check = security->secret->make_check();
  }
  for (const SettingInfo& info : setting_table()) {
    welcome.settings += (welcome.settings.empty() ? "" : ",") + std::string(info.name);
  }
  const int memory = link_->memory().fd();
  greeted_ = true;
  link_->tell(control_of(welcome), std::span<const int>(&memory, 1));
  return "";
}

std::string Tenant::on_message(const ipc::Control& message, std::vector<Fd> files) {
  ipc::StoreAnswer answer;
  ipc::Arena arena;
  ipc::Close close;
  ipc::Abort abort;
  const auto creation = creations_.find(message.call);
  switch (message.type) {
    case ipc::ControlType::kLook:
      return "";
    case ipc::ControlType::kBye:
      bye_ = true;
      return "";
    case ipc::ControlType::kGroupAsk:
      return on_group_ask(message);
    case ipc::ControlType::kStoreAnswer:
      if (!read(message, answer)) return "an answer of a store that cannot be read";
      if (creation != creations_.end()) creation->second.store->answered(std::move(answer));
      return "";
    case ipc::ControlType::kInterrupt:
      if (creation != creations_.end()) creation->second.interrupted = true;
      return "";
    case ipc::ControlType::kArenaOffer:
      if (!read(message, arena) || files.size() != 1) return "an ArenaOffer that cannot be read";
      on_arena_offer(message.call, arena, std::move(files[0]));
      return "";
    case ipc::ControlType::kMemoryOffer:
      return on_memory_offer(message, std::move(files));
    case ipc::ControlType::kClose:
      if (!read(message, close)) return "a Close that cannot be read";
      on_close(message.call, close);
      return "";
    case ipc::ControlType::kAbort:
      if (!read(message, abort)) return "an Abort that cannot be read";
      if (TenantGroup* const group = find(abort.handle)) group->group().abort(abort.reason);
      return "";
    case ipc::ControlType::kStatsAsk:
      on_stats_ask(message);
      return "";
    default:
      return "a message that a client does not send";
  }
}

void Tenant::on_arena_offer(uint64_t call, const ipc::Arena& offered, Fd file) {
  if (offered.bytes == 0 || offered.bytes > limits_.arenas - memory_.arena_bytes) {
    return link_->tell(refusal(call, Status(Code::kResourceExhausted,
                                            "engine's limit of " + std::to_string(limits_.arenas) +
                                                " bytes of arenas (--arenas) is reached")));
  }
  if (memory_.arenas.size() >= kMostArenas) {
    const std::string most = std::to_string(kMostArenas);
    return link_->tell(
        refusal(call, Status(Code::kResourceExhausted,
                             "engine's limit of " + most + " arenas of a client is reached")));
  }
  auto place = place_for_arena(link_->socket().peer_uid());
  if (!place.ok()) return link_->tell(refusal(call, place.status()));
  Result<Segment> mapped = Segment::adopt(std::move(file), offered.bytes, "an arena");
  if (!mapped.ok()) return link_->tell(refusal(call, mapped.status()));
  const size_t space = static_cast<size_t>(ipc::Space::kFirstArena) + memory_.arenas.size();
  const ipc::Arena answer{static_cast<uint16_t>(space), offered.bytes};
  // Its place is taken as long as it is mapped; operations may keep it mapped after the client has
  // left.
  const auto arena = std::make_shared<MappedArena>(
      MappedArena{std::move(place).value(), std::move(mapped).value()});
  memory_.arenas.emplace_back(arena, &arena->memory);
  {
    const std::lock_guard<std::mutex> held(mutex_);
    memory_.arena_bytes += offered.bytes;
  }
  link_->tell(control_of(ipc::ControlType::kArena, call, answer));
}

// The mover sends the reply, because checking the offered memory may block.
std::string Tenant::on_memory_offer(const ipc::Control& message, std::vector<Fd> files) {
  ipc::MemoryOffer offer;
  if (!read(message, offer) || files.size() > 1) return "a MemoryOffer that cannot be read";
  if (memory_.mover) return "a second MemoryOffer";
  const ClientMemory::Client client{link_->socket().peer_pid(), link_->socket().peer_uid()};
  auto account = BounceAccount::of(client.uid);
  if (const Status may = account->may_move(); !may.ok()) {
    link_->tell(refusal(message.call, may));
    return "";
  }
  const auto& threads = maker_.context().threads;
  Result<std::shared_ptr<void>> place = threads ? threads->take(1) : std::shared_ptr<void>();
  if (!place.ok()) {
    link_->tell(refusal(message.call, place.status()));
    return "";
  }
  const auto opened = [link = link_, call = message.call](const Result<ipc::Memory>& how) {
    link->tell(how.ok() ? control_of(call, *how) : refusal(call, how.status()));
  };
  auto mover =
      Mover::start(offer, client, files.empty() ? Fd() : std::move(files[0]),
                   std::make_shared<BouncePool>(std::move(account), limits_.bounce), opened);
  if (!mover.ok()) {
    link_->tell(refusal(message.call, mover.status()));
    return "";
  }
  const std::lock_guard<std::mutex> held(mutex_);
  memory_.thread = std::move(place).value();
  memory_.mover = std::move(mover).value();
  return "";
}

void Tenant::on_close(uint64_t call, const ipc::Close& close) {
  std::shared_ptr<TenantGroup> group;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto it = groups_.find(close.handle);
    if (it != groups_.end()) {
      group = std::move(it->second);
      groups_.erase(it);
    }
  }
  pending_.pass_over(close.handle);
  if (group) return closer_.close(std::move(group), call, close, memory_.mover);
  // The client's time limit for a close has passed; the reply to the first call will report the
  // close.
  if (const auto closing = close.force ? closer_.find(close.handle) : nullptr) {
    closing->shared()->begin_close(close.limit, true, [](const Status&) {});
  }
  link_->tell(control_of(ipc::ControlType::kClosed, call, ipc::Verdict::of({})));
}

void Tenant::on_stats_ask(const ipc::Control& message) {
  uint32_t handle = 0;
  std::shared_ptr<GroupBase> group;
  if (message.parts.size() == 1 && read_number(message.parts[0], handle)) {
    if (TenantGroup* const found = find(handle)) group = found->shared();
  }
  if (!group) return link_->tell(refusal(message.call, Status(Code::kClosed, "no such group")));
  link_->tell(
      {ipc::ControlType::kStats, message.call, {encode_stats(group->stats(), kMostStatsText)}});
}

}  // namespace mcast::service
