// Plans and write results as bytes. Between ranks they travel within an envelope.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/messages/plan_codec.hpp>

namespace cairn {

template <class Message, class Record>
Bytes encode_as(const Record& record) {
  Message message;
  to_proto(record, message);
  return columns::serialize(message, "record");
}
template <class Message>
auto decode_as(ByteSpan bytes) {
  Message message;
  columns::parse(bytes, message, "record");
  return from_proto(message);
}

inline Bytes encode_save_plan(const SavePlan& plan) { return encode_as<v1::SavePlan>(plan); }
inline SavePlan decode_save_plan(ByteSpan bytes) { return decode_as<v1::SavePlan>(bytes); }
inline Bytes encode_load_plan(const LoadPlan& plan) { return encode_as<v1::LoadPlan>(plan); }
inline LoadPlan decode_load_plan(ByteSpan bytes) { return decode_as<v1::LoadPlan>(bytes); }
inline Bytes encode_write_results(const WriteResults& results) { return encode_as<v1::WriteResults>(results); }
inline WriteResults decode_write_results(ByteSpan bytes) { return decode_as<v1::WriteResults>(bytes); }

}  // namespace cairn
