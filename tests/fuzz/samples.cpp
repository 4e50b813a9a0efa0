#include <cairn/tests/fuzz/samples.hpp>

namespace cairn::testing {

Trailer sample_trailer() {
  Trailer trailer;
  trailer.save_id = "cairn-00112233445566778899aabbccddeeff-01234567-1";
  trailer.rank = 3;
  trailer.content_bytes = 300'000;
  trailer.block_crc32 = {1, 0xffffffff, 3};
  TrailerItem tensor;
  tensor.fqn = "model.weight";
  tensor.dtype = DType::kFloat16;
  tensor.size = {1000, 200};
  tensor.chunk = {{500, 0}, {500, 100}};
  tensor.length = 200'000;
  tensor.payload_offset = 4096;
  tensor.payload_bytes = 100'000;
  tensor.payload_crc32 = 77;
  TrailerItem bytes;
  bytes.fqn = "step";
  bytes.is_bytes = true;
  bytes.offset = bytes.payload_offset = 200'000;
  bytes.length = bytes.payload_bytes = 100'000;
  bytes.payload_crc32 = 78;
  trailer.items = {tensor, bytes};
  return trailer;
}

}  // namespace cairn::testing
