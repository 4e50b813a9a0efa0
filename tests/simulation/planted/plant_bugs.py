"""Copies shipping sources with bugs planted in them, each behind a switch, for the test that expects the simulator to find them.

    plant_bugs.py OUTPUT_DIRECTORY ROOT SOURCE...      sources relative to the root

Writes a copy of each source, and planted_bugs.hpp with the switches. The shipping sources know nothing of this: a bug is a
place in their text and what stands there instead, wherever it is found; PLANTED is true there if the bug is switched on. A bug
whose place is not found is not planted, and its test says so: adapt its place here to what the code has become.
"""
import pathlib
import sys

BUGS = [
    ('publishes_before_all_results', [(
        'answered_.size() < joins_.size()) return;',
        'answered_.size() + (PLANTED && state_ == State::kMoving && joins_.size() > 1 ? 1 : 0) < joins_.size()) return;')]),
    ('map_of_the_first_failure_only', [(
        'failures_.emplace(rank, std::move(failure));  // the first one counts',
        'if (!PLANTED || failures_.empty()) failures_.emplace(rank, std::move(failure));')]),
    ('late_message_accepted', [(
        'if (!names_call && received.counter != counter_) return',
        'if (!PLANTED && !names_call && received.counter != counter_) return'), (
        'if (outcome->ticket != call_.ticket || (!lost_',
        'if ((outcome->ticket != call_.ticket && !PLANTED) || (!PLANTED && !lost_'), (
        'if (!is_attempt() || received.counter != counter_) {',
        'if (!is_attempt() || (!PLANTED && received.counter != counter_)) {')]),
    ('lost_ranks_are_forgotten', [(
        'if (!gone_.insert(down.rank).second) return;\n  fail(down.rank, failure());',
        'if (!gone_.insert(down.rank).second) return;\n  if (PLANTED && state_ == State::kMoving) return answered(down.rank);\n'
        '  fail(down.rank, failure());')]),
    ('unknown_is_called_no', [(
        'began_ ? Committed::kUnknown : Committed::kNo;',
        'began_ && !PLANTED ? Committed::kUnknown : Committed::kNo;')]),
    ('a_later_save_does_not_wait_for_its_turn', [(
        'if (save.held || !has_come(number)) return SaveTurn::kWaits;',
        'if (!PLANTED && (save.held || !has_come(number))) return SaveTurn::kWaits;')]),
    ('stale_cached_plan', [
        ('return std::find(digests_.begin(), digests_.end(), digest) != digests_.end();',
         'return PLANTED ? !digests_.empty() : std::find(digests_.begin(), digests_.end(), digest) != digests_.end();'),
        ('  return nullptr;\n}\n\nvoid PlanCache::add',
         '  return PLANTED && !plans_.empty() ? plans_.back().second : nullptr;\n}\n\nvoid PlanCache::add')]),
    ('content_of_the_cached_plan_is_kept', [(
        'if (count == 0) return kept;\n',
        'if (count == 0 || PLANTED) return kept;\n')]),
    ('settles_without_fence', [('\n  store.fence(save_id);\n', '\n  if (!PLANTED) store.fence(save_id);\n')]),
    ('clean_up_without_fence', [(
        'if (!succeeds([&] { store.fence(id); })) kept.add_id(id);',
        'if (!PLANTED && !succeeds([&] { store.fence(id); })) kept.add_id(id);')]),
    ('leftovers_stay', [('if (!id || kept.has_file', 'if (!id || PLANTED || kept.has_file')]),
    ('no_directory_sync_after_the_rename', [(
        '// 6\n  if (const int synced = files_.sync_directory(root_); synced < 0)',
        '// 6\n  if (const int synced = PLANTED ? 0 : files_.sync_directory(root_); synced < 0)')]),
    ('record_not_synced', [('failed = files_.sync_data(file);', 'failed = PLANTED ? 0 : files_.sync_data(file);')]),
    ('overwrites_in_place', [(
        'result = files_.rename(commit, metadata);',
        'if (PLANTED) cairn::planted::overwrite_in_place(files_, commit, metadata);\n'
        '    result = files_.rename(commit, metadata);')]),
    ('data_not_synced', [(
        'if (const int result = files_.sync_data(file_); result < 0)',
        'if (const int result = PLANTED ? 0 : files_.sync_data(file_); result < 0)')]),
    ('data_directory_synced_only_after_the_rename', [(
        'if (durable) {\n    // Every directory',
        'if (durable && !PLANTED) {\n    // Every directory')]),
    # --- in the actors around the state machines ---
    ('a_call_of_the_supervisor_is_never_released', [(
        'const auto context = std::exchange(slot.context, nullptr);',
        'const auto context = PLANTED ? slot.context : std::exchange(slot.context, nullptr);')]),
    ('a_stopped_timer_of_a_rank_stays', [(
        '} else if (const auto* stopped_timer = std::get_if<protocol::StopTimer>(&effect)) {\n        timers_.stop',
        '} else if (const auto* stopped_timer = std::get_if<protocol::StopTimer>(&effect)) {\n        if (!PLANTED) timers_.stop')]),
    ('an_unsent_message_is_dropped', [(
        'inbox_->post(tap_.wrap(Unsent{',
        'if (!PLANTED) inbox_->post(tap_.wrap(Unsent{')]),
    ('a_hook_of_the_coordinator_is_reported_to_the_rank', [(
        'if (report.coordinator == 0) {',
        'if (report.coordinator == 0 || PLANTED) {')]),
    ('a_shutdown_cancels_calls_that_its_rank_coordinates', [(
        'if (slot.context && (!coordinator_ ||',
        'if (slot.context && (PLANTED || !coordinator_ ||')]),
    ('the_coordinator_does_not_say_that_it_has_stopped', [(
        'supervisor_->post(tap_.wrap(CoordinatorStopped{}));',
        'if (!PLANTED) supervisor_->post(tap_.wrap(CoordinatorStopped{}));')]),
    ('a_dead_coordinator_is_kept_secret', [(
        'for (int rank = 0; rank < config_.world_size; ++rank) refuse(rank, "");',
        'for (int rank = 0; rank < config_.world_size && !PLANTED; ++rank) refuse(rank, "");')]),
    ('files_are_discarded_without_an_outcome', [(
        'if (committed && (*committed == Committed::kNo || ends_attempt))',
        'if (PLANTED || (committed && (*committed == Committed::kNo || ends_attempt)))')]),
    ('a_failed_hook_is_reported_as_done', [(
        'Failure failure = failure_of(exception);',
        'if (PLANTED && hook_ == Hook::kMoveData) return end(protocol::Written{std::make_shared<const WriteResults>()});\n'
        '  Failure failure = failure_of(exception);')]),
    ('the_outcome_comes_before_the_last_hook_has_ended', [
        ('  if (!done_) return;\n', '  if (!done_ || (PLANTED && outcome_)) return;\n'),
        ('if (!outcome_) outcome_ = std::move(outcome);',
         'if (outcome_) return;\n  outcome_ = std::move(outcome);\n  if (PLANTED) done_(*outcome_);')]),
    ('every_rank_is_told_that_it_coordinates', [(
        'context.is_coordinator = is_coordinator;',
        'context.is_coordinator = is_coordinator || PLANTED;')]),
    ('a_checkpointer_stays_taken', [(
        'shared->calls.erase(checkpointer);',
        'if (!PLANTED) shared->calls.erase(checkpointer);')]),
    ('the_coordinators_own_text_may_have_any_size', [(
        'check("this rank\'s text for"',
        'if (!PLANTED) check("this rank\'s text for"')]),
    ('deadlines_are_armed_once', [(
        'if (woken) armed_.reset();',
        'if (woken && !PLANTED) armed_.reset();')]),
]

HEADER = '''// Made by plant_bugs.py: the bugs, and which of them is switched on.
#pragma once

#include <cairn/tests/simulation/planted/planted.hpp>

namespace cairn::planted {{

struct Bug {{
  const char* name;
  bool is_planted;  // its place was found
}};
inline constexpr Bug kBugs[] = {{
{bugs}
}};

}}  // namespace cairn::planted
'''


def main():
    output, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = {source: (root / source).read_text() for source in sys.argv[3:]}
    lines = []
    for number, (name, edits) in enumerate(BUGS):
        changed = dict(texts)
        for before, after in edits:
            places = [source for source in changed if before in changed[source]]
            if not places:
                print(f'{name}: its place is not found: {before!r}', file=sys.stderr)
                changed = None
                break
            for source in places:
                changed[source] = changed[source].replace(before, after.replace('PLANTED', f'cairn::planted::is_on({number})'))
        texts = changed or texts
        lines.append(f'    {{"{name.replace("_", " ")}", {"true" if changed else "false"}}},')
    for source, text in texts.items():
        # Headers lie where `#include <cairn/...>` finds them first.
        place = output / 'cairn' / source if source.endswith('.hpp') else output / source
        write(place, f'#include <cairn/tests/simulation/planted/planted.hpp>\n#line 1 "{root / source}"\n{text}')
    write(output / 'planted_bugs.hpp', HEADER.format(bugs='\n'.join(lines)))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == '__main__':
    main()
