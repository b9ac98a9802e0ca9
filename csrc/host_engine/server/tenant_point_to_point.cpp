// Sends and receives of a client: a record becomes a message of the engine's own group, in the
// order of the records. The group checks the call as it would check a script's: the peer must
// exist, and the group must carry messages. No trust is needed between the engine and its client
// about the peer or the payload: a message that does not fit fails their group, as between
// processes.
//
// A number that is already in flight cannot come from a correct client: its end could belong to
// either message.
#include <utility>

#include "host_engine/server/tenant_group.h"

namespace mcast::service {
namespace {

ipc::MessageDoneRecord ended(uint32_t handle, uint32_t number, const Status& why) {
  return {handle, number, kNoMember, static_cast<uint8_t>(why.code()), why.message()};
}

}  // namespace

TenantGroup::Finish TenantGroup::end_of(uint32_t number,
                                        std::shared_ptr<std::atomic<Member>> source) const {
  return [flights = flights_, link = link_, in_flight = in_flight_, handle = handle_, number,
          source = std::move(source)](const Status& status, bool held) {
    {
      const std::lock_guard<std::mutex> locked(flights->mutex);
      flights->messages.erase(number);
    }
    if (first_failure(*flights, status)) {
      link->complete(
          ipc::FailedRecord{handle, static_cast<uint8_t>(status.code()), status.message()});
    }
    in_flight->fetch_sub(1);
    auto record = ended(handle, number, status);
    if (status.ok()) record.source = source->load(std::memory_order_acquire);
    record.held = held;
    link->complete(record);
  };
}

Status TenantGroup::message(const ipc::MessageRecord& record, const Arenas& arenas,
                            const std::shared_ptr<Mover>& mover) {
  Laid laid;
  laid.mover = mover;
  if (Status fits = lay_out({record.memory}, record.staged, arenas, laid); !fits.ok()) return fits;
  {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    if (flights_->messages.count(record.number) != 0) {
      return Status(Code::kInvalidArgument,
                    "message " + std::to_string(record.number) + " is in flight already");
    }
  }
  Status refused = room();
  if (refused.ok() && !laid.own.empty()) {
    const Transfer::What what{
        handle_,        wire::Kind::kBroadcast, record.receives ? "recv" : "send",
        group_->rank(), record.timeout,         record.staged};
    if (Status sound = start_transfer(what, laid, refused); !sound.ok()) return sound;
  }
  if (refused.ok()) refused = call(record, laid);
  if (refused.ok() && laid.transfer) mover->submit(laid.transfer);
  if (!refused.ok()) refuse(ended(handle_, record.number, refused), refused);
  return {};
}

Status TenantGroup::call(const ipc::MessageRecord& record, const Laid& laid) {
  MessageCall call;
  call.receives = record.receives;
  call.memory = record.receives ? laid.outputs[0] : laid.inputs[0];
  call.peer = record.peer;
  call.tag = record.tag;
  call.source = std::make_shared<std::atomic<Member>>(kNoMember);
  PostOptions options;
  options.timeout = record.timeout;
  const auto finish = end_of(record.number, call.source);
  if (laid.transfer) {
    end_by_mover(laid, finish, record.receives, options);
  } else {
    options.done = [finish](const Status& status) { finish(status, false); };
  }
  {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    flights_->messages[record.number] = {laid.inputs, laid.mover, laid.transfer};
  }
  in_flight_->fetch_add(1);
  Status posted = group_->post_message(std::move(call), std::move(options));
  if (posted.ok()) return {};
  in_flight_->fetch_sub(1);
  const std::lock_guard<std::mutex> held(flights_->mutex);
  flights_->messages.erase(record.number);
  return posted;
}

}  // namespace mcast::service
