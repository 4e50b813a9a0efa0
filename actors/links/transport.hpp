// Bulk bytes between ranks, past actors and brokers: the data plane.
//
// A stream carries bytes from one rank to another, in order. Each stream has a connection of its
// own, made when the stream is opened: shared memory if both ranks run on one host under the same
// user and in the same network namespace, else TCP with the TLS 1.3 of the links. So a receiver
// that is slow stops its own senders only, and ranks that exchange nothing are not connected.
//
// Threads: bytes move on the threads of the callers, which block. A Transport has one thread of its
// own, which accepts connections and sends heartbeats. All functions of Transport are thread-safe.
// A stream object is used by one thread at a time; different streams are independent.
// A forked child may destroy its copies, which has no effect on the parent's, and nothing else.
//
// Memory: a stream through shared memory holds 4 MiB, once for both sides. One through TCP
// holds what the kernel allows (net.ipv4.tcp_wmem and tcp_rmem, often 4 and 6 to 32 MiB at most)
// and, with TLS, less than 1 MiB at each side. A receiver that passes buffers smaller than
// kDataBlockBytesMax holds one block more. Nothing is queued beyond that: `send` blocks.
//
// Errors: a function that fails throws Error. Its text names the peer, the stream and the way. The
// stream is then over on both sides, and its later calls throw the same error:
//   kUnavailable  the peer died, left the stream early, or the connection was cut
//   kDeadline     the peer's process is frozen, or was unreachable for `silence`
//   kCorrupt      a block has a wrong checksum, or the peer violates the protocol
//   kPermission   the peer knows another secret, or none, or belongs to another world
//   kCancelled    the transport was destroyed
// A peer that calls `fail` passes its own code and text on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace cairn {

inline constexpr std::size_t kDataBlockBytesMax = std::size_t{1} << 20;

// The place where a rank accepts streams.
struct DataAddress {
  int rank = 0;
  std::string address;     // "host:port" or "[IPv6 address]:port"
  std::string local_name;  // of a Unix socket in the abstract namespace; empty: TCP only
};
// Returns one line of printable text for messages, such as "3 10.0.0.1:4000 cairn-0f…".
std::string to_string(const DataAddress& address);
// Parses that text. Throws kInvalidArgument.
DataAddress parse_data_address(const std::string& text);

class DataStream;  // data_stream.hpp

class Transport {
 public:
  virtual ~Transport() = default;  // ends all streams, which may outlive it
  virtual const DataAddress& address() const = 0;
  // Opens a stream to a rank. `stream` must differ from the numbers of all streams that this rank
  // has open to that rank. If shared memory fails for any reason, takes TCP. Blocks until the
  // peer's transport has answered; nobody there need have called `receive`. Looks a host name up on
  // the caller's thread. Also throws kInvalidArgument for a malformed address, and kPrecondition
  // if there is no secret and the address is not loopback.
  virtual std::shared_ptr<DataStream> open(const DataAddress& to, std::uint64_t stream) = 0;
  // Waits until rank `from` has opened the stream. Throws kDeadline after `deadline`, and
  // kCancelled if `cancelled` is true at the beginning or at a call of `wake`.
  virtual std::shared_ptr<DataStream> receive(int from, std::uint64_t stream, std::chrono::nanoseconds deadline,
                                              const std::atomic<bool>* cancelled = nullptr) = 0;
  virtual void wake() noexcept = 0;
};

}  // namespace cairn
