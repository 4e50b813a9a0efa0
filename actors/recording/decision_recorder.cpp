#include <algorithm>
#include <utility>

#include <cairn/actors/recording/event_codec.hpp>
#include <cairn/actors/recording/recorded.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

// The step that is being recorded.
struct DecisionRecorder::Contents {
  std::uint64_t machine = 0;
  std::uint64_t steps = 0;
  v1::Decision decision;
  recording::PlanDigests digests;  // stays empty: a recording machine sees the original digests
  std::string bytes;

  // Returns the content of the event about to be recorded.
  std::string_view encoded() {
    if (!decision.SerializeToString(&bytes) || bytes.size() > kTraceContentBytesMax) {
      decision.set_left_out("it has more than " + std::to_string(kTraceContentBytesMax) + " bytes");
      decision.clear_effects();
      decision.SerializeToString(&bytes);
    }
    return bytes;
  }
};

DecisionRecorder::DecisionRecorder(MachineKind kind, protocol::Identity identity, const RuntimeOptions& options)
    : kind_(kind), identity_(std::move(identity)), options_(options), key_(checkpointer_key(identity_.checkpointer)) {}

DecisionRecorder::~DecisionRecorder() {
  if (!contents_) return;
  contents_->decision.Clear();
  contents_->decision.set_machine(contents_->machine);
  contents_->decision.mutable_dropped();
  ObservedEvent event;
  event.kind = EventKind::kDecision;
  event.name = "machine dropped";
  event.checkpointer = key_;
  event.content = contents_->encoded();
  tap_->record(event);
}

void DecisionRecorder::begin(Tap& tap, const char* state) {
  tap_ = &tap;
  if (!tap.tracer()->keeps_contents()) return;
  contents_ = std::make_unique<Contents>();
  auto& made = *contents_->decision.mutable_made();
  made.set_kind(kind_ == MachineKind::kRank ? v1::MACHINE_KIND_RANK : v1::MACHINE_KIND_COORDINATOR);
  made.set_checkpointer(identity_.checkpointer);
  made.set_counter_floor(identity_.counter_floor);
  made.set_join_deadline_ms(options_.join_deadline.count());
  made.set_phase_deadline_ms(options_.phase_deadline.count());
  made.set_outcome_grace_ms(options_.outcome_grace.count());
  made.set_phase_grace_ms(options_.phase_grace.count());
  made.set_cancel_grace_ms(options_.cancel_grace.count());
  made.set_silence_ms(options_.silence.count());
  made.set_progress_interval_ms(options_.progress_interval.count());
  made.set_successors_asked(options_.successors_asked);
  made.set_outcomes_kept(options_.outcomes_kept);
  contents_->decision.set_state(state);
  ObservedEvent event;
  event.kind = EventKind::kDecision;
  event.name = "machine made";
  event.checkpointer = key_;
  event.detail = state;
  event.content = contents_->encoded();
  contents_->machine = tap.record(event);
}

bool DecisionRecorder::wants(const protocol::Event& event) const {
  return tap_ != nullptr && (contents_ != nullptr || !recording::is_of_progress(event));
}

void DecisionRecorder::before(const protocol::Event& event, const char* state, std::uint64_t counter) {
  before_ = state;
  counter_before_ = counter;
  if (!contents_) return;
  auto& decision = contents_->decision;
  decision.Clear();
  decision.set_machine(contents_->machine);
  decision.set_step(++contents_->steps);
  // Encoded before the step, because the machine may pass plans to hooks, which change them.
  try {
    recording::to_proto(event, *decision.mutable_event());
  } catch (const Error& error) {
    decision.set_left_out(error.what());
  }
}

void DecisionRecorder::after(const protocol::Event& event, const protocol::Effects& effects, const char* state,
                             std::uint64_t counter) {
  if (contents_)
    for (auto& words : recording::in_words(effects, contents_->digests)) contents_->decision.add_effects(std::move(words));
  ObservedEvent observed;
  observed.number = recording::digest_of(event, effects);
  record(event, state, counter, observed);
}

void DecisionRecorder::broke(const protocol::Event& event, const char* why, const char* state, std::uint64_t counter) {
  if (contents_) contents_->decision.set_error(why);
  ObservedEvent observed;
  observed.number = recording::digest_of(event, {});
  observed.text = why;
  observed.ok = false;
  record(event, state, counter, observed);
}

void DecisionRecorder::record(const protocol::Event& event, const char* state, std::uint64_t counter, ObservedEvent observed) {
  observed.kind = EventKind::kDecision;
  observed.name = recording::name_of(event);
  observed.peer = recording::peer_of(event);
  observed.checkpointer = key_;
  observed.attempt = std::max(counter, counter_before_);
  observed.before = before_;
  observed.detail = state;
  if (contents_) {
    contents_->decision.set_state(state);
    observed.content = contents_->encoded();
  }
  tap_->record(observed);
}

}  // namespace cairn
