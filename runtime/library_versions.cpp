#include <cairn/runtime/library_versions.hpp>

#include <google/protobuf/stubs/common.h>
#include <openssl/opensslv.h>
#include <torch/version.h>
#include <caf/config.hpp>
#ifdef CAIRN_HAS_NCCL
#include <nccl.h>
#endif

#include <cairn/base/version.hpp>

namespace cairn {
namespace {

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string nccl_version() {
#ifdef CAIRN_HAS_NCCL
  return dotted(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#else
  return "none";
#endif
}

}  // namespace

std::vector<LibraryVersion> library_versions() {
  return {{"Cairn", kVersion},
          // Without the last number, which some packages get wrong: Debian's 1.13.1 says 1.13.0.
          {"LibTorch", std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR)},
          {"NCCL", nccl_version()},
          {"CAF", dotted(CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION)},
          {"Protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)},
          {"OpenSSL", OPENSSL_FULL_VERSION_STR}};
}

}  // namespace cairn
