// The parts of Intel's ipsec-mb (libIPSec_MB.so.1) that this folder uses, declared here for the
// reason that crypto/openssl_abi.h gives: the functions of its header that seal one message on a
// CPU with AVX2. tests/cpp/crypto/ipsec_mb_test.cpp compares them with the header.
#pragma once

#include <cstddef>
#include <cstdint>

struct gcm_key_data;
struct gcm_context_data;

namespace mcast::crypto::abi {

// Upper bound of an expanded key in all of version 1; 64: alignment for its widest loads.
inline constexpr size_t kGcmKeyRoom = 2048, kGcmAlignment = 64;
// State of one message, likewise an upper bound.
inline constexpr size_t kGcmStateRoom = 256;
// imb_get_version() of the first supported version, and of the first unsupported one.
inline constexpr unsigned kOldestIpsecMb = 0x10000, kNextIpsecMb = 0x20000;

using GcmPre = void (*)(const void* key, gcm_key_data*);
// One message: text or ciphertext, 12 bytes of nonce, additional authenticated data, the tag.
using GcmOnce = void (*)(const gcm_key_data*, gcm_context_data*, uint8_t* out, const uint8_t* in,
                         uint64_t size, const uint8_t* nonce, const uint8_t* aad, uint64_t aad_size,
                         uint8_t* tag, uint64_t tag_size);
// The same in several calls.
using GcmInit = void (*)(const gcm_key_data*, gcm_context_data*, const uint8_t* nonce,
                         const uint8_t* aad, uint64_t aad_size);
using GcmUpdate = void (*)(const gcm_key_data*, gcm_context_data*, uint8_t* out, const uint8_t* in,
                           uint64_t size);
using GcmFinalize = void (*)(const gcm_key_data*, gcm_context_data*, uint8_t* tag,
                             uint64_t tag_size);
using GetVersion = unsigned (*)();

// The functions of one key size: X(member, type, name before the size, name between the size and
// the CPU).
// clang-format off
#define MCAST_GCM_FUNCTIONS(X)                                  \
  X(pre, GcmPre, "aes_gcm_pre_", "_")                           \
  X(enc, GcmOnce, "aes_gcm_enc_", "_")                          \
  X(dec, GcmOnce, "aes_gcm_dec_", "_")                          \
  X(init, GcmInit, "aes_gcm_init_", "_")                        \
  X(enc_update, GcmUpdate, "aes_gcm_enc_", "_update_")          \
  X(enc_finalize, GcmFinalize, "aes_gcm_enc_", "_finalize_")
// clang-format on

}  // namespace mcast::crypto::abi
