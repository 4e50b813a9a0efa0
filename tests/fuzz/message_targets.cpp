// The messages between ranks: plans, envelopes, and the frames that carry them.
#include <algorithm>
#include <memory>
#include <utility>

#include <cairn/messages/link.pb.h>
#include <cairn/actors/links/frames.hpp>
#include <cairn/actors/links/handshake.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/tests/fuzz/targets.hpp>
#include <cairn/tests/messages/random_messages.hpp>
#include <cairn/tests/support/plan_bytes.hpp>

namespace cairn::testing {
namespace {

constexpr std::size_t kStreamFrameBytesMax = 16 * 1024;
constexpr std::size_t kMessageBytesMax = 64 * 1024;

bool run_save_plan(ByteSpan input) { return makes_round_trip(input, encode_save_plan, decode_save_plan); }
bool run_load_plan(ByteSpan input) { return makes_round_trip(input, encode_load_plan, decode_load_plan); }
bool run_write_results(ByteSpan input) { return makes_round_trip(input, encode_write_results, decode_write_results); }
bool run_envelope(ByteSpan input) { return makes_round_trip(input, protocol::encode, protocol::decode); }

// One direction of a connection. It arrives in pieces whose lengths the input itself decides.
bool run_frames(ByteSpan input) {
  const LinkIdentity self{"0123456789abcdef0123456789abcdef", 1, 4, kStreamFrameBytesMax};
  FrameReader reader(kStreamFrameBytesMax);
  MessageAssembler assembler(kMessageBytesMax);
  // Returns whether the connection would continue.
  const auto take = [&](ByteSpan bytes) {
    v1::LinkFrame frame;
    if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
    if (is_hello(frame)) find_fault(frame.hello(), self);
    std::string message;
    if (frame.has_section() && assembler.add(*frame.mutable_section(), message) && message.size() > kMessageBytesMax)
      throw FuzzFault("a message longer than allowed");
    return true;
  };
  bool is_open = true;
  const bool is_sound = goes_through([&] {
    while (is_open && !input.empty()) {
      const std::size_t length = std::min<std::size_t>(input.size(), 1 + static_cast<unsigned char>(input.data()[0]) % 64);
      reader.buffer().append(input.data(), length);
      input = input.subspan(length, input.size() - length);
      ByteSpan bytes;
      FrameReader::Status status = FrameReader::Status::kFrame;
      while (is_open && (status = reader.next(bytes)) == FrameReader::Status::kFrame) is_open = take(bytes);
      is_open = is_open && status != FrameReader::Status::kTooLong;
      if (is_open && reader.buffer().size() > kStreamFrameBytesMax + kFramePrefixBytes)
        throw FuzzFault("more than a frame is kept");
    }
  });
  return is_open && is_sound;
}

constexpr std::uint64_t kSeed = 81;

std::vector<Bytes> save_plans() { return {encode_save_plan(random_save_plan(*seeded_random(kSeed)))}; }
std::vector<Bytes> load_plans() { return {encode_load_plan(random_load_plan(*seeded_random(kSeed)))}; }
std::vector<Bytes> write_results() { return {encode_write_results(random_results(*seeded_random(kSeed)))}; }
std::vector<Bytes> envelopes() {
  const auto random = seeded_random(kSeed);
  std::vector<Bytes> seeds;
  for (std::size_t kind = 0; kind < protocol::kKinds; ++kind)
    seeds.push_back(protocol::encode(protocol::random_envelope(*random, kind)));
  return seeds;
}

std::vector<Bytes> streams() {
  const LinkIdentity other{"0123456789abcdef0123456789abcdef", 2, 4, kStreamFrameBytesMax};
  Bytes stream = encode_frame(make_hello(other, v1::LINK_PURPOSE_DATA, 99));
  MessageSplitter splitter;
  for (const std::size_t size : {std::size_t{0}, std::size_t{300}, std::size_t{9000}})
    splitter.push(std::make_shared<const std::string>(size, 'm'));
  while (!splitter.empty()) stream += splitter.next_frame(4096);
  return {stream + encode_frame(make_goodbye("done")),
          encode_frame(make_refusal(v1::LINK_REFUSAL_REASON_RANK, "why")) + encode_frame(make_goodbye(""))};
}

}  // namespace

std::vector<FuzzTarget> message_targets() {
  return {{"save_plan", run_save_plan, save_plans},
          {"load_plan", run_load_plan, load_plans},
          {"write_results", run_write_results, write_results},
          {"envelope", run_envelope, envelopes},
          {"frames", run_frames, streams}};
}

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> targets = [] {
    std::vector<FuzzTarget> all = format_targets();
    for (FuzzTarget& target : message_targets()) all.push_back(std::move(target));
    for (FuzzTarget& target : trace_targets()) all.push_back(std::move(target));
    return all;
  }();
  return targets;
}

}  // namespace cairn::testing
