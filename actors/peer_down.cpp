#include <cairn/actors/peer_down.hpp>

namespace cairn {

protocol::PeerDown peer_down_of(const LinkDown& down) {
  protocol::PeerDown event;
  event.rank = down.rank;
  event.why = down.why;
  event.unopened = down.cause == LinkDownCause::kForbidden || down.cause == LinkDownCause::kUnreachable ||
                   down.cause == LinkDownCause::kOtherWorld;
  event.gave_up = down.cause == LinkDownCause::kGaveUp;
  if (down.cause == LinkDownCause::kSilent) {
    event.kind = FailureKind::kSilent;
    event.code = ErrorCode::kDeadline;
  }
  if (down.cause == LinkDownCause::kProtocol) event.code = ErrorCode::kCorrupt;
  if (down.cause == LinkDownCause::kForbidden) event.code = ErrorCode::kPermission;
  if (down.cause == LinkDownCause::kOtherWorld) event.code = ErrorCode::kMismatch;
  return event;
}

}  // namespace cairn
