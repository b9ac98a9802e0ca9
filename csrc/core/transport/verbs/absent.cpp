// Built in place of the rest of this folder if the headers of rdma-core are missing.
#include "transport/registry.h"
#include "transport/verbs/verbs_transport.h"

namespace mcast {

Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options) {
  return verbs_viable(options);
}

Status verbs_viable(const VerbsOptions&) {
  return Status(
      Code::kUnavailable,
      "torch-mcast was built without the headers of rdma-core; install libibverbs-dev and "
      "librdmacm-dev and build it again");
}

TransportType verbs_transport_type() {
  return {"verbs", "an RDMA device", false,
          [](const Config& config) { return verbs_viable(VerbsOptions::from(config)); },
          [](const Config& config, LaneId lane, std::shared_ptr<const crypto::Identity>) {
            return make_verbs_transport(VerbsOptions::from(config, index_of(lane)));
          }};
}

}  // namespace mcast
