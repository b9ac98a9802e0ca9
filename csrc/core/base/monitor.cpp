// A warning is made when its cause is counted, so a source that has stopped causes no more. A new
// source that takes a place of the table starts without the warning history of the old one.
#include "base/monitor.h"

#include "base/log.h"

namespace mcast {
namespace {

constexpr const char* kCauseNames[] = {
#define MCAST_CAUSE_NAME(name, help, does) #name,
    MCAST_CAUSES(MCAST_CAUSE_NAME)
#undef MCAST_CAUSE_NAME
};
constexpr const char* kCauseHelp[] = {
#define MCAST_CAUSE_HELP(name, help, does) help,
    MCAST_CAUSES(MCAST_CAUSE_HELP)
#undef MCAST_CAUSE_HELP
};
constexpr const char* kCauseDoes[] = {
#define MCAST_CAUSE_DOES(name, help, does) does,
    MCAST_CAUSES(MCAST_CAUSE_DOES)
#undef MCAST_CAUSE_DOES
};

}  // namespace

const char* cause_name(Cause cause) noexcept { return kCauseNames[static_cast<size_t>(cause)]; }
const char* cause_help(Cause cause) noexcept { return kCauseHelp[static_cast<size_t>(cause)]; }
const char* cause_does(Cause cause) noexcept { return kCauseDoes[static_cast<size_t>(cause)]; }

void Monitor::note(Cause cause, Source source, Nanos now) {
  if (now - second_ >= kSecond) {
    second_ = now;
    in_second_ = 0;
  }
  count(cause, source, now);
  if (++in_second_ == kStorm) count(Cause::storm, source, now);
}

void Monitor::count(Cause cause, Source source, Nanos now) {
  ++counts_[static_cast<size_t>(cause)];
  if (!table_) return;
  SourceTable::Row& row = table_->note(source, cause);
  uint64_t& told = row.told[static_cast<size_t>(cause)];
  Nanos& told_at = row.told_at[static_cast<size_t>(cause)];
  if (told > 0 && now - told_at < kRepeat) return;
  const uint64_t since = row.count(cause) - told;
  const Nanos before = told_at;
  const bool first = told == 0;
  told = row.count(cause);
  told_at = now;
  if (!line_allowed(now)) {
    ++untold_;
    return;
  }
  const std::string how_often =
      first ? "first seen now"
            : std::to_string(since) + " in " + std::to_string((now - before) / kSecond) + " s";
  log(LogLevel::kWarn, "%s %s (%s: %s); see docs/security.md", source.text().c_str(),
      cause_does(cause), cause_name(cause), how_often.c_str());
}

bool Monitor::line_allowed(Nanos now) {
  if (lines_ == 0 || now - minute_ >= kRepeat) {
    minute_ = now;
    lines_ = 0;
  }
  return ++lines_ <= kLines;
}

}  // namespace mcast
