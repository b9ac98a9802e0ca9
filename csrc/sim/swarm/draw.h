// Random draws shared by all parts of a plan's generator.
// Threads: pure.
#pragma once

#include <initializer_list>

#include "base/rng.h"

namespace mcast::sim {

template <typename T>
T one_of(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng.below(values.size())];
}

}  // namespace mcast::sim
