// Heads are sent first: they are short, or limited by a small account, and the next match of a
// receive may depend on them. Then granted bytes, oldest grant first, as far as they can be read.
#include "protocol/p2p_sender.h"

namespace mcast {

void P2pSender::post(uint64_t id, uint32_t tag, uint64_t total) {
  posted_.push_back({id, tag, total});
}

// All of the unasked bytes or none: a few at a time would only make more pieces.
P2pSender::Piece P2pSender::head(uint64_t readable) const {
  const Out& o = posted_.front();
  Piece piece{o.id, next_, o.tag, o.total, 0, std::min(params_.unasked, o.total), true};
  const bool room = bytes_.out - bytes_.taken + piece.bytes <= params_.account;
  if (!room || readable < piece.bytes) piece.bytes = 0;
  return piece;
}

std::optional<P2pSender::Piece> P2pSender::rest(uint32_t number, uint64_t readable) const {
  const Out& o = open_.at(number);
  const uint64_t end = std::min(o.granted, readable);
  if (end <= o.sent) return std::nullopt;
  return Piece{o.id, number, o.tag, o.total, o.sent, std::min(params_.piece, end - o.sent), false};
}

bool P2pSender::sent(const Piece& piece) {
  if (piece.head) {
    Out o = posted_.front();
    posted_.pop_front();
    next_++;
    heads_.out++;
    bytes_.out += piece.bytes;
    o.sent = o.granted = piece.bytes;
    if (o.sent == o.total) return true;
    open_.emplace(piece.number, o);
    return false;
  }
  Out& o = open_.at(piece.number);
  o.sent += piece.bytes;
  if (o.sent == o.granted) std::erase(granted_, piece.number);
  if (o.sent < o.total) return false;
  open_.erase(piece.number);
  return true;
}

bool P2pSender::on_grant(uint32_t number, uint64_t end) {
  const auto found = open_.find(number);
  if (found == open_.end()) return false;
  Out& o = found->second;
  if (end <= o.granted || end > o.total) return false;
  if (o.granted == o.sent) granted_.push_back(number);
  o.granted = end;
  return true;
}

bool P2pSender::on_credit(uint64_t heads, uint64_t bytes) {
  const auto news = [](const Account& a, uint64_t taken) {
    return taken >= a.taken && taken <= a.out;
  };
  if (!news(heads_, heads) || !news(bytes_, bytes)) return false;
  heads_.taken = heads;
  bytes_.taken = bytes;
  return true;
}

std::vector<uint64_t> P2pSender::abandon() {
  std::vector<uint64_t> ids;
  for (const auto& [number, o] : open_) ids.push_back(o.id);
  for (const Out& o : posted_) ids.push_back(o.id);
  open_.clear();
  posted_.clear();
  granted_.clear();
  return ids;
}

}  // namespace mcast
