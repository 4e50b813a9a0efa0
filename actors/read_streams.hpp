// The streams over which ranks share what they read for one load, through a Transport.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <cairn/actors/links/transport.hpp>
#include <cairn/planning/read_once.hpp>
#include <cairn/storage/engine/rank_streams.hpp>

namespace cairn {

// Opens the streams to the receivers at once, on at most kWorldRanksMax threads of its own; on the
// caller's if none can be had. Waits at most `deadline` for each sender to open its stream, and
// starts no new connection after that time. `RankStreams::report` calls `on_broken`, with one line
// about the streams that broke.
std::shared_ptr<RankStreams> make_read_streams(std::shared_ptr<Transport> transport, std::shared_ptr<const SharedReads> shared,
                                               std::chrono::milliseconds deadline,
                                               std::function<void(const std::string& why)> on_broken);

}  // namespace cairn
