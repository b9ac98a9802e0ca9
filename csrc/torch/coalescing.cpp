// The work of a batch waits for its parts one after another, and completes when all have.
#include "coalescing.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"

namespace mcast::pg {
namespace {

class BatchWork final : public c10d::Work {
 public:
  BatchWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
      : Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& part : parts_) {
      if (std::exception_ptr error = part->exception()) return error;
    }
    return nullptr;
  }
  void synchronize() override {
    for (const auto& part : parts_) part->synchronize();
  }
  // Waits for all parts, even after one has failed: no other caller waits for the rest.
  bool wait(std::chrono::milliseconds timeout) override {
    const Nanos start = monotonic_now();
    std::exception_ptr first;
    for (const auto& part : parts_) {
      auto left = timeout;
      if (timeout > kNoTimeout) {
        left -= std::chrono::milliseconds((monotonic_now() - start) / kMilli);
        left = std::max(left, std::chrono::milliseconds(1));
      }
      try {
        part->wait(left);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    Work::synchronize();
    if (first) std::rethrow_exception(first);
    return true;
  }
  void abort() override {
    for (const auto& part : parts_) part->abort();
  }
  // The results of the parts in the order of the calls; an error is that of the first part that has
  // one.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& part : parts_) futures.push_back(part->getFuture());
    return c10::collectAll(futures)->then(
        [](c10::ivalue::Future& all) -> c10::IValue {
          std::vector<at::Tensor> tensors;
          for (const c10::IValue& each : all.value().toListRef()) {
            auto part = each.toFuture();
            if (part->hasError()) std::rethrow_exception(part->exception_ptr());
            for (const at::Tensor& tensor : part->value().toTensorVector()) {
              tensors.push_back(tensor);
            }
          }
          return tensors;
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace

void Coalescing::start() {
  works_.clear();
  started_.clear();
  thread_.store(std::this_thread::get_id());
}

void Coalescing::add(const WorkPtr& work) {
  if (active() && work) works_.push_back(work);
}

bool Coalescing::touch(const BackendPtr& fallback) {
  if (!active() || !fallback->supportsCoalescing()) return false;
  if (std::find(started_.begin(), started_.end(), fallback) == started_.end()) {
    fallback->startCoalescing();
    started_.push_back(fallback);
  }
  return true;
}

Coalescing::WorkPtr Coalescing::end(int rank) {
  thread_.store({});
  for (const BackendPtr& fallback : std::exchange(started_, {})) {
    if (WorkPtr work = fallback->endCoalescing()) works_.push_back(std::move(work));
  }
  std::vector<WorkPtr> works = std::exchange(works_, {});
  if (works.size() == 1) return works[0];
  return c10::make_intrusive<BatchWork>(rank, std::move(works));
}

}  // namespace mcast::pg
