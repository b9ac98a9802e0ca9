// What was refused, as Python sees it: part of stats(), and the help of the causes.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "engine/group.h"

namespace mcast::pg {

// stats()["security"].
pybind11::dict security_dict(const SecurityStats& stats);
// {cause: what it counts}.
pybind11::dict causes_dict();
// Payload bytes per second that a core seals, in this mode and suite and chunks of so many bytes;
// raises where there is no library or no such mode or suite.
double seal_rate_here(const std::string& mode, const std::string& suite, size_t chunk);
// For metrics: of every group of this process name, rank, size, path, failure, counters, security.
pybind11::list groups_list();

}  // namespace mcast::pg
