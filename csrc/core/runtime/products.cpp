// The function that makes the products, as a program or library has set it.
#include "runtime/products.h"

#include <atomic>

namespace mcast {
namespace {

std::atomic<Assemble> g_assemble{nullptr};

}  // namespace

void use_products(Assemble assemble) { g_assemble.store(assemble); }

Products make_products(const EngineContext& context) {
  const Assemble assemble = g_assemble.load();
  return assemble == nullptr ? Products() : assemble(context);
}

}  // namespace mcast
