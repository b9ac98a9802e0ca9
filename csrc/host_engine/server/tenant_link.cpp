// Completions are written under one lock by the thread that has them, which may be a lane, so no
// call here waits: if the ring is full they go to a list, which the tenant's thread writes when
// there is room. After writing, the thread wakes threads of the client that sleep on the ring, and
// otherwise checks whether the client's link sleeps and sends it a Look.
#include "host_engine/server/tenant_link.h"

#include "base/log.h"
#include "shm/futex.h"

namespace mcast::service {

ipc::Control refusal(uint64_t call, const Status& why) {
  return control_of(ipc::ControlType::kRefused, call, ipc::Verdict::of(why));
}

Result<std::shared_ptr<TenantLink>> TenantLink::make(LocalSocket&& socket) {
  Result<Segment> memory = Segment::create("torch-mcast link", ipc::kLinkBytes);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<TenantLink>(new TenantLink(std::move(socket), std::move(memory).value()));
}

TenantLink::TenantLink(LocalSocket socket, Segment memory)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      submissions_({&page().submission, ipc::submission_of(memory_.data()), ipc::kSubmissionBytes}),
      completions_(
          {&page().completion, ipc::completion_of(memory_.data()), ipc::kCompletionBytes}) {}

void TenantLink::write_all() {
  while (!kept_.empty() && completions_.write(kept_.front())) kept_.pop_front();
  if (!completions_.broken()) return;
  kept_.clear();
  fail(kBrokenRing);
}

void TenantLink::complete(const ipc::Completed& record) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (completions_.broken()) return;  // the client is being ended: write_all()
    kept_.push_back(ipc::bytes_of(record));
    write_all();
  }
  wake();
}

void TenantLink::flush() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (kept_.empty()) return;
    write_all();
  }
  wake();
}

size_t TenantLink::waiting() {
  const std::lock_guard<std::mutex> held(mutex_);
  return kept_.size();
}

void TenantLink::wake() {
  if (page().waiters.load(std::memory_order_seq_cst) > 0) {
    ring(page().bell);
  } else if (ipc::RingWriter::take_sleeper(page().client_asleep)) {
    tell({ipc::ControlType::kLook, 0, {}});
  }
}

void TenantLink::tell(const ipc::Control& message, std::span<const int> descriptors) {
  if (const std::string why = too_long(message); !why.empty()) {
    log(LogLevel::kError, "client (process %d): %s", static_cast<int>(socket_.peer_pid()),
        why.c_str());
    const ipc::Verdict refused{Code::kResourceExhausted, why};
    if (message.call != 0) tell(control_of(ipc::ControlType::kRefused, message.call, refused));
    return;
  }
  (void)socket_.send(ipc::bytes_of(message), descriptors, 0);
}

}  // namespace mcast::service
