// Memory that two processes of one user share, and its way from one to the other. Internal.
#pragma once

#include <cstddef>
#include <utility>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/bytes.hpp>

namespace cairn {

inline constexpr std::size_t kSharedWindowBytes = std::size_t{4} << 20;

// A mapping of sealed memory. Nobody can shrink it, but the peer can change its bytes at any time.
class SharedWindow {
 public:
  SharedWindow() = default;
  // Maps `memory`. Throws kPermission unless it is sealed and has kSharedWindowBytes.
  explicit SharedWindow(const Socket& memory);
  ~SharedWindow();
  SharedWindow(SharedWindow&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedWindow& operator=(SharedWindow&&) = delete;

  std::size_t size() const { return bytes_.size(); }
  char* data() const { return bytes_.data(); }

 private:
  MutableByteSpan bytes_;
};

// Allocates and seals memory (memfd). Throws if the system refuses it.
Socket make_shared_memory(std::size_t bytes);
// Passes a descriptor through a Unix socket. Throws kUnavailable.
void pass_descriptor(int through, const Socket& descriptor);
// Returns the descriptor passed, or none if nothing has arrived. Throws kCorrupt if something else
// has arrived.
Socket take_descriptor(int through);

}  // namespace cairn
