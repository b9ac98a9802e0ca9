// A backend that defers calls between startCoalescing() and endCoalescing(), as NCCL does: there
// they return no work, and all start together at the end. It moves tensors of any device through
// another backend of the CPU, and logs its calls.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace batching {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using Finish = std::function<void()>;
using Call = std::function<Finish()>;  // starts it, and returns the function that waits for it

// Completes when it is waited for.
class Batch final : public c10d::Work {
 public:
  explicit Batch(std::vector<Finish> begun) : begun_(std::move(begun)) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    for (const Finish& end : std::exchange(begun_, {})) end();
    finish();
    return true;
  }

 private:
  std::vector<Finish> begun_;
};

class Batching final : public c10d::Backend {
 public:
  explicit Batching(BackendPtr inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "batching"; }
  bool supportsCoalescing() const override { return true; }

  void startCoalescing() override {
    log_.emplace_back("start");
    holding_ = true;
  }
  WorkPtr endCoalescing() override {
    log_.emplace_back("end");
    holding_ = false;
    std::vector<Finish> begun;
    for (const Call& call : std::exchange(held_, {})) begun.push_back(call());
    return c10::make_intrusive<Batch>(std::move(begun));
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return run("send to " + std::to_string(to), tensors, false,
               [this, to, tag](Tensors& host) { return inner_->send(host, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return run("recv from " + std::to_string(from), tensors, true,
               [this, from, tag](Tensors& host) { return inner_->recv(host, from, tag); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return run("all_reduce", tensors, true,
               [this, opts](Tensors& host) { return inner_->allreduce(host, opts); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override {
    return run("all_reduce_coalesced", tensors, true, [this, opts](Tensors& host) {
      WorkPtr work;
      for (at::Tensor& tensor : host) {
        Tensors one = {tensor};
        work = inner_->allreduce(one, opts);
        work->wait();
      }
      return work;
    });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return run("reduce", tensors, true,
               [this, opts](Tensors& host) { return inner_->reduce(host, opts); });
  }

  // Returns the calls since the last log().
  std::vector<std::string> log() { return std::exchange(log_, {}); }

 private:
  WorkPtr run(std::string what, const Tensors& tensors, bool back,
              std::function<WorkPtr(Tensors&)> inner) {
    log_.push_back(std::move(what));
    Call call = [tensors, back, inner = std::move(inner)]() -> Finish {
      Tensors host;
      for (const at::Tensor& tensor : tensors) host.push_back(tensor.cpu());
      WorkPtr work = inner(host);
      return [tensors, host, back, work] {
        work->wait();
        for (size_t i = 0; back && i < tensors.size(); ++i) tensors[i].copy_(host[i]);
      };
    };
    if (holding_) {
      held_.push_back(std::move(call));
      return {};
    }
    return c10::make_intrusive<Batch>(std::vector<Finish>{call()});
  }

  const BackendPtr inner_;
  bool holding_ = false;
  std::vector<Call> held_;
  std::vector<std::string> log_;
};

}  // namespace batching

PYBIND11_MODULE(batching_backend, module) {
  using batching::Batching;
  py::class_<Batching, c10d::Backend, c10::intrusive_ptr<Batching>>(module, "Batching")
      .def(py::init<batching::BackendPtr>(), py::arg("inner"))
      .def("log", &Batching::log);
}
