#include <cairn/runtime/checkpoints/async_handle.hpp>

#include <cairn/runtime/checkpoints/async_save.hpp>

namespace cairn {

bool AsyncSaveResponse::staged() const { return save_->staged(); }
bool AsyncSaveResponse::wait_staged(std::optional<std::chrono::milliseconds> deadline) const {
  return save_->wait_staged(deadline);
}
bool AsyncSaveResponse::done() const { return save_->done(); }
bool AsyncSaveResponse::wait(std::optional<std::chrono::milliseconds> deadline) const { return save_->wait(deadline); }
std::string AsyncSaveResponse::result() const { return save_->result(); }
SaveProgress AsyncSaveResponse::progress() const { return save_->progress(); }
void AsyncSaveResponse::cancel(const std::string& why) const { save_->cancel(why); }

}  // namespace cairn
