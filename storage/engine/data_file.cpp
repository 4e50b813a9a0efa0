#include <cairn/storage/engine/data_file.hpp>

#include <cairn/base/error.hpp>

namespace cairn {

void check_file_length(Store& store, const FileInfo& file) {
  if (!file.length) return;
  const std::uint64_t actual = store.size_bytes(file.name);
  if (actual == *file.length) return;
  throw Error(ErrorCode::kCorrupt, child_url(store.url(), file.name) + " has " + std::to_string(actual) + " bytes, not the " +
                                       std::to_string(*file.length) + " that were written: it was " +
                                       (actual < *file.length ? "cut short" : "extended") + " since");
}

Trailer read_trailer(Store& store, const FileInfo& file) {
  const std::string object = child_url(store.url(), file.name);
  check_invariant(file.length && file.trailer_length, "only files of Cairn's have a trailer");
  if (*file.trailer_length > *file.length)
    throw Error(ErrorCode::kCorrupt, "the commit record gives " + object + " a trailer that is longer than the file");
  Bytes bytes(*file.trailer_length, '\0');
  store.read(file.name, {{*file.length - bytes.size(), {bytes.data(), bytes.size()}}});
  return decode_trailer(bytes, *file.length, object);
}

}  // namespace cairn
