// The ranges that saves and loads show in PyTorch's profiler and in Nsight.
#include <cairn/tests/support/torch.hpp>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/record_function.h>

#include <cairn/base/mutex.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

using Lines = std::vector<std::string>;

// Records what a profiler of all threads would show. Only one may exist at a time.
class ProfiledRanges {
 public:
  ProfiledRanges()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::USER_SCOPE}))) {
    current() = this;
  }
  ~ProfiledRanges() { at::removeCallback(handle_); }
  ProfiledRanges(const ProfiledRanges&) = delete;
  ProfiledRanges& operator=(const ProfiledRanges&) = delete;

  // Returns the names of the ranges that the calling thread began, indented by nesting. Leaves out
  // the waits, whose number depends on timing.
  Lines of_this_thread() const {
    MutexLock lock(mutex_);
    const auto found = threads_.find(std::this_thread::get_id());
    return found == threads_.end() ? Lines{} : found->second.lines;
  }
  // Does the same for the other thread that began a range `name` outside all others.
  Lines of_thread_with(const std::string& name) const {
    MutexLock lock(mutex_);
    for (const auto& [id, thread] : threads_)
      for (const std::string& line : thread.lines)
        if (line == name && id != std::this_thread::get_id()) return thread.lines;
    return {};
  }
  // Returns how many ranges of this name any thread has begun and ended.
  std::size_t ended(const std::string& name) const {
    MutexLock lock(mutex_);
    const auto found = ended_.find(name);
    return found == ended_.end() ? 0 : found->second;
  }
  Lines open() const {
    MutexLock lock(mutex_);
    Lines all;
    for (const auto& [id, thread] : threads_) all.insert(all.end(), thread.open.begin(), thread.open.end());
    return all;
  }
  // Names of ranges that ended on another thread than they began on, or not in the reverse order.
  Lines misplaced() const {
    MutexLock lock(mutex_);
    return misplaced_;
  }
  void clear() {
    MutexLock lock(mutex_);
    threads_.clear();
  }

 private:
  struct Thread {
    Lines lines;
    Lines open;
  };

  static ProfiledRanges*& current() {
    static ProfiledRanges* ranges = nullptr;
    return ranges;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& range) {
    const std::string name = range.name();
    if (name.rfind("cairn::", 0) != 0) return nullptr;
    ProfiledRanges& self = *current();
    MutexLock lock(self.mutex_);
    Thread& thread = self.threads_[std::this_thread::get_id()];
    if (name != "cairn::wait") thread.lines.push_back(std::string(2 * thread.open.size(), ' ') + name);
    thread.open.push_back(name);
    return nullptr;
  }

  static void end(const at::RecordFunction& range, at::ObserverContext*) {
    const std::string name = range.name();
    if (name.rfind("cairn::", 0) != 0) return;
    ProfiledRanges& self = *current();
    MutexLock lock(self.mutex_);
    Thread& thread = self.threads_[std::this_thread::get_id()];
    if (thread.open.empty() || thread.open.back() != name)
      self.misplaced_.push_back(name);
    else
      thread.open.pop_back();
    ++self.ended_[name];
  }

  const at::CallbackHandle handle_;
  mutable Mutex mutex_;
  std::map<std::thread::id, Thread> threads_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> ended_ CAIRN_GUARDED_BY(mutex_);
  Lines misplaced_ CAIRN_GUARDED_BY(mutex_);
};

// The hooks between the state and the commit, as a world of one rank runs them.
Lines hooks_of_save() {
  return {"  cairn::set_up_planner",
          "  cairn::set_up_storage_writer",
          "  cairn::create_local_plan",
          "  cairn::prepare_local_plan",
          "  cairn::create_global_plan",
          "  cairn::prepare_global_plan",
          "  cairn::finish_plan",
          "  cairn::write_data",
          "  cairn::finish"};
}

Lines joined(Lines first, const Lines& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST_CASE("profiler: a save and a load are ranges that contain those of their hooks") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single(), "main");
  StateDict state = common_state(0, 1);
  ProfiledRanges ranges;
  checkpointer.save(state, directory.path() + "/saved");
  CHECK(ranges.of_this_thread() == joined({"cairn::save", "  cairn::reset", "  cairn::begin"}, hooks_of_save()));
  for (const char* const task : {"cairn::open_file", "cairn::write_block", "cairn::close_file"}) CHECK(ranges.ended(task) > 0);

  ranges.clear();
  checkpointer.load(state, directory.path() + "/saved");
  CHECK(ranges.of_this_thread() == Lines{"cairn::load", "  cairn::reset", "  cairn::begin", "  cairn::read_metadata",
                                         "  cairn::set_up_planner", "  cairn::set_up_storage_reader", "  cairn::create_local_plan",
                                         "  cairn::prepare_local_plan", "  cairn::create_global_plan",
                                         "  cairn::prepare_global_plan", "  cairn::finish_plan", "  cairn::read_data",
                                         "  cairn::restore"});
  CHECK(ranges.ended("cairn::read_block") > 0);
  CHECK(ranges.ended("cairn::wait") > 0);
  CHECK(ranges.open() == Lines{});
  CHECK(ranges.misplaced() == Lines{});
}

TEST_CASE("profiler: an asynchronous save has ranges on the trainer's thread and its own") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single(), "main");
  ProfiledRanges ranges;
  AsyncSaveOptions options;
  options.staging.block_on_staging = false;
  const auto response = checkpointer.async_save(common_state(0, 1), directory.path() + "/saved", {}, options);
  response.wait_staged();
  CHECK(ranges.of_this_thread() ==
        Lines{"cairn::async_save", "  cairn::reset", "  cairn::begin", "    cairn::stage", "cairn::wait_staged"});
  response.wait();
  CHECK(ranges.of_thread_with("cairn::background_save") == joined({"cairn::stage", "cairn::background_save"}, hooks_of_save()));
  CHECK(ranges.open() == Lines{});
  CHECK(ranges.misplaced() == Lines{});
}

TEST_CASE("profiler: no range is left open when a hook throws") {
  for (const std::string hook : {"reset", "set_up_storage_writer", "prepare_local_plan", "prepare_global_plan", "write_data",
                                 "write_data_async", "finish"}) {
    CAPTURE(hook);
    const ProfiledRanges ranges;
    on_all_ranks(2, [&](World& world) {
      Checkpointer checkpointer(world, "main");
      SaveOptions options;
      options.storage_writer = std::make_shared<FaultyWriter>(FailOn{{hook, {0}}}, world.rank());
      CHECK_THROWS_AS(checkpointer.save(common_state(world.rank(), 2), "place", options), CheckpointException);
    });
    CHECK(ranges.ended("cairn::" + (hook == "write_data_async" ? "write_data" : hook)) > 0);
    CHECK(ranges.ended("cairn::save") == 2);
    CHECK(ranges.open() == Lines{});
    CHECK(ranges.misplaced() == Lines{});
  }
}

}  // namespace
}  // namespace cairn::testing
