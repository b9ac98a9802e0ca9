// Runs experiments from text, for tests: one that cannot be parsed or carried out fails the test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/world/experiment.h"

namespace mcast::sim {

inline ExperimentSpec spec_of(const std::string& text) {
  const auto spec = ExperimentSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << text << ": " << spec.status().to_string();
  return spec.ok() ? *spec : ExperimentSpec();
}

// `meter`: measures the heap; null: none.
inline OpResult outcome_of(const std::string& text, HeapMeter* meter = nullptr) {
  Watch watch;
  watch.meter = meter;
  auto result = run_experiment(spec_of(text), watch);
  EXPECT_TRUE(result.ok()) << text << ": " << result.status().to_string();
  return result.ok() ? *result : OpResult();
}

}  // namespace mcast::sim
