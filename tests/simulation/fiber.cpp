#include <cairn/tests/simulation/fiber.hpp>

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#include <cairn/base/error.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CAIRN_FIBER_ADDRESS_SANITIZER 1
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define CAIRN_FIBER_THREAD_SANITIZER 1
#endif

namespace cairn::simulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr std::size_t kGuardBytes = 4096;

// Keeps stacks for later fibers, because mapping a stack costs more than most hooks.
class Stacks {
 public:
  ~Stacks() {
    for (void* stack : free_) munmap(stack, kStackBytes);
  }
  void* take() {
    if (!free_.empty()) {
      void* stack = free_.back();
      free_.pop_back();
#ifdef CAIRN_FIBER_ADDRESS_SANITIZER
      // A fiber can end without leaving its outer frames, so their poison remains on the stack.
      ASAN_UNPOISON_MEMORY_REGION(static_cast<char*>(stack) + kGuardBytes, kStackBytes - kGuardBytes);
#endif
      return stack;
    }
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check_invariant(stack != MAP_FAILED, "no memory for the stack of a fiber");
    mprotect(stack, kGuardBytes, PROT_NONE);  // an overflow faults at once
    return stack;
  }
  void give(void* stack) { free_.push_back(stack); }

 private:
  std::vector<void*> free_;
};

Stacks& stacks() {
  static Stacks instance;
  return instance;
}

// The exceptions being handled belong to a stack, but the C++ runtime keeps them per thread.
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

void exchange_exceptions(Exceptions& kept) {
  auto* live = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(live->caught, kept.caught);
  std::swap(live->uncaught, kept.uncaught);
}

}  // namespace

struct Fiber::State {
  std::function<void()> body;
  void* stack = nullptr;
  ucontext_t own{};
  ucontext_t resumer{};
  Exceptions exceptions;
  bool ended = false;
  // For the sanitizers.
  void* own_fake_stack = nullptr;
  void* resumer_fake_stack = nullptr;
  const void* resumer_stack = nullptr;
  std::size_t resumer_stack_bytes = 0;
  void* own_shadow = nullptr;
  void* resumer_shadow = nullptr;

  void switch_in();
  void switch_out();
  void arrived();
};

namespace {
Fiber* running = nullptr;
}

void Fiber::State::switch_in() {
  exchange_exceptions(exceptions);
#ifdef CAIRN_FIBER_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&resumer_fake_stack, stack, kStackBytes);
#endif
#ifdef CAIRN_FIBER_THREAD_SANITIZER
  resumer_shadow = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_shadow, 0);
#endif
  swapcontext(&resumer, &own);
#ifdef CAIRN_FIBER_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(resumer_fake_stack, nullptr, nullptr);
#endif
  exchange_exceptions(exceptions);
}

void Fiber::State::switch_out() {
#ifdef CAIRN_FIBER_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(ended ? nullptr : &own_fake_stack, resumer_stack, resumer_stack_bytes);
#endif
#ifdef CAIRN_FIBER_THREAD_SANITIZER
  __tsan_switch_to_fiber(resumer_shadow, 0);
#endif
  swapcontext(&own, &resumer);
  arrived();
}

void Fiber::State::arrived() {
#ifdef CAIRN_FIBER_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(own_fake_stack, &resumer_stack, &resumer_stack_bytes);
#endif
}

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack = stacks().take();
#ifdef CAIRN_FIBER_THREAD_SANITIZER
  state_->own_shadow = __tsan_create_fiber(0);
#endif
  getcontext(&state_->own);
  state_->own.uc_stack.ss_sp = state_->stack;
  state_->own.uc_stack.ss_size = kStackBytes;
  state_->own.uc_link = nullptr;
  makecontext(&state_->own, &Fiber::enter, 0);
}

Fiber::~Fiber() {
#ifdef CAIRN_FIBER_THREAD_SANITIZER
  __tsan_destroy_fiber(state_->own_shadow);
#endif
  stacks().give(state_->stack);
}

void Fiber::enter() {
  State& state = *running->state_;
  state.arrived();
  state.body();
  state.body = nullptr;
  state.ended = true;
  state.switch_out();
}

void Fiber::resume() {
  check_invariant(running == nullptr, "a fiber was resumed within another");
  check_invariant(!state_->ended, "a fiber that has ended was resumed");
  running = this;
  state_->switch_in();
  running = nullptr;
}

bool Fiber::ended() const { return state_->ended; }

Fiber* Fiber::current() { return running; }

void Fiber::suspend() {
  check_invariant(running != nullptr, "nothing to suspend outside of a fiber");
  running->state_->switch_out();
}

}  // namespace cairn::simulation
