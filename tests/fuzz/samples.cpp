#include <cairn/tests/fuzz/samples.hpp>

namespace cairn::testing {

Trailer sample_trailer() {
  Trailer trailer;
  trailer.save_id = "cairn-00112233445566778899aabbccddeeff-01234567-1";
  trailer.content_bytes = 300'000;
  trailer.block_crc32 = {1, 0xffffffff, 3};
  return trailer;
}

}  // namespace cairn::testing
