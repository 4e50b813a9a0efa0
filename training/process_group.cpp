#include <cairn/training/process_group.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/training/c10d_backends.hpp>
#include <cairn/training/device_watch.hpp>
#include <cairn/training/store_meeting.hpp>
#include <cairn/training/tensor_bytes.hpp>

namespace cairn::training {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Backend = std::shared_ptr<C10dBackend>;

// How long a failed rank waits to hear from the others, so that it can name the silent ones.
constexpr milliseconds kRollCallMax{2000};
constexpr milliseconds kRollCallPoll{10};

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, "process group: " + why); }

void check_summable(at::ScalarType type) {
  for (const auto summable : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong}) {
    if (type == summable) return;
  }
  throw Error(ErrorCode::kUnsupported, std::string("process group: tensors of type ") + c10::toString(type) +
                                           " cannot be summed over ranks; use a floating type, int32 or int64");
}

// Returns the type in which `backend` sums tensors of `type`.
at::ScalarType type_of_sums(at::ScalarType type, const C10dBackend& backend) {
  return backend.is_nccl() || (type != at::kHalf && type != at::kBFloat16) ? type : at::kFloat;
}

// Returns when all ranks have joined.
std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const ProcessGroupOptions& settings) {
  auto options = c10d::ProcessGroupGloo::Options::create(settings.timeout);
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname(settings.address.empty() ? "127.0.0.1" : settings.address));
  // As many as c10d gives a group with one device.
  options->threads = 2;
  return std::make_unique<C10dBackend>(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
}

c10::intrusive_ptr<c10d::Work> start_all_reduce(const C10dBackend& backend, torch::Tensor tensor) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  return backend.group()->allreduce(tensors);
}

void check_timeout(const ProcessGroupOptions& options) {
  if (options.timeout <= milliseconds(0)) refuse("a timeout of " + std::to_string(options.timeout.count()) + " ms leaves no time");
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_tensor(const char* collective, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse(std::string(collective) + ": a tensor is undefined");
  if (!tensor.is_contiguous()) refuse(std::string(collective) + ": a tensor is not contiguous");
  if (tensor.is_conj() || tensor.is_neg())
    refuse(std::string(collective) + ": a tensor is a conjugate or negative view; call resolve_conj() and resolve_neg()");
}

void check_sizes(const char* collective, const torch::Tensor& large, const torch::Tensor& small, int size) {
  check_tensor(collective, large);
  check_tensor(collective, small);
  if (large.numel() != small.numel() * size || large.scalar_type() != small.scalar_type() || large.device() != small.device()) {
    refuse(std::string(collective) + ": " + std::to_string(large.numel()) + " elements of " + c10::toString(large.scalar_type()) +
           " do not match " + std::to_string(size) + " times " + std::to_string(small.numel()) + " of " +
           c10::toString(small.scalar_type()));
  }
}

}  // namespace

class ProcessGroup::Implementation {
 public:
  // A group and all groups made from it. If one breaks, all break.
  struct Family {
    Mutex mutex;
    std::string failure CAIRN_GUARDED_BY(mutex);  // the first failure; empty if there is none
    std::vector<std::weak_ptr<Implementation>> members CAIRN_GUARDED_BY(mutex);
  };

  // Backends over groups of the trainer's; null where there is none.
  struct Given {
    Backend on_host, on_device;
  };

  // Makes the group and adds it to its family, by default one of its own.
  static std::shared_ptr<Implementation> make(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> ranks,
                                              const ProcessGroupOptions& options, std::string name, Given given = {},
                                              std::shared_ptr<Family> family = std::make_shared<Family>()) {
    auto made = std::make_shared<Implementation>(std::move(store), rank, std::move(ranks), options, std::move(name),
                                                 std::move(given), family);
    const MutexLock lock(family->mutex);
    auto& members = family->members;
    members.erase(std::remove_if(members.begin(), members.end(), [](const auto& member) { return member.expired(); }),
                  members.end());
    members.push_back(made);
    return made;
  }

  Implementation(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> ranks, const ProcessGroupOptions& options,
                 std::string name, Given given, std::shared_ptr<Family> family)
      : store_(std::move(store)),
        rank_(rank),
        ranks_(std::move(ranks)),
        options_(options),
        name_(std::move(name)),
        family_(std::move(family)),
        host_is_given_(given.on_host != nullptr),
        on_host_(std::move(given.on_host)),
        on_device_(std::move(given.on_device)) {
    if (size() == 1) return;
    if (on_device_) start_watch();
    if (store_) meet("make the group");
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const ProcessGroupOptions& options() const { return options_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // Returns the name of a group made from this one. The first group of a name gets that name; later
  // ones get a number as well.
  std::string name_of_subgroup(const std::string& name) {
    const MutexLock lock(names_mutex_);
    const int before = names_[name]++;
    return name_ + "/" + name + (before > 0 ? "#" + std::to_string(before) : "");
  }
  const std::shared_ptr<Family>& family() const { return family_; }

  // Closes the group. Peers that wait for this rank notice.
  // Dropping the references ends Gloo's connections. NCCL has to be told.
  void close() {
    Backend on_host, on_device;
    {
      const MutexLock lock(mutex_);
      // Destroyed after the lock is released: that closes connections and may wait.
      on_host.swap(on_host_);
      on_device.swap(on_device_);
    }
    if (on_device) on_device->abort();
  }

  // Returns the backend for tensors on `device`. The first collective that needs it makes its
  // connections. Two locks: `making_` lets one thread make connections, which takes long; `mutex_`
  // is held for moments, so that `close` need not wait.
  Backend backend(const std::string& action, at::Device device) {
    check_family(action);
    const bool on_host = device.is_cpu();
    if (!on_host && !device.is_cuda()) {
      throw Error(ErrorCode::kUnsupported, action + ": tensors on " + device.str() +
                                               " cannot be moved between ranks; those in host memory and on CUDA devices can");
    }
    const MutexLock making(making_);
    {
      const MutexLock lock(mutex_);
      if (Backend known = on_host ? on_host_ : on_device_) return known;
    }
    if (!store_) {
      throw Error(ErrorCode::kUnsupported, action + ": tensors " + (on_host ? "in host memory" : "on CUDA devices") +
                                               " need a c10d group for them, or a store with which Cairn can make one; give " +
                                               "either to ProcessGroup::from_c10d");
    }
    meet(action);  // NCCL waits for ever for a missing rank, Gloo five times its timeout, so meet first
    Backend made;
    run(action, [&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name_ + (on_host ? "" : "/nccl"), store_);
      made =
          on_host ? make_gloo_backend(store, rank_, size(), options_) : make_nccl_backend(store, rank_, size(), options_.timeout);
    });
    {
      const MutexLock lock(mutex_);
      (on_host ? on_host_ : on_device_) = made;
      if (!on_host) start_watch();
    }
    try {
      check_family(action);  // if the family broke meanwhile, nobody else closes the new backend
    } catch (...) {
      close();
      throw;
    }
    return made;
  }

  void check_family(const std::string& action) {
    const MutexLock lock(family_->mutex);
    if (!family_->failure.empty())
      throw Error(ErrorCode::kUnavailable, action + ": the group is broken by an earlier failure: " + family_->failure);
  }

  // Returns when all ranks have called it. Uses an all-reduce instead of Gloo's barrier: an
  // all-reduce cannot end on any rank before all have called it, and it does not report the failure
  // of an earlier call.
  void meet(const std::string& action, at::DeviceType where) {
    Backend backend = this->backend(action, where);
    run(
        action,
        [&] {
          torch::Tensor token = torch::zeros({1}, torch::TensorOptions().dtype(torch::kInt32).device(where));
          const auto until = steady_clock::now() + options_.timeout;
          wait_for(*start_all_reduce(*backend, token), where != at::kCPU);
          if (where != at::kCPU && !finishes_by(until, token.device()))
            throw std::runtime_error("the device has not finished it");
        },
        [&] { backend.reset(); });
  }
  // Returns where ranks can meet: in host memory, unless the trainer gave a group for devices only.
  at::DeviceType meeting_place() {
    const MutexLock lock(mutex_);
    return !on_host_ && !store_ && on_device_ ? at::kCUDA : at::kCPU;
  }

  // Waits for work in host memory, or orders the current stream of a device after it.
  void wait_for(c10d::Work& work, bool on_device) const {
    if (host_is_given_ && !on_device)
      work.wait(options_.timeout);  // the group's own timeout may be longer
    else
      work.wait();
  }

  // Returns when all ranks have called it. Needs no connections between the ranks.
  void meet(const std::string& action) {
    run(action, [&] {
      c10d::PrefixStore store(std::to_string(meetings_++), store_);
      meet_in_store(store, name_, rank_, ranks_, options_.timeout);
    });
  }

  // Call it when the current stream of `device` waits for a collective.
  void watch(const std::string& action, at::Device device) { watch_->expect(action, device); }

  // Runs `body`, which communicates with other ranks. An exception breaks the family. `let_go`
  // releases the caller's references to the collective.
  void run(
      const std::string& action, const std::function<void()>& body, const std::function<void()>& let_go = [] {}) {
    const auto began = steady_clock::now();
    std::string cause;
    try {
      body();
      return;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      cause = error.what();
    }
    let_go();
    // Backends report a timeout by texts of their own, so the time decides.
    const bool late = steady_clock::now() - began >= options_.timeout;
    throw Error(late ? ErrorCode::kDeadline : ErrorCode::kUnavailable, fail(action, cause, late));
  }

 private:
  void start_watch() {
    watch_ = std::make_unique<DeviceWatch>(
        options_.timeout, [this](const std::string& late) { fail(late, "the device has not finished it", /*late=*/true); });
  }

  // Breaks the family. Returns the error text.
  // Two steps for a timeout: first ask who is missing, then break the family with a text that names
  // them.
  std::string fail(const std::string& action, const std::string& cause, bool late) {
    const std::string begin =
        action + ": " + describe() + (late ? " waited " + std::to_string(options_.timeout.count()) + " ms" : " failed");
    const std::string end = "; " + first_line(cause);
    // A rank without a connection to the lost rank may wait for one that has a connection. It
    // notices only when that rank closes, so break the family at once.
    if (!late) break_family(begin + end, {});
    const std::vector<int> missing = roll_call();
    const std::string text = begin + (missing.empty() ? "" : "; not heard of since: " + name_ranks(missing)) + end;
    break_family(text, begin + end);
    return text;
  }

  // `instead_of` is the preliminary text that `failure` replaces.
  void break_family(const std::string& failure, const std::string& instead_of) {
    std::vector<std::weak_ptr<Implementation>> members;
    {
      const MutexLock lock(family_->mutex);
      if (family_->failure.empty() || family_->failure == instead_of) family_->failure = failure;
      members.swap(family_->members);
    }
    // Without the lock of the family: closing a group may take time, and wakes ranks that ask for
    // the failure.
    for (const auto& member : members) {
      if (const auto group = member.lock()) group->close();
    }
  }

  std::string describe() const {
    return "rank " + std::to_string(rank_) + " of " + std::to_string(size()) + " in group \"" + name_ + '"';
  }

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  // Every rank whose collective failed reports that in the store. A rank that does not report in
  // time is not in the collective: it died, or is doing something else. Returns world ranks.
  std::vector<int> roll_call() {
    std::vector<int> missing;
    if (!store_) return missing;
    try {
      const std::string prefix = name_ + "/failed";
      // The key comes before the count: whoever sees the full count finds all keys.
      store_->set(prefix + '/' + std::to_string(rank_), std::vector<std::uint8_t>{1});
      const auto has_all = [&](std::int64_t more) { return store_->add(prefix, more) >= size(); };
      // Other ranks may have started to wait a little later.
      const auto until = steady_clock::now() + std::min(kRollCallMax, std::max(options_.timeout, milliseconds(100)));
      for (bool all = has_all(said_failed_.exchange(true) ? 0 : 1); !all; all = has_all(0)) {
        if (steady_clock::now() < until) {
          std::this_thread::sleep_for(kRollCallPoll);
          continue;
        }
        for (int rank = 0; rank < size(); ++rank) {
          if (!store_->check({prefix + '/' + std::to_string(rank)})) missing.push_back(ranks_[static_cast<std::size_t>(rank)]);
        }
        break;
      }
    } catch (const std::exception&) {
      return {};  // the process that hosted the store is gone
    }
    std::sort(missing.begin(), missing.end());
    return missing;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const std::vector<int> ranks_;
  const ProcessGroupOptions options_;
  const std::string name_;
  Mutex names_mutex_;
  std::map<std::string, int> names_ CAIRN_GUARDED_BY(names_mutex_);  // number of subgroups made with each name
  std::atomic<int> meetings_{0};
  std::atomic<bool> said_failed_{false};
  Mutex making_;  // held while connections between hosts are made
  const std::shared_ptr<Family> family_;
  const bool host_is_given_;
  Mutex mutex_;
  Backend on_host_ CAIRN_GUARDED_BY(mutex_), on_device_ CAIRN_GUARDED_BY(mutex_);  // the trainer's, or made when first needed
  std::unique_ptr<DeviceWatch> watch_;  // made with on_device_, destroyed first
};

// --- Pending -------------------------------------------------------------------------------------

struct Pending::State {
  std::shared_ptr<ProcessGroup::Implementation> group;
  std::string action;
  at::Device device;
  c10::intrusive_ptr<c10d::Work> work = {};
  std::vector<torch::Tensor> kept = {};  // kept alive until the work is done; all on `device`
  std::function<void()> finish = {};     // the remaining work on this rank

  // Order the current stream after the work, so that memory which a device still uses may be freed.
  ~State() {
    if (device.is_cpu() || !work) return;
    try {
      work->wait();
    } catch (const std::exception&) {  // a later call reports it
    }
  }
};

Pending::Pending() noexcept = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

void Pending::wait() {
  if (!state_) return;
  const std::unique_ptr<State> state = std::move(state_);
  state->group->run(
      state->action, [&] { state->group->wait_for(*state->work, !state->device.is_cpu()); }, [&] { state->work.reset(); });
  // The host does not wait for devices. The watch reports a collective that a device never
  // finishes.
  if (!state->device.is_cpu()) state->group->watch(state->action, state->device);
  state->work.reset();
  if (state->finish) state->finish();
}

// --- ProcessGroup --------------------------------------------------------------------------------

ProcessGroup ProcessGroup::single() { return ProcessGroup(Implementation::make({}, 0, {0}, {}, "single")); }

ProcessGroup ProcessGroup::from_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                      const ProcessGroupOptions& options, const std::string& name) {
  if (!store.defined()) refuse("the store is a null pointer");
  if (size < 1 || rank < 0 || rank >= size) refuse("there is no rank " + std::to_string(rank) + " of " + std::to_string(size));
  check_timeout(options);
  return ProcessGroup(Implementation::make(store, rank, first_ranks(size), options, name));
}

ProcessGroup ProcessGroup::from_c10d(const C10dGroups& groups, const ProcessGroupOptions& options, const std::string& name) {
  const auto& any = groups.on_host ? groups.on_host : groups.on_device;
  if (!any) refuse("from_c10d has no c10d group; to make groups from a store alone, call from_store");
  const int rank = any->getRank(), size = any->getSize();
  if (groups.on_device && (groups.on_device->getRank() != rank || groups.on_device->getSize() != size))
    refuse("the c10d group for host memory has this process as rank " + std::to_string(rank) + " of " + std::to_string(size) +
           ", the one for devices as rank " + std::to_string(groups.on_device->getRank()) + " of " +
           std::to_string(groups.on_device->getSize()));
  if (!groups.world_ranks.empty() && groups.world_ranks.size() != static_cast<std::size_t>(size))
    refuse(std::to_string(groups.world_ranks.size()) + " world ranks are listed for a c10d group of " + std::to_string(size));
  check_timeout(options);
  Implementation::Given given;
  if (groups.on_host) given.on_host = std::make_shared<C10dBackend>(groups.on_host);
  if (groups.on_device) given.on_device = std::make_shared<C10dBackend>(groups.on_device);
  return ProcessGroup(Implementation::make(groups.store, rank, groups.world_ranks.empty() ? first_ranks(size) : groups.world_ranks,
                                           options, name, std::move(given)));
}

ProcessGroup ProcessGroup::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  std::vector<int> of_world;
  int own = -1;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) refuse("a subgroup lists rank " + std::to_string(rank) + " of " + std::to_string(size()));
    if (rank == this->rank()) own = static_cast<int>(of_world.size());
    const int in_world = this->ranks()[static_cast<std::size_t>(rank)];
    if (std::find(of_world.begin(), of_world.end(), in_world) != of_world.end())
      refuse("a subgroup lists rank " + std::to_string(rank) + " twice");
    of_world.push_back(in_world);
  }
  if (own < 0) refuse("rank " + std::to_string(rank()) + " is not in the list of the subgroup that it makes");
  if (of_world.size() > 1 && !implementation_->store())
    throw Error(ErrorCode::kPrecondition,
                "process group: a subgroup needs a store, which from_c10d was not given; give it one, or make the subgroup from a "
                "c10d group of its ranks");
  return ProcessGroup(Implementation::make(implementation_->store(), own, std::move(of_world), implementation_->options(),
                                           implementation_->name_of_subgroup(name), {}, implementation_->family()));
}

int ProcessGroup::rank() const { return implementation_->rank(); }
int ProcessGroup::size() const { return implementation_->size(); }
const std::vector<int>& ProcessGroup::ranks() const { return implementation_->ranks(); }

template <class Start>
Pending ProcessGroup::begin(const char* collective, const torch::Tensor& output, const torch::Tensor& input,
                            const Start& start) const {
  const torch::NoGradGuard no_grad;
  Pending pending;
  if (input.numel() == 0) return pending;
  if (size() == 1) {
    if (!output.is_same(input)) output.view(-1).copy_(input.view(-1));
    return pending;
  }
  const std::string action = std::string(collective) + " of " + std::to_string(input.nbytes()) + " bytes";
  // Not kept until the wait: closing the group ends the collective by destroying the backend, which
  // a reference would prevent.
  const Backend backend = implementation_->backend(action, input.device());
  implementation_->run(action, [&] {
    pending.state_.reset(new Pending::State{implementation_, action, input.device()});
    start(*backend, *pending.state_);
  });
  return pending;
}

Pending ProcessGroup::all_gather_async(const torch::Tensor& output, const torch::Tensor& input) const {
  check_sizes("all-gather", output, input, size());
  return begin("all-gather", output, input, [&](C10dBackend& backend, auto& state) {
    state.kept = {output, input};
    // As bytes, because moving needs no arithmetic: any type can travel, also those that a backend
    // does not know.
    std::vector<torch::Tensor> from{bytes_of(input)};
    torch::Tensor to = bytes_of(output);
    if (backend.is_nccl()) {
      state.work = backend.group()->_allgather_base(to, from.front());
      return;
    }
    // All kinds of groups have this form. Gloo and MPI lack the other.
    std::vector<std::vector<torch::Tensor>> parts{to.chunk(size())};
    state.work = backend.group()->allgather(parts, from);
  });
}

Pending ProcessGroup::reduce_scatter_async(const torch::Tensor& output, const torch::Tensor& input) const {
  check_sizes("reduce-scatter", input, output, size());
  check_summable(input.scalar_type());
  return begin("reduce-scatter", output, input, [&](C10dBackend& backend, auto& state) {
    if (backend.is_nccl()) {
      state.kept = {output, input};
      torch::Tensor to = output.detach(), from = input.detach();
      state.work = backend.group()->_reduce_scatter_base(to, from);
      return;
    }
    const at::ScalarType type = type_of_sums(input.scalar_type(), backend);
    // The backend has no reduce-scatter: each rank collects its parts and adds them up itself, in
    // the order of ranks.
    const torch::Tensor parts = torch::empty_like(input);
    state.kept = {parts, input};
    state.finish = [output, parts, type, n = size()] {
      const torch::NoGradGuard no_grad;
      const torch::Tensor rows = parts.view({n, -1});
      torch::Tensor sum = rows[0].to(type, /*non_blocking=*/false, /*copy=*/true);
      for (int i = 1; i < n; ++i) sum.add_(rows[i]);
      output.view(-1).copy_(sum);
    };
    torch::Tensor to = bytes_of(parts), from = bytes_of(input);
    std::vector<std::int64_t> equal;
    state.work = backend.group()->alltoall_base(to, from, equal, equal);
  });
}

Pending ProcessGroup::all_reduce_async(const torch::Tensor& tensor) const {
  check_tensor("all-reduce", tensor);
  check_summable(tensor.scalar_type());
  return begin("all-reduce", tensor, tensor, [&](C10dBackend& backend, auto& state) {
    const at::ScalarType type = type_of_sums(tensor.scalar_type(), backend);
    const torch::Tensor sum = tensor.to(type);
    state.kept = {tensor, sum};
    if (type != tensor.scalar_type()) {
      state.finish = [tensor, sum] {
        const torch::NoGradGuard no_grad;
        tensor.detach().copy_(sum);
      };
    }
    state.work = start_all_reduce(backend, sum.detach());
  });
}

void ProcessGroup::all_gather(const torch::Tensor& output, const torch::Tensor& input) const {
  all_gather_async(output, input).wait();
}
void ProcessGroup::reduce_scatter(const torch::Tensor& output, const torch::Tensor& input) const {
  reduce_scatter_async(output, input).wait();
}
void ProcessGroup::all_reduce(const torch::Tensor& tensor) const { all_reduce_async(tensor).wait(); }

void ProcessGroup::broadcast(const torch::Tensor& tensor, int root) const {
  check_tensor("broadcast", tensor);
  if (root < 0 || root >= size()) refuse("broadcast: there is no rank " + std::to_string(root) + " of " + std::to_string(size()));
  begin("broadcast", tensor, tensor, [&](C10dBackend& backend, auto& state) {
    state.kept = {tensor};
    std::vector<torch::Tensor> tensors{bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    state.work = backend.group()->broadcast(tensors, options);
  }).wait();
}

void ProcessGroup::barrier() const {
  if (size() == 1) return;
  implementation_->meet("barrier", implementation_->meeting_place());
}

}  // namespace cairn::training
