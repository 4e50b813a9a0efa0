#include <cairn/actors/peer_down.hpp>

namespace cairn {

protocol::PeerDown peer_down_of(const LinkDown& down) {
  protocol::PeerDown event;
  event.rank = down.rank;
  event.why = down.why;
  switch (down.cause) {
    case LinkDownCause::kSilent:
      event.kind = FailureKind::kSilent;
      event.code = ErrorCode::kDeadline;
      break;
    case LinkDownCause::kProtocol:
      event.code = ErrorCode::kCorrupt;
      break;
    case LinkDownCause::kForbidden:
      event.unopened = true;
      event.code = ErrorCode::kPermission;
      break;
    case LinkDownCause::kUnreachable:
      event.unopened = true;
      event.code = ErrorCode::kUnavailable;
      break;
    case LinkDownCause::kGaveUp:
      event.gave_up = true;
      event.code = ErrorCode::kUnavailable;
      break;
    case LinkDownCause::kLeft:
    case LinkDownCause::kClosed:
    case LinkDownCause::kOverflow:
      event.code = ErrorCode::kUnavailable;
      break;
  }
  return event;
}

}  // namespace cairn
