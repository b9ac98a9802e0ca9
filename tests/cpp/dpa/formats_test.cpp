// The kernel's formats equal those of infiniband/mlx5dv.h and of wire/datagram.h. Layouts are
// checked by static assertions, functions that write them by their bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "dpa.h"
#include "dpa/rig.h"
#include "wire/datagram.h"

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>

#define SAME(ours, our_field, theirs, their_field)                            \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(ours::our_field) == sizeof(theirs::their_field),   \
                #our_field " of " #ours " is not " #their_field " of " #theirs)

static_assert(sizeof(dpa_cqe) == sizeof(mlx5_cqe64) && sizeof(dpa_cqe) == sizeof(mlx5_err_cqe));
SAME(dpa_cqe, immediate, mlx5_cqe64, imm_inval_pkey);
SAME(dpa_cqe, byte_count, mlx5_cqe64, byte_cnt);
SAME(dpa_cqe, syndrome, mlx5_err_cqe, syndrome);
SAME(dpa_cqe, opcode_qpn, mlx5_cqe64, sop_drop_qpn);
SAME(dpa_cqe, wqe_counter, mlx5_cqe64, wqe_counter);
SAME(dpa_cqe, signature, mlx5_cqe64, signature);
SAME(dpa_cqe, op_own, mlx5_cqe64, op_own);
static_assert(+DPA_CQE_REQUEST == MLX5_CQE_REQ &&
              +DPA_CQE_WRITE_IMMEDIATE == MLX5_CQE_RESP_WR_IMM &&
              +DPA_CQE_SEND == MLX5_CQE_RESP_SEND &&
              +DPA_CQE_SEND_IMMEDIATE == MLX5_CQE_RESP_SEND_IMM &&
              +DPA_CQE_REQUEST_ERROR == MLX5_CQE_REQ_ERR &&
              +DPA_CQE_RECEIVE_ERROR == MLX5_CQE_RESP_ERR && +DPA_CQE_INVALID == MLX5_CQE_INVALID);

static_assert(sizeof(dpa_control) == sizeof(mlx5_wqe_ctrl_seg));
SAME(dpa_control, index_opcode, mlx5_wqe_ctrl_seg, opmod_idx_opcode);
SAME(dpa_control, qpn_size, mlx5_wqe_ctrl_seg, qpn_ds);
SAME(dpa_control, signature, mlx5_wqe_ctrl_seg, signature);
SAME(dpa_control, flags, mlx5_wqe_ctrl_seg, fm_ce_se);
SAME(dpa_control, immediate, mlx5_wqe_ctrl_seg, imm);
static_assert(+DPA_SIGNALLED == MLX5_WQE_CTRL_CQ_UPDATE);

static_assert(sizeof(dpa_remote) == sizeof(mlx5_wqe_raddr_seg));
SAME(dpa_remote, address, mlx5_wqe_raddr_seg, raddr);
SAME(dpa_remote, key, mlx5_wqe_raddr_seg, rkey);
SAME(dpa_remote, unused, mlx5_wqe_raddr_seg, reserved);

static_assert(sizeof(dpa_data) == sizeof(mlx5_wqe_data_seg));
SAME(dpa_data, bytes, mlx5_wqe_data_seg, byte_count);
SAME(dpa_data, key, mlx5_wqe_data_seg, lkey);
SAME(dpa_data, address, mlx5_wqe_data_seg, addr);

static_assert(sizeof(dpa_address_vector) == sizeof(mlx5_wqe_av) &&
              sizeof(dpa_address_vector) == sizeof(mlx5_wqe_datagram_seg));
SAME(dpa_address_vector, qkey, mlx5_wqe_av, key.qkey.qkey);
SAME(dpa_address_vector, extended_qpn, mlx5_wqe_av, dqp_dct);
SAME(dpa_address_vector, rate_level, mlx5_wqe_av, stat_rate_sl);
SAME(dpa_address_vector, path_bits, mlx5_wqe_av, fl_mlid);
SAME(dpa_address_vector, lid, mlx5_wqe_av, rlid);
SAME(dpa_address_vector, mac, mlx5_wqe_av, rmac);
SAME(dpa_address_vector, traffic_class, mlx5_wqe_av, tclass);
SAME(dpa_address_vector, hop_limit, mlx5_wqe_av, hop_limit);
SAME(dpa_address_vector, grh_flow, mlx5_wqe_av, grh_gid_fl);
SAME(dpa_address_vector, gid, mlx5_wqe_av, rgid);

static_assert(+DPA_OPCODE_NOP == MLX5_OPCODE_NOP && +DPA_OPCODE_WRITE == MLX5_OPCODE_RDMA_WRITE &&
              +DPA_OPCODE_SEND == MLX5_OPCODE_SEND &&
              +DPA_OPCODE_SEND_IMMEDIATE == MLX5_OPCODE_SEND_IMM);
static_assert(DPA_INLINE == uint32_t{MLX5_INLINE_SEG});
static_assert(sizeof(dpa_data::bytes) == sizeof(mlx5_wqe_inl_data_seg));
static_assert(+DPA_RECEIVE_RECORD == MLX5_RCV_DBR && +DPA_SEND_RECORD == MLX5_SND_DBR);
#elif defined(MCAST_HAVE_VERBS)
#error "headers of rdma-core without infiniband/mlx5dv.h"
#endif

// Segments follow each other in units of 16 bytes; entries fill slots of 64.
static_assert(sizeof(dpa_write_wqe) == 64 && sizeof(dpa_send_wqe) == 128);
static_assert(offsetof(dpa_write_wqe, seg.remote) == 16 &&
              offsetof(dpa_write_wqe, seg.data) == 32 &&
              offsetof(dpa_write_wqe, seg.note) == 16 * DPA_WRITE_UNITS);
static_assert(offsetof(dpa_send_wqe, seg.address) == 16 &&
              offsetof(dpa_send_wqe, seg.inline_bytes) == 64 &&
              offsetof(dpa_send_wqe, seg.header) == 68 &&
              offsetof(dpa_send_wqe, seg.data) + sizeof(dpa_data) == 16 * DPA_SEND_UNITS);
static_assert(sizeof(dpa_slice) == 128);
static_assert(DPA_HEADER_BYTES == mcast::wire::kDatagramHeader);

namespace mcast {
namespace {

TEST(DpaFormats, TheHeaderIsOurs) {
  const rig_stream stream = {0x1122334455667788, 77, 0xabcdef01, 513, 1, 0, 9, 64, 64, 0, 9};
  for (const uint32_t chunk : {0u, 8u}) {
    wire::DatagramHeader header;
    header.type = wire::DatagramType::kData;
    header.lane = 1;
    header.last = chunk == 8;
    header.group_tag = stream.tag;
    header.sequence = stream.sequence;
    header.descriptor = stream.descriptor;
    header.chunk = chunk;
    header.member = stream.member;
    std::vector<std::byte> ours(wire::kDatagramHeader);
    wire::seal_datagram(ours, header, {});
    std::memset(ours.data(), 0, 4);  // verify=header: no checksum
    uint8_t theirs[DPA_HEADER_BYTES];
    rig_header(theirs, &stream, chunk);
    EXPECT_EQ(0, std::memcmp(ours.data(), theirs, sizeof theirs)) << "chunk " << chunk;
  }
}

}  // namespace
}  // namespace mcast
